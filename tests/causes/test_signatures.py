"""Signatures from made records: faults alone and together, rounding, absence, NaN, and what nobody knows."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from parity.causes.witnesses import signatures as module
from parity.compare.reason import Note
from parity.compare.result import Cause
from parity.records import Record, StepRecords
from parity.settings import parse
from tests.support.made import evidence, floor_of, noise, tensor

SITES = [f"blocks.{i}:out" for i in range(8)]
KNOWN = (
    "attention.mask=none", "refiner.mask=none", "norm_dtype=bfloat16", "vision_states=none", "text.reorder=concatenate",
    "dtype=bfloat16",
)  # fmt: skip
SIZE = {"attention.mask=none": 0.3, "refiner.mask=none": 0.1, "norm_dtype=bfloat16": 0.02, "dtype=bfloat16": 0.05}


def truth(site: int) -> np.ndarray:
    return noise(site, (1, 64, 48)).astype(np.float64)


def error(fault: str, site: int, salt: int = 0) -> np.ndarray:
    """What a fault adds at a site; with another salt what it adds in another program."""
    return SIZE.get(fault, 0.0) * noise(1000 + 50 * KNOWN.index(fault) + site + salt, (1, 64, 48))


def run(faults: frozenset[str]) -> StepRecords:
    values = [truth(i) + sum(error(f, i) for f in sorted(faults)) for i in range(len(SITES))]
    return step([tensor(site, x) for site, x in zip(SITES, values, strict=True)], faults)


def step(records: list[Record], faults: frozenset[str] = frozenset()) -> StepRecords:
    given = [tensor(":in.image_embeds", noise(77))] if "vision_states=none" not in faults else []
    made = [*given, *(replace(r, dtype="float32") for r in records)]
    return StepRecords(0, tuple(made), {r.key: floor_of(r) for r in made})


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`told(candidate)`: the causes and the notes."""
    machine: Any = SimpleNamespace(
        simulated=lambda *given: SimpleNamespace(run=run, beside={}), settings=parse("torch"),
        provenance=SimpleNamespace(steps=1), facts=None, ports=SimpleNamespace(reference=None),
    )  # fmt: skip
    monkeypatch.setattr(module, "known_faults", lambda *ignored: iter(KNOWN))

    def call(candidate: StepRecords) -> tuple[list[Cause], list[str]]:
        said = list(module.signatures(replace(evidence(run(frozenset()), candidate), model=machine)))
        return [x for x in said if isinstance(x, Cause)], [x.text for x in said if isinstance(x, Note)]

    return call


def names(causes: list[Cause]) -> list[str]:
    return [f"{c.setting}={c.candidate}" for c in causes]


def test_one_fault_has_all_of_the_error(told: Any) -> None:
    (cause,), _ = told(run(frozenset({"attention.mask=none"})))
    assert names([cause]) == ["attention.mask=none"]
    assert cause.share == pytest.approx(1.0)
    assert cause.half < 1e-3


def test_two_faults_share_it_and_the_rest_is_said_to_be_unexplained(told: Any) -> None:
    faults = frozenset({"attention.mask=none", "refiner.mask=none"})
    made = run(faults)
    alien = [tensor(r.key.site, 0.05 * noise(5000 + i, (1, 64, 48))) for i, r in enumerate(made.records[1:])]
    moved = tuple(
        replace(r, sketch=r.sketch + a.sketch) for r, a in zip(made.records[1:], alien, strict=True)
        if r.sketch is not None and a.sketch is not None
    )  # fmt: skip
    causes, notes = told(StepRecords(0, (made.records[0], *moved)))
    assert names(causes) == ["attention.mask=none", "refiner.mask=none"]
    whole = 0.3**2 + 0.1**2 + 0.05**2
    assert [c.share for c in causes] == pytest.approx([0.09 / whole, 0.01 / whole], abs=0.02)
    assert 0.01 < 1 - sum(c.share for c in causes) < 0.04
    assert any("is unexplained" in n for n in notes)


def test_an_error_that_nobody_knows_is_unknown(told: Any) -> None:
    values = [truth(i) + 0.1 * noise(9000 + i, (1, 64, 48)) for i in range(len(SITES))]
    causes, notes = told(step([tensor(site, x) for site, x in zip(SITES, values, strict=True)]))
    assert causes == []
    # A fault that has nothing of the error is not named as the nearest.
    assert any(n.startswith("unknown: no known fault") and "nearest" not in n for n in notes)


@pytest.mark.parametrize(("common", "own", "named"), [(0.85, 0.53, True), (1.0, 1.4, False), (0.2, 0.98, False)])
def test_setting_that_only_rounds_is_named_by_the_shared_error(
    told: Any, common: float, own: float, named: bool
) -> None:
    fault = "norm_dtype=bfloat16"
    values = [truth(i) + common * error(fault, i) + own * error(fault, i, 7000) for i in range(len(SITES))]
    causes, notes = told(step([tensor(site, x) for site, x in zip(SITES, values, strict=True)]))
    assert names(causes) == ([fault] if named else [])
    assert any(n.startswith("unknown") for n in notes) != named


def test_what_is_only_left_out_is_harmless_and_named(told: Any) -> None:
    (cause,), _ = told(run(frozenset({"vision_states=none"})))
    assert names([cause]) == ["vision_states=none"]
    assert cause.share == 0.0
    assert cause.cause.startswith("harmless")
