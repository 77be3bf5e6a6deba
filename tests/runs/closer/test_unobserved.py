"""A compiled port that agrees while it is observed is run once with nothing observed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from parity.compare.result import Result
from parity.golden.records import StepRecords
from parity.paths.plan import Plan
from parity.paths.side import Pair
from parity.runs.closer.unobserved import NOTE, unobserved
from parity.runs.request import Request
from parity.settings import parse
from tests.support.made import because, moved, noise, step, tensor

LATENTS, PREDICTED = noise(1), noise(2)
PASSED = Result("pass", None, because(""))
REQUEST = Request("tiny", parse("torch"), parse("torchax"))


def loop(predicted: np.ndarray) -> StepRecords:
    return step(
        [
            tensor("loop:latents.before", LATENTS, branch="", held=True),
            tensor("blocks.0:out", LATENTS),
            tensor("loop:noise_pred", predicted.astype(np.float32), branch=""),
        ]
    )


def pair(floors: float, *, port: bool = True, compiled: bool = True) -> tuple[Any, list[Plan]]:
    """A pair whose candidate, with nothing observed, is this many floors off."""
    asked: list[Plan] = []

    def observe(plan: Plan, **_: object) -> Iterator[StepRecords]:
        asked.append(plan)
        yield replace(loop(moved(PREDICTED, floors)), floors={})

    facts = SimpleNamespace(compiled=compiled)
    sides = Pair(SimpleNamespace(), SimpleNamespace(observe=observe))
    return SimpleNamespace(port=port, facts=Pair(facts, facts), sides=sides, differing=()), asked


def test_a_program_that_is_wrong_only_where_nothing_is_observed_fails() -> None:
    given, asked = pair(30.0)
    found = unobserved(PASSED, given, loop(PREDICTED), REQUEST, lambda *_: None)
    assert (found.verdict, found.failed) == ("fail", "structure")
    assert found.origin is not None
    assert found.origin.key.site == "loop:noise_pred"
    assert found.notes[-1].text == NOTE
    assert asked == [Plan()]


def test_a_program_that_agrees_leaves_the_result_as_it_is() -> None:
    assert unobserved(PASSED, pair(1.0)[0], loop(PREDICTED), REQUEST, lambda *_: None) is PASSED


@pytest.mark.parametrize(
    ("result", "more"),
    [
        (Result("fail", "structure", because("")), {}),
        (PASSED, {"port": False}),
        (PASSED, {"compiled": False}),
    ],
    ids=["failed already", "parity's own", "eager"],
)
def test_nothing_is_run_again_without_need(result: Result, more: dict[str, bool]) -> None:
    given, asked = pair(30.0, **more)
    assert unobserved(result, given, loop(PREDICTED), REQUEST, lambda *_: None) is result
    assert asked == []
