"""Signatures from made records: a fault alone and beside what nobody knows, rounding, absence, NaN."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from parity.causes import match as module
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


def run(*faults: str) -> StepRecords:
    values = [truth(i) + sum(error(f, i) for f in sorted(faults)) for i in range(len(SITES))]
    return step([tensor(site, x) for site, x in zip(SITES, values, strict=True)], frozenset(faults))


def step(records: list[Record], faults: frozenset[str] = frozenset()) -> StepRecords:
    given = [tensor(":in.image_embeds", noise(77))] if "vision_states=none" not in faults else []
    made = [*given, *(replace(r, dtype="float32") for r in records)]
    return StepRecords(0, tuple(made), {r.key: floor_of(r) for r in made})


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`told(candidate)`: the causes and the notes."""
    machine: Any = SimpleNamespace(
        with_fault=lambda fault, *given: run(*filter(None, [fault])),
        facts=None, request=SimpleNamespace(reference=parse("torch"), ports=SimpleNamespace(reference=None)),
    )  # fmt: skip
    monkeypatch.setattr(module, "known_faults", lambda *ignored: iter(KNOWN))

    def call(candidate: StepRecords) -> tuple[list[Cause], list[str]]:
        said = list(module.signatures(replace(evidence(run(), candidate), model=machine)))
        return [x for x in said if isinstance(x, Cause)], [x.text for x in said if isinstance(x, Note)]

    return call


def names(causes: list[Cause]) -> list[str]:
    return [f"{c.setting}={c.candidate}" for c in causes]


def test_one_fault_has_all_of_the_error(told: Any) -> None:
    (cause,), _ = told(run("attention.mask=none"))
    assert names([cause]) == ["attention.mask=none"]
    assert cause.share == pytest.approx(1.0)


@pytest.mark.parametrize(("alien", "share"), [(0.05, 0.84), (0.2, None)])
def test_a_fault_beside_something_else_is_named_with_what_it_explains(
    told: Any, alien: float, share: float | None
) -> None:
    fault = "attention.mask=none"
    values = [truth(i) + error(fault, i) + alien * noise(5000 + i, (1, 64, 48)) for i in range(len(SITES))]
    causes, notes = told(step([tensor(site, x) for site, x in zip(SITES, values, strict=True)]))
    if share is None:  # more than a known fault may leave: it is said to be the nearest
        assert causes == []
        assert any(n.startswith("unknown") and f"the nearest, {fault}" in n for n in notes)
    else:
        assert names(causes) == [fault]
        assert causes[0].share == pytest.approx(share, abs=0.02)
        assert "but for 16" in causes[0].evidence[0].detail


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
