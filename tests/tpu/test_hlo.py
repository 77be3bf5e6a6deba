"""The optimised program's text is read whole: no instruction is lost, a line that does not fit is an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parity.tpu.hlo import HloError, arrays_of, module_of, parse
from tests.tpu.recorded import MODULES, text


def test_every_line_is_an_instruction() -> None:
    program = parse(text("plain"))
    assert sum(len(c.instructions) for c in program.computations.values()) == text("plain").count(" = ")
    entry = program.computations["main.1_spmd"]
    assert entry.entry
    assert [c.name for c in program.computations.values() if c.entry] == ["main.1_spmd"]
    assert entry.root.opcode == "all-reduce"
    assert entry.root.calls == ("add.clone",)


def test_an_instruction_of_several_lines_is_read_whole() -> None:
    """As a kernel's metadata is written: in the text of splash attention with blocks of its own."""
    lines = text("plain").splitlines()
    at = next(i for i, line in enumerate(lines) if " fusion(" in line)
    broken = [*lines[:at], lines[at] + ", frontend_attributes={kernel_metadata={", '"a":"{1}"', "}}", *lines[at + 1 :]]
    before, after = parse(text("plain")), parse("\n".join(broken))
    assert [len(c.instructions) for c in after.computations.values()] == [
        len(c.instructions) for c in before.computations.values()
    ]


def test_a_fusion_holds_what_it_calls_and_is_executed_as_one() -> None:
    program = parse(text("plain"))
    assert {c.name for c, _ in program.units()} == {"main.1_spmd"}
    first = program.computations["main.1_spmd"].by_name["fusion"]
    inside = [i.opcode for _, i in program.within(program.computations["main.1_spmd"], first)]
    assert (inside.count("convolution"), inside.count("maximum"), inside.count("bitcast")) == (1, 1, 2)


def test_an_instruction() -> None:
    found = parse(text("plain")).computations["fused_computation.1"].by_name["convolution.4"]
    assert found.shape == "f32[256,128]{1,0:T(8,128)}"
    assert found.operands == ("fusion.3", "fusion.5")
    assert found.attribute("operand_precision") == "highest,highest"
    assert (found.attribute("dim_labels"), found.attribute("nothing")) == ("bf_io->bf", "")
    assert found.bytes == 256 * 128 * 4
    assert module_of(found.op_name, MODULES) == "blocks.0.up"


def test_where_a_tensor_was_placed_is_no_part_of_its_shape() -> None:
    copied = parse(text("plain")).computations["main.1_spmd"].by_name["copy-done"]
    assert copied.shape == "f32[256,128]{1,0:T(8,128)}"


@pytest.mark.parametrize(
    "broken",
    [
        "",
        "no program",
        text("plain").replace("%copy-done.1 = ", "copy-done.1 "),
        text("plain").replace("all-reduce(", "all-reduce"),
    ],
)
def test_what_does_not_fit_is_an_error(broken: str) -> None:
    with pytest.raises(HloError):
        parse(broken)


@given(st.lists(st.tuples(st.sampled_from(["f32", "bf16", "s32"]), st.lists(st.integers(0, 9), max_size=4))))
def test_shapes_are_read_back(arrays: list[tuple[str, list[int]]]) -> None:
    shape = ", ".join(f"{dtype}[{','.join(map(str, dims))}]{{1,0:T(8,128)}}" for dtype, dims in arrays)
    assert arrays_of(f"({shape})") == tuple((dtype, tuple(dims)) for dtype, dims in arrays)


@pytest.mark.parametrize(
    ("op_name", "module"),
    [
        ("jit(g)/blocks.0/up/dot_general", "blocks.0.up"),
        ("jit(g)/blocks.0/jit(relu)/max", "blocks.0"),
        ("jit(g)/up/dot_general", ""),
        ("", ""),
    ],
)
def test_the_innermost_module_of_the_scopes(op_name: str, module: str) -> None:
    assert module_of(op_name, MODULES) == module
