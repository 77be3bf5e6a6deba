"""The first operation that differs: by its output, or because it is another one."""

from __future__ import annotations

import numpy as np
import pytest

from parity.compare.operations import Reduced, first_parting
from parity.golden import sketch

SHAPE = (4, 128)
NAMES = ("linear", "gelu", "mul", "linear")


def run(offsets: tuple[float, ...] = (0, 0, 0, 0), names: tuple[str, ...] = NAMES) -> list[Reduced]:
    out = []
    for i, name in enumerate(names):
        x = np.random.default_rng(i).standard_normal(SHAPE)
        out.append(Reduced(name, SHAPE, sketch((x * (1 + offsets[i])).astype(np.float32))))
    return out


def test_agreement_is_no_parting() -> None:
    assert first_parting(run(), [run()], run()) is None
    assert first_parting(run(), [], run((1e-7, 1e-7, 1e-7, 1e-7))) is None


@pytest.mark.parametrize("at", range(4))
def test_the_first_that_differs(at: int) -> None:
    offsets = tuple(1e-3 if i >= at else 0.0 for i in range(4))
    found = first_parting(run(), [run()], run(offsets))
    assert found is not None
    assert (found.index, found.name, found.other) == (at, NAMES[at], "")
    assert found.rel_l2 == pytest.approx(1e-3, rel=1e-2)


def test_what_a_variant_moves_as_far_is_rounding() -> None:
    assert first_parting(run(), [run((0, 1e-3, 0, 0))], run((0, 2e-3, 0, 0))) is None
    other = run((0, 1e-3, 0, 0), ("linear", "tanh", "mul", "linear"))
    assert first_parting(run(), [other], run((0, 2e-3, 0, 0))) is not None  # of other operations, it says nothing


def test_another_operation_is_named() -> None:
    found = first_parting(run(), [run()], run(names=("linear", "silu", "mul", "linear")))
    assert found is not None
    assert (found.index, found.name) == (1, "gelu")
    assert found.other.startswith("silu")
    missing = first_parting(run(), [run()], run()[:1] + run()[2:])
    assert missing is not None
    assert (missing.index, missing.name, missing.other) == (1, "gelu", "nothing")
