"""A part of the fault bench (`benchmarks/fault_bench.py`): faults that the tool knows nothing of, innocent variants."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("torchax")

BENCHMARKS = str(Path(__file__).parents[1] / "benchmarks")


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    """The bench's modules, with the reference and its floors measured once."""
    sys.path.insert(0, BENCHMARKS)
    try:
        import fault_bench

        fault_bench.known = fault_bench.Known("float32", 1)
        yield fault_bench
    finally:
        sys.path.remove(BENCHMARKS)


@pytest.mark.parametrize("name", ["mask_one_row_too_few", "norm_eps", "guidance_in_bfloat16"])
def test_a_fault_is_found_where_it_is(bench: Any, name: str) -> None:
    (fault,) = (f for f in bench.FAULTS if f.name == name)
    row = bench.fault_row(bench.known, fault)
    assert row["verdict"] == "fail", row
    assert bench.right(fault, row), row


def test_in_bfloat16_local_errors_say_where_and_not_the_first_site_that_the_free_run_shows(bench: Any) -> None:
    """The free run shows the fault at the attention call behind the norm."""
    (fault,) = (f for f in bench.FAULTS if f.name == "norm_without_affine")
    known = bench.Known("bfloat16", 1, sites="transformer_blocks.1.attn*", values=())
    row = bench.fault_row(known, fault)
    assert (row["verdict"], row["origin"], row["birth"]) == ("fail", "transformer_blocks.1.attn.norm_k:out", "module")


@pytest.mark.parametrize("name", ["attention in blocks of keys", "split sums"])
def test_an_innocent_variant_raises_no_alarm(bench: Any, name: str) -> None:
    (innocent,) = (i for i in bench.INNOCENTS if i.name == name)
    side = bench.known.candidate(*innocent.settings)
    with innocent.apply(side):
        row = bench.innocent_row(bench.known, side)
    assert row["verdict"] == "pass", row
    assert row["worst"] < 3
