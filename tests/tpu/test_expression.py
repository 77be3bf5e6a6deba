"""Units of a compiled program as expressions: the same arithmetic in other words, and parts of it."""

from __future__ import annotations

from parity.tpu.effect import effect
from parity.tpu.expression import Node, cut, expression, text
from parity.tpu.hlo import Program, parse

MODULES = frozenset({"", "up"})
PRODUCT = 'convolution(%a, %b), dim_labels=bf_io->bf, metadata={op_name="jit(f)/up/dot_general"}'


def program(
    body: str,
    shape: str = "f32[8,8]",
    arguments: str = "%x, %w, %v",
    other: str = "",
    product: str = f"  %product = f32[8,8] {PRODUCT}",
) -> Program:
    """One fusion over x [8, 8], w [8, 8] and v [8]; `body` has its instructions from `%a` and `%b` on."""
    return parse(
        f"""HloModule jit_f

{other}
%fused (a: f32[8,8], b: f32[8,8], c: f32[8]) -> {shape} {{
  %a = f32[8,8] parameter(0)
  %b = f32[8,8] parameter(1)
  %c = f32[8] parameter(2)
{product}
{body}
}}

ENTRY %main (x: f32[8,8], w: f32[8,8], v: f32[8]) -> {shape} {{
  %x = f32[8,8] parameter(0)
  %w = f32[8,8] parameter(1)
  %v = f32[8] parameter(2)
  ROOT %unit = {shape} fusion({arguments}), kind=kOutput, calls=%fused
}}
"""
    )


WHOLE = """  %row = f32[8,8] broadcast(%c), dimensions={0}
  %scaled = f32[8,8] multiply(%product, %row)
  ROOT %out = f32[8,8] add(%scaled, %a)"""
NESTED = """%inner (p: f32[8], q: f32[8,8]) -> f32[8,8] {
  %q = f32[8,8] parameter(1)
  %p = f32[8] parameter(0)
  %row = f32[8,8] broadcast(%p), dimensions={0}
  ROOT %scaled = f32[8,8] multiply(%q, %row)
}
"""


def unit(made: Program) -> Node:
    computation, found = next((c, i) for c, i in made.units() if i.opcode == "fusion")
    return expression(made, computation, found)


def test_a_fusion_inside_is_what_it_computes() -> None:
    inside = """  %scaled = f32[8,8] fusion(%c, %product), kind=kLoop, calls=%inner
  ROOT %out = f32[8,8] add(%scaled, %a)"""
    assert text(unit(program(inside, other=NESTED))) == text(unit(program(WHOLE)))


def test_which_tensor_goes_where_is_told() -> None:
    """Both operands have one shape: x w + x is not w x + x."""
    assert text(unit(program(WHOLE, arguments="%x, %w, %v"))) != text(unit(program(WHOLE, arguments="%x, %x, %v")))
    other = WHOLE.replace("add(%scaled, %a)", "add(%scaled, %b)")
    assert text(unit(program(WHOLE))) != text(unit(program(other)))


def test_an_item_of_a_tuple_is_the_item() -> None:
    pair = """%pair (p: f32[8], q: f32[8,8]) -> (f32[8,8], f32[8,8]) {
  %p = f32[8] parameter(0)
  %q = f32[8,8] parameter(1)
  %row = f32[8,8] broadcast(%p), dimensions={0}
  %scaled = f32[8,8] multiply(%q, %row)
  ROOT %both = (f32[8,8], f32[8,8]) tuple(%row, %scaled)
}
"""
    inside = """  %both = (f32[8,8], f32[8,8]) fusion(%c, %product), kind=kLoop, calls=%pair
  %scaled = f32[8,8] get-tuple-element(%both), index=1
  ROOT %out = f32[8,8] add(%scaled, %a)"""
    assert text(unit(program(inside, other=pair))) == text(unit(program(WHOLE)))


def test_a_unit_that_ends_earlier_is_cut() -> None:
    early = program("  ROOT %out = f32[8,8] add(%product, %a)")
    late = program(
        """  %out = f32[8,8] add(%product, %a)
  %row = f32[8,8] broadcast(%c), dimensions={0}
  ROOT %masked = f32[8,8] multiply(%out, %row)"""
    )
    assert cut(unit(early), unit(late))
    assert not cut(unit(late), unit(early))
    found = effect(late, early, MODULES)
    assert (found.before, found.same, found.cut, found.changed) == (1, 0, (("up", 1),), ())
    assert effect(early, late, MODULES).changed == (("up", 1),)  # something more is done with its result


def test_a_unit_that_begins_later_is_cut() -> None:
    later = program("  ROOT %out = f32[8,8] add(%product, %b)")
    earlier = program(
        f"""  %row = f32[8,8] broadcast(%c), dimensions={{0}}
  %scaled = f32[8,8] multiply(%b, %row)
  %other = f32[8,8] {PRODUCT.replace("%b", "%scaled")}
  ROOT %out = f32[8,8] add(%other, %scaled)""",
        product="",
    )
    assert cut(unit(later), unit(earlier))
    assert not cut(unit(earlier), unit(later))
    assert effect(earlier, later, MODULES).cut == effect(later, earlier, MODULES).cut == (("up", 1),)


def test_another_operation_is_no_cut() -> None:
    ends = program("  ROOT %out = f32[8,8] subtract(%product, %a)")
    assert not cut(unit(ends), unit(program(WHOLE)))
    assert effect(program(WHOLE), ends, MODULES).changed == (("up", 1),)


def test_a_cast_before_the_cut_is_another_arithmetic() -> None:
    """What is written in bfloat16 and read again is rounded, where inside of the fusion it was not."""
    rounded = program("  ROOT %out = bf16[8,8] convert(%product)", shape="bf16[8,8]")
    assert not cut(unit(rounded), unit(program(WHOLE)))


def test_a_tensor_that_is_given_in_another_dtype_is_no_cut() -> None:
    wide = Node("add", "f32[8]", (Node("multiply", "f32[8]", (Node("", "f32[8]"),)), Node("", "f32[8]")))
    assert cut(Node("add", "f32[8]", (Node("", "f32[8]{0}"), Node("", "f32[8]"))), wide)
    assert not cut(Node("add", "f32[8]", (Node("", "bf16[8]"), Node("", "f32[8]"))), wide)


def test_one_tensor_is_not_two() -> None:
    """Where the part is given a tensor once, the whole must have one tensor there."""
    whole = Node("add", "f32[8]", (Node("", "f32[8]"), Node("", "f32[8]")))
    one = Node("", "f32[8]")
    assert not cut(Node("add", "f32[8]", (one, one)), whole)


def test_a_tensor_alone_is_no_part() -> None:
    assert not cut(Node("", "f32[8]"), Node("", "f32[8]"))


def test_a_tensor_that_lies_otherwise_in_memory_is_the_same_tensor() -> None:
    """An observed query is written in the layout that its reader wants; unobserved, the reader moves it."""
    product = """  %moved = f32[8,8]{0,1} copy(%b)
  %out = f32[8,8] multiply(%product, %moved)
  ROOT %end = f32[8,8] add(%out, %a)"""
    there = product.replace("{0,1} copy", " bitcast")
    assert text(unit(program(product))) != text(unit(program(there)))
    assert not cut(unit(program(there)), unit(program(product.replace("multiply", "subtract"))))
    found = effect(program(product), program(there), MODULES)
    assert (found.same, found.cut, found.changed) == (0, (("up", 1),), ())
