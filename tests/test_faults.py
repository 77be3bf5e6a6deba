"""A part of the fault bench (`benchmarks/fault_bench.py`): faults that the tool knows nothing of, innocent variants."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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


@pytest.mark.parametrize(
    "name", ["mask_one_row_too_few", "norm_eps", "refiner_attention_without_mask", "guidance_in_bfloat16"]
)
def test_a_fault_is_found_where_it_is(bench: Any, name: str) -> None:
    (fault,) = (f for f in bench.FAULTS if f.name == name)
    row = bench.fault_row(bench.known, fault)
    assert row["verdict"] == "fail", row
    assert bench.right(fault, row), row


@pytest.mark.parametrize("name", ["attention in blocks of keys", "split sums"])
def test_an_innocent_variant_raises_no_alarm(bench: Any, name: str) -> None:
    (innocent,) = (i for i in bench.INNOCENTS if i.name == name)
    side = bench.known.candidate(*innocent.settings)
    with innocent.apply(side):
        row = bench.innocent_row(bench.known, side)
    assert row["verdict"] == "pass", row
    assert row["worst"] < 3
