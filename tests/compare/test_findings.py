"""Findings: one sentence for what the numbers show, and nothing where they show nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from parity.compare.detect.findings import Grid, findings
from parity.compare.result import Distance, Origin, SiteDiff
from parity.golden import Key, geometry

NEAR, FAR = Distance(1e-7, 1e-6, 0.1), Distance(1e-2, 1e-6, 1e4)


def sentences(*given: Any, **named: Any) -> tuple[str, ...]:
    return tuple(note.text for note in findings(*given, **named))


def site(name: str, far: bool = False, branch: str = "cond", **more: object) -> SiteDiff:
    key = Key("transformer", 0, branch, name)
    made = SiteDiff(key, FAR if far else NEAR, dtypes=("float32", "float32"), verdict="fail" if far else "pass")
    return replace(made, **more)  # type: ignore[arg-type]


def origin(d: SiteDiff) -> Origin:
    return Origin(d.key, "module")


def test_nothing_is_said_of_agreement() -> None:
    assert sentences([site("a:out"), site("a:out", branch="uncond")], None) == ()


def test_a_branch_that_agrees_is_named() -> None:
    sites = [site("a:out"), site("a:out", True, branch="uncond")]
    assert sentences(sites, origin(sites[1])) == ("only branch uncond differs; cond agrees",)
    assert sentences([sites[0], replace(sites[1], verdict="pass")], origin(sites[0])) == ()


def bins_of(tokens: int, hit: range, shape: tuple[int, ...]) -> tuple[tuple[float, ...], tuple[int, int]]:
    """Ratios of the row bins where these tokens differ, and the frame."""
    g = geometry(shape)
    per = g.rows // tokens
    rows = np.zeros(g.rows)
    rows[hit.start * per : hit.stop * per] = 1e4
    starts = range(0, g.rows, g.rows_per_bin)
    return tuple(float(rows[s : s + g.rows_per_bin].max()) for s in starts), (g.rows, g.channels)


@pytest.mark.parametrize("shape", [(1, 64, 128), (1, 64, 4, 32)])
def test_tokens_and_frames_are_named(shape: tuple[int, ...]) -> None:
    bins, frame = bins_of(64, range(32, 48), shape)
    d = site("block:out", True, shapes=(shape, shape), bins=bins, frame=frame)
    grid = Grid(4, 4, 4)
    assert sentences([d], origin(d), grid=grid) == (
        "at block:out the difference lies in tokens 32 to 47 of 64: frames 2 of 4",
    )
    assert sentences([d], origin(d)) == ("at block:out the difference lies in tokens 32 to 47 of 64",)


def test_text_tokens_are_called_so() -> None:
    shape = (1, 64, 128)
    bins, frame = bins_of(64, range(10), shape)
    d = site("block:out.1", True, shapes=(shape, shape), bins=bins, frame=frame, rows="text")
    assert sentences([d], origin(d), grid=Grid(4, 4, 4)) == (
        "at block:out.1 the difference lies in text tokens 0 to 9 of 64",
    )


def test_a_difference_everywhere_is_not_placed() -> None:
    shape = (1, 64, 128)
    bins, frame = bins_of(64, range(64), shape)
    d = site("block:out", True, shapes=(shape, shape), bins=bins, frame=frame)
    assert sentences([d], origin(d), grid=Grid(4, 4, 4)) == ()


def test_many_dtypes_are_one_finding() -> None:
    sites = [site(f"m.{i}:out", dtypes=("float32", "bfloat16")) for i in range(9)]
    (said,) = sentences([site("m:in.x"), *sites], None)
    assert said == "dtype map: 9 modules have another dtype (float32 against bfloat16), first m.0:out"
    assert sentences(sites, None, ["dtype"]) == ()
    assert sentences([site("m:in.i", dtypes=("int64", "int32"))], None) == ()


def test_the_first_producer_and_consumer_of_nan() -> None:
    sites = [
        site("a:out", nonfinite=(0, 0)),
        site("b:out", True, nonfinite=(0, 7)),
        site("b:out@padding", nonfinite=(0, 99)),
        site("c:in.x", True, nonfinite=(0, 7)),
        site("c:out", True, nonfinite=(0, 70)),
    ]
    (said,) = sentences(sites, None)
    assert said == (
        "NaN or Inf: 7 values, first produced by transformer step 0 cond b:out, first taken in by "
        "transformer step 0 cond c:in.x"
    )
    assert sentences([site("a:out", nonfinite=(3, 3))], None) == ()
