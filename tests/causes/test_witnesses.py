"""Witnesses: asked in order with what was found before; those of a port; fits of an error to known ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parity.bisect.settings import Plan, Swap, plan
from parity.causes import explain as module
from parity.causes.evidence import Evidence
from parity.causes.explain import ExplainRequest, _merged, explain
from parity.causes.request import own_settings
from parity.causes.swaps import _obeyed, swap_test
from parity.compare.independent import in_order
from parity.compare.reason import Distance, Note, Reason
from parity.compare.result import Cause, Origin, Result, SiteDiff, Witness, measured
from parity.errors import UsageError
from parity.paths.worker.process import Workers
from parity.records import Floor, Key, StepRecords
from parity.settings import Settings, parse
from parity.sketch import value_record
from tests.runs.test_spec import PLAIN
from tests.support.made import CANDIDATE, REFERENCE, walk, write


def explained(folder: Path) -> Result:
    """Two goldens that differ, whose reference cannot be run again."""
    both = [walk(step, 1e4).steps() for step in range(2)]
    ours = write(folder / "reference", replace(REFERENCE, backend="torchax"), [a for a, _ in both])
    theirs = write(folder / "candidate", CANDIDATE, [b for _, b in both])
    return explain(ExplainRequest(ours, theirs), Workers(), lambda *told: None)


def test_each_is_asked_with_what_the_others_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Evidence] = []

    def first(asked: Evidence) -> Iterator[Cause | Note]:
        yield measured("the first", detail="seen")
        yield Note("and a note")

    def second(asked: Evidence) -> Iterator[Cause]:
        seen.append(asked)
        return iter(())

    monkeypatch.setattr(module, "WITNESSES", (first, second))
    result = explained(tmp_path)
    assert [c.cause for c in result.causes] == ["the first"]
    assert result.notes[-1].text == "and a note"
    (asked,) = seen
    assert asked.causes == result.causes
    assert (asked.ours.step, asked.theirs.step) == (1, 1)


# --- Witnesses of a port


def cause(setting: str, value: str, share: float, kind: str) -> Cause:
    witness = Witness(kind, share, "")
    return Cause(f"{setting} is {value}", setting, "", value, share, (witness,), harmless=share == 0.0)


def named(causes: Sequence[Cause]) -> list[tuple[str, float]]:
    return [(c.setting, c.share) for c in causes]


def test_signatures_lead_where_a_declared_setting_explains_nothing() -> None:
    """They were found and dropped once a port declared any differing setting."""
    harmless = cause("attention.k_smooth", "true", 0.0, "swap")
    found = cause("attention.mask", "zero_kv", 0.99, "fault")
    assert named(_merged([harmless], [found], [], Key("transformer", 0, "", "attn:out"))) == [
        ("attention.k_smooth", 0.0),
        ("attention.mask", 0.99),
    ]


def test_causes_stand_in_the_order_of_their_differences_and_the_harmless_last() -> None:
    at = [Key("transformer", 0, "", site) for site in ("a:out", "b:out")]
    sites = tuple(SiteDiff(key, Distance(1.0, 1e-6, 1e6), verdict="fail", birth="module") for key in at)
    causes = (cause("rope", "cached", 0.0, "swap"), measured("of b", at="b:out"), measured("of a", at="a:out"))
    why, origin = Reason(kind="first_divergence"), Origin(at[0], "module")
    found = in_order(
        Result("fail", "logic", why, sites=sites, origin=origin, causes=(*causes, measured("of no place")))
    )
    assert [c.cause for c in found.causes] == ["of a", "of no place", "of b", "rope is cached"]


def test_what_the_values_show_is_evidence_for_the_setting_that_takes_all_of_it_back() -> None:
    """They were a second cause of one fault."""
    origin = Key("transformer", 0, "", "attn:out")
    shown = [
        measured("the mask is another's"),
        measured("elsewhere", at="proj:out"),
        measured("rope", "rope", "a", "b"),
    ]
    swap = cause("attention.mask", "none", 1.0, "swap")
    confirmed = replace(swap, evidence=(replace(swap.evidence[0], confirm="parity run"),))
    first, *rest = _merged([confirmed], [], shown, origin)
    assert (len(first.evidence), rest) == (2, shown[1:])
    other = replace(confirmed, setting="rope")
    for several in ([swap], [confirmed, other]):  # something else differs too; either of the two
        assert _merged(several, [], shown, origin) == (*several, *shown)


def masked(settings: Settings) -> StepRecords:
    """A port whose noise_pred depends on its mask alone, and that refuses one value."""
    if settings.text("attention.softmax_dtype") == "float32":
        raise UsageError("port.py:3: ValueError: bfloat16 alone")
    x = np.full(3, 1.0 if settings.text("attention.mask") == "none" else 2.0, np.float32)
    return StepRecords(0, (value_record(Key("transformer", 0, "", "loop:noise_pred"), x, "float32"),))


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
    left = _obeyed(plan, masked(plan.candidate), masked, notes)
    assert [s.setting for s in left.swaps] == ["attention.mask"]
    assert notes == [
        "attention.k_smooth is not obeyed: the port computes the same to the bit with attention.k_smooth=false",
        "attention.softmax_dtype=float32 is not tried: the port refuses it: port.py:3: ValueError: bfloat16 alone",
    ]
    assert left.with_only(())["attention.k_smooth"] is True, "what is not tried stays the candidate's own"


# --- Differing settings, each wrong alone and set back


def draw(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(2000) / 45


A, B, C = map(draw, range(3))
GIVEN = ("attention.mask=none", "vision_states=none", "text.reorder=concatenate")
PLAN = plan(parse("torch"), parse("torchax", GIVEN))
Error = Callable[[bool, bool, bool], np.ndarray]


KEY = Key("transformer", 0, "", "loop:noise_pred")


def output(x: np.ndarray) -> StepRecords:
    return StepRecords(0, (value_record(KEY, x.astype(np.float32), "float32"),), {KEY: Floor(1e-5)})


TRUTH = np.eye(1, A.size)[0]


def runner(error: Error) -> Callable[[Settings], StepRecords]:
    """A candidate whose error depends on which of the three settings it has wrong."""
    return lambda settings: output(TRUTH + error(*(settings.changed(g.partition("=")[0]) for g in GIVEN)))


@pytest.mark.parametrize(
    ("error", "expected", "left"),
    [  # what goes with the mask, the vision states and the order set back; None is harmless
        # Confounded: with the dropped mask the vision states change the error; alone they change nothing.
        (lambda m, v, r: m * A + (m and v) * 0.3 * B + v * 1e-6 * C, (1.0, None, None), 0.0),
        (lambda m, v, r: 3.0 * m * A + v * B, (0.68, 0.05, None), 0.0),
        (lambda m, v, r: (v and r) * A, (None, 1.0, 1.0), 0.0),  # two that act only together
        (lambda m, v, r: m * A + 5.0 * r * B, (0.02, None, 0.8), 0.0),
        (lambda m, v, r: m * A + 2.0 * C, (0.11, None, None), 0.89),  # something else is wrong too
        (lambda m, v, r: m * (A + B) - r * B, (0.0, None, 0.0), 0.0),  # one hides a part of the other
    ],
)
def test_differing_settings_are_set_back(error: Error, expected: tuple[float | None, ...], left: float) -> None:
    told = list(swap_test(PLAN, output(TRUTH), (KEY,), runner(error), PLAIN.with_settings(candidate=GIVEN)))
    causes = {c.setting: c for c in told if isinstance(c, Cause)}
    assert [c.harmless for c in causes.values()] == sorted(c.harmless for c in causes.values())
    for given_, gone in zip(GIVEN, expected, strict=True):
        got = causes[given_.partition("=")[0]]
        assert (got.share, got.harmless) == (pytest.approx(gone or 0.0, abs=0.02), gone is None)
    notes = [t.text for t in told if isinstance(t, Note)]
    assert [float(text.rpartition("%")[0].rpartition(" ")[2]) for text in notes] == pytest.approx(
        [100 * left] if left else [], abs=2
    )
    # The command that confirms sets all back that do harm, or it would not pass; where something is left nothing would.
    commands = {c.confirm for c in causes.values() if not c.harmless}
    wrong = [g.partition("=")[0] for g, gone in zip(GIVEN, expected, strict=True) if gone is not None]
    assert len(commands) == 1
    assert all((f"-c {name}=" in command) == (not left) for command in commands for name in wrong)
