"""Witnesses: asked in order with what was found before; those of a port; fits of an error to known ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parity.bisect.swaps import Plan, Swap, plan
from parity.causes import witness as registry
from parity.causes.evidence import Evidence
from parity.causes.explain import ExplainRequest, _merged, explain
from parity.causes.gauges import measured
from parity.causes.regress import search
from parity.causes.request import own_settings
from parity.causes.shares import shares
from parity.causes.witness import witness, witnesses
from parity.causes.witnesses.counterfactuals import _obeyed
from parity.compare.reason import Note
from parity.compare.result import Cause, Result, Witness
from parity.errors import UsageError
from parity.paths.worker.openers import Workers
from parity.records import Key, StepRecords
from parity.settings import Settings, parse
from parity.sketch import value_record
from tests.support.made import CANDIDATE, REFERENCE, walk, write


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    kept = {w.name: w for w in witnesses()}
    monkeypatch.setattr(registry, "_REGISTERED", kept)


def explained(folder: Path) -> Result:
    """Two goldens that differ, whose reference cannot be run again."""
    both = [walk(step, 1e4).steps() for step in range(2)]
    ours = write(folder / "reference", replace(REFERENCE, backend="torchax"), [a for a, _ in both])
    theirs = write(folder / "candidate", CANDIDATE, [b for _, b in both])
    return explain(ExplainRequest(ours, theirs), Workers(), lambda *told: None)


@pytest.mark.usefixtures("registered")
def test_one_that_is_registered_is_asked_with_what_the_others_found(tmp_path: Path) -> None:
    seen: list[Evidence] = []

    @witness("a_first")
    def first(asked: Evidence) -> Iterator[Cause | Note]:
        yield measured("the first", 1.0, "seen")
        yield Note("and a note")

    @witness("b_second")
    def second(asked: Evidence) -> Iterator[Cause]:
        seen.append(asked)
        return iter(())

    result = explained(tmp_path)
    assert [c.cause for c in result.causes] == ["the first"]
    assert result.notes[-1].text == "and a note"
    (asked,) = seen
    assert asked.causes == result.causes
    assert (asked.step, asked.ours.step, asked.theirs.step) == (1, 1, 1)


# --- Witnesses of a port


def cause(setting: str, value: str, share: float, kind: str) -> Cause:
    return Cause(f"{setting} is {value}", setting, "", value, share, (Witness(kind, share, ""),), 0.0)  # type: ignore[arg-type]


def named(causes: list[Cause]) -> list[tuple[str, float]]:
    return [(c.setting, c.share) for c in causes]


def test_signatures_lead_where_a_declared_setting_explains_nothing() -> None:
    """They were found and dropped once a port declared any differing setting."""
    harmless = cause("attention.k_smooth", "true", 0.0, "swap")
    found = cause("attention.mask", "zero_kv", 0.99, "fault")
    assert named(_merged([harmless], [found])) == [("attention.mask", 0.99), ("attention.k_smooth", 0.0)]


class Machine:
    """A port whose noise_pred depends on its mask alone, and that refuses one value."""

    def again(self, settings: Settings, step: int) -> StepRecords:
        if settings.text("attention.softmax_dtype") == "float32":
            raise UsageError("port.py:3: ValueError: bfloat16 alone")
        x = np.full(3, 1.0 if settings.text("attention.mask") == "none" else 2.0, np.float32)
        return StepRecords(step, (value_record(Key("transformer", step, "", "loop:noise_pred"), x, "float32"),))

    candidate = again


@pytest.mark.parametrize(
    ("backend", "settings", "again"),
    [
        ("torchax", {}, "torchax"),
        ("torch", {"device": "cpu"}, "torch"),  # of a device of torch's
        ("torch", {}, None),  # a reference in the candidate's place
        ("torchax", {"scheduler.shift": "5.0"}, None),  # a script
    ],
)
def test_what_parity_s_own_path_recorded_can_be_run_again(
    backend: str, settings: dict[str, str], again: str | None
) -> None:
    found = own_settings(replace(CANDIDATE, backend=backend, settings=settings), "torchax")
    assert (found and found.backend) == again


def test_a_swap_that_is_not_obeyed_or_refused_costs_itself_alone() -> None:
    given = ["attention.mask=none", "attention.k_smooth=true", "attention.softmax_dtype=bfloat16"]
    swaps = (
        Swap("attention.mask", "exact", "none"),
        Swap("attention.k_smooth", "false", "true"),
        Swap("attention.softmax_dtype", "float32", "bfloat16"),
    )
    plan = Plan(candidate=parse("torchax", given), swaps=swaps, kept=())
    notes: list[str] = []
    machine: Any = Machine()
    left = _obeyed(machine, plan, 0, notes)
    assert [s.setting for s in left.swaps] == ["attention.mask"]
    assert notes == [
        "attention.k_smooth is not obeyed: the port computes the same to the bit with attention.k_smooth=false",
        "attention.softmax_dtype=float32 is not tried: the port refuses it: port.py:3: ValueError: bfloat16 alone",
    ]
    assert left.with_only(())["attention.k_smooth"] is True, "what is not tried stays the candidate's own"


# --- Fits of an error to known ones


def draw(seed: int, size: int = 4096) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size)


# --- a search among known errors -------------------------------------------------------------------------------

FAULTS = {f"s{i}=x": draw(10 + i) for i in range(8)} | {"s0=y": draw(50), "quiet=x": np.zeros(4096)}
# They share a part in which they cancel, so that each alone leaves nearly all.
CANCEL = {"p=x": draw(1) + 0.9 * draw(3), "q=x": draw(2) - 0.9 * draw(3), "r=x": draw(4)}


def joint(names: frozenset[str]) -> np.ndarray:
    """Errors that do not simply add up; the quiet one counts only with `s1=x`."""
    out = sum((({**FAULTS, **CANCEL})[n] for n in names), np.zeros(4096))
    if {"quiet=x", "s1=x"} <= names:
        out = out + 0.5 * draw(99)
    if len(names - {"quiet=x"}) > 1 and not names & CANCEL.keys():
        out = out + 0.2 * draw(98)
    return out


@pytest.mark.parametrize(
    ("names", "faults"),
    [({"s3=x"}, FAULTS), ({"s0=y"}, FAULTS), ({"s2=x", "s5=x"}, FAULTS), ({"s1=x", "quiet=x"}, FAULTS),
     ({"s1=x", "s6=x", "s7=x"}, FAULTS), ({"p=x", "q=x"}, CANCEL)],
)  # fmt: skip
def test_the_faults_of_a_run_are_named(names: set[str], faults: dict[str, np.ndarray]) -> None:
    found = search(joint(frozenset(names)) + 1e-3 / 64 * draw(5), faults, joint, 1e-3)
    assert set(found.names) == names
    assert found.residual < 1e-3


def test_an_unknown_error_and_faults_that_cannot_be_run_are_not_named() -> None:
    found = search(draw(77), FAULTS, joint, 1e-3)
    assert (found.names, found.residual) == ((), pytest.approx(1.0))
    found = search(joint(frozenset({"s2=x", "s5=x"})), FAULTS, lambda names: None, 1e-3)
    assert len(found.names) <= 1


# --- the shares of differing settings --------------------------------------------------------------------------

A, B, C = (draw(i, 2000) / 45 for i in range(3))
GIVEN = ("attention.mask=none", "vision_states=none", "text.reorder=concatenate")
PLAN = plan(parse("torch"), parse("torchax", GIVEN))
Error = Callable[[bool, bool, bool], np.ndarray]


def runner(error: Error) -> Callable[[Settings], np.ndarray]:
    """A candidate whose error depends on which of the three settings it has wrong."""
    return lambda settings: error(*(settings.changed(g.partition("=")[0]) for g in GIVEN))


@pytest.mark.parametrize(
    ("error", "expected"),
    [  # shares of the mask, the vision states and the order; None is harmless
        # Confounded: with the dropped mask the vision states change the error; alone they change nothing.
        (lambda m, v, r: m * A + (m and v) * 0.3 * B + v * 1e-6 * C, (1.0, None, None)),
        (lambda m, v, r: 3.0 * m * A + v * B, (0.9, 0.1, None)),
        (lambda m, v, r: (v and r) * A, (None, 0.5, 0.5)),  # two that act only together
        (lambda m, v, r: m * A + 5.0 * r * B, (1 / 26, None, 25 / 26)),
    ],
)
def test_differing_settings_have_their_shares(error: Error, expected: tuple[float | None, ...]) -> None:
    found = shares(PLAN, runner(error), 1e-5)
    assert [s.share for s in found] == sorted((s.share for s in found), reverse=True)
    by_name = {s.swap.setting: s for s in found}
    for given_, share in zip(GIVEN, expected, strict=True):
        got = by_name[given_.partition("=")[0]]
        assert (got.share, got.harmless) == (pytest.approx(share or 0.0, abs=0.02), share is None)
