"""From judged steps to one verdict: what fails a run, what does not, and what nobody can judge."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from parity.compare.births import Births, Excuse
from parity.compare.conclude import Collected, conclude, recorded_stages, widest_of
from parity.compare.judge import Judge
from parity.compare.result import NAN, Check, Distance, Result, SettingDifference
from parity.records import PADDING, Record, StepRecords
from parity.report.document import Listing
from parity.report.formats import render
from parity.report.formats.json import to_json
from tests.support.made import Walk, moved, noise, none, scalar, tensor, walk_of

FAR = 1e5
X = noise(0)
TEXT = SettingDifference("text.byt5_dtype", "same", "bfloat16")
WEIGHTS = Check("weights", "pass", "equal")


def concluded(*walks: Walk, judge: Judge | None = None, floors: bool = True, **more: Any) -> Result:
    """The verdict over steps, judged one after the other by one judge; it can always be written as JSON."""
    judge, collected = judge or Judge(), Collected()
    for walk in walks:
        reference, candidate = walk.steps()
        reference = reference if floors else StepRecords(reference.step, reference.records)
        collected.add(reference, candidate, judge.step(reference, candidate))
    found = conclude(collected, **{"model": "made", "differing": (), "preflight": (WEIGHTS,), **more})
    assert '"verdict"' in render(Listing(to_json(found), ()), "json")
    return found


def number(port: str, value: float, at: int = 0) -> Record:
    """A number of the loop as the loop records it."""
    return tensor(f"loop:{port}", np.asarray(value), branch="", step=at, held=True)


def whole_step(
    at: int = 0, *, before: float = 0.0, text: float = 0.0, block: float = 0.0, end: float = 0.0, latents: float = 0.0
) -> Walk:
    """A step: text, one block, predictions, latents, each so many floors apart."""
    walk = Walk(at)
    for port, value in (("timestep", 999.0 - at), ("sigma", 1.0 - at / 10), ("dt", -0.1)):
        walk.pair(number(port, value, at), number(port, value, at))
    walk.loop("latents.before", before)
    for branch in ("cond", "uncond"):
        sites = {"text:in.x": 0.0, "text:out": text, "block:in.x": before, "block:out": block}
        for site, floors in sites.items():
            walk.site(site, floors, branch=branch)
    walk.ends(end, latents)
    return walk


def ended(sites: dict[str, float], end: float, latents: float) -> Walk:
    walk = walk_of(sites)
    walk.ends(end, latents)
    return walk


# --- verdicts --------------------------------------------------------------------------------------------------

PASS, EXCUSED = ("pass", None), Judge(Births((Excuse("text"),)))
GROWN = {"a:in.x": 2.5, "a:out": 5.0, "uncond/a:in.x": 2.5, "uncond/a:out": 5.0}
FED = {"text:in.x": 0.0, "text:out": FAR, "block:in.x": 20.0, "block:out": 10.0}
VERDICTS: dict[str, tuple[list[Walk], Judge, tuple[str, str | None]]] = {  # steps, judge, verdict and origin
    "agreement": ([whole_step(0, end=1.0), whole_step(1, end=1.2)], Judge(), PASS),
    "a birth": ([whole_step(block=FAR, end=FAR, latents=FAR)], Judge(), ("fail", "0 cond block:out module")),
    "a birth inside, outputs within their floors": (
        [whole_step(block=50.0, end=1.5, latents=1.5)], Judge(), ("fail", "0 cond block:out module")),
    "growth alone": ([ended(GROWN, 1.0, 1.0)], Judge(), PASS),
    "growth that reaches noise_pred": ([ended(GROWN, 5.0, 1.0)], Judge(), ("fail", "0 cond a:out propagated")),
    "noise_pred alone": ([whole_step(end=FAR)], Judge(), ("fail", "0 cond loop:noise_pred module")),
    "noise_pred alone, later": (
        [whole_step(0), whole_step(1), whole_step(2, end=FAR)], Judge(), ("fail", "2 cond loop:noise_pred module")),
    "latents alone": ([whole_step(latents=FAR)], Judge(), ("fail", "0  loop:latents.after module")),
    "latents alone, later": (
        [whole_step(0), whole_step(1, latents=FAR)], Judge(), ("fail", "1  loop:latents.after module")),
    "latents alone, in rows that nothing reads": (
        [whole_step(latents=FAR), whole_step(1), walk_of({"decode:in.z": 0.5}, -1)], Judge(), PASS),
    "the last latents, beside another decode": (
        [whole_step(), whole_step(1, latents=FAR), walk_of({"decode:in.z": 0.5}, -1)], Judge(),
        ("fail", "1  loop:latents.after module")),
    "latents that are decoded": ([whole_step(latents=FAR), walk_of({"decode:in.z": FAR}, -1)], Judge(),
        ("fail", "0  loop:latents.after module")),
    "latents that are decoded, within a wide floor": (
        [whole_step(latents=20.0), walk_of({"decode:in.z": 2.5}, -1)], Judge(),
        ("fail", "0  loop:latents.after module")),
    "latents that the model is given": (
        [whole_step(latents=FAR), whole_step(1, before=FAR), walk_of({"decode:in.z": 0.5}, -1)], Judge(),
        ("fail", "0  loop:latents.after module")),
    "a birth in a later step only": (
        [whole_step(0), whole_step(1, block=FAR, end=FAR)], Judge(), ("fail", "1 cond block:out module")),
    "several births": (
        [whole_step(text=FAR, block=FAR, end=FAR), whole_step(1, text=FAR)], Judge(),
        ("fail", "0 cond text:out module")),
    # Declared differences.
    "an excused birth within the output floors": ([whole_step(text=FAR)], EXCUSED, PASS),
    "an excused birth that reaches noise_pred": (
        [whole_step(text=FAR, end=FAR, latents=FAR)], EXCUSED, ("fail", "0 cond text:out module")),
    "what an excused birth feeds, within the output floors": ([ended(FED, 1.0, 1.0)], EXCUSED, PASS),
    "an excuse covers no other birth": (
        [whole_step(text=FAR, block=FAR)], EXCUSED, ("fail", "0 cond block:out module")),
}  # fmt: skip


@pytest.mark.parametrize("row", VERDICTS.values(), ids=VERDICTS)
def test_the_verdict_and_its_origin(row: tuple[list[Walk], Judge, tuple[str, str | None]]) -> None:
    walks, judge, (verdict, origin) = row
    found = concluded(*walks, judge=dataclasses.replace(judge), differing=(TEXT,) if judge is EXCUSED else ())
    place = None if found.origin is None else found.origin
    told = place and f"{place.key.step} {place.key.branch} {place.key.site} {place.birth}"
    assert (found.verdict, told) == (verdict, origin)
    assert (found.failed, found.exit_code) == (("logic", 1) if verdict == "fail" else (None, 0))
    assert (found.model, found.preflight) == ("made", (WEIGHTS,))


# --- what could not be compared is not said to match -----------------------------------------------------------


@pytest.mark.parametrize("paired", [True, False])
def test_what_could_not_be_paired_is_not_said_to_match(paired: bool) -> None:
    """An attention whose rows differ, and after it an input that differs."""
    walk = walk_of({"loop:latents.before": 0.0, "block.norm:out": 0.0})
    walk.pair(*(tensor("block.attention:out", np.ones((1, n, 4), np.float32)) for n in (6, 6 if paired else 8)))
    walk.site("block.to_out:in.x", FAR)
    walk.site("block.to_out:out", FAR)
    walk.ends(FAR, FAR)
    result = concluded(walk, judge=Judge(port=True))
    assert result.origin is not None
    assert (result.origin.key.site, result.origin.birth) == ("block.to_out:in.x", "input")
    assert ("block.attention (not compared: shape [1, 6, 4] against [1, 8, 4])" in result.reason) is not paired


@pytest.mark.parametrize(
    ("before", "far", "birth"),
    [(0.0, 4.0, "module"), (0.0, FAR, "module"), (20.0, 500.0, "propagated"), (20.0, FAR, "propagated")],
)
def test_a_block_with_an_unpaired_input_can_be_the_origin(before: float, far: float, birth: str) -> None:
    """What that input may carry is what differs before it: where nothing does, the block is judged as any other."""
    walk = walk_of({"loop:latents.before": 0.0, "embed:out": before, "block:in.image": 0.0})
    walk.pair(*(tensor("block:in.text", np.ones((1, rows, 4), np.float32)) for rows in (6, 8)))
    walk.site("block:out", far)
    walk.ends(FAR, FAR)
    result = concluded(walk, judge=Judge(port=True))
    (block,) = [d for d in result.sites if d.key.site == "block:out"]
    assert (block.verdict, block.birth) == ("fail", birth)
    if birth == "module" and not before:
        assert result.origin is not None
        assert result.origin.key.site == "block:out"
        assert "its input text (not compared: shape" in result.reason


@pytest.mark.parametrize(
    ("timestep", "block", "origin"),
    [(999.0, FAR, "block:out"), (999.0, 0.0, "schedule:timesteps"), (996.0, FAR, "schedule:timesteps")],
)
def test_schedule_is_the_origin_only_if_the_step_read_what_differs(timestep: float, block: float, origin: str) -> None:
    walk, whole = whole_step(block=block, end=FAR, latents=FAR), Walk(0)
    times = np.linspace(999.0, 0.0, 50, dtype=np.float32)
    whole.pair(*(tensor("schedule:timesteps", x, branch="", held=True) for x in (times, times * np.float32(1.01))))
    whole.pair(number("timestep", 999.0), number("timestep", timestep))
    whole.reference, whole.candidate = whole.reference + walk.reference[1:], whole.candidate + walk.candidate[1:]
    found = concluded(whole)
    assert (found.verdict, found.failed) == ("fail", "logic")
    assert found.origin is not None
    assert found.origin.key.site == origin


# --- fail closed -----------------------------------------------------------------------------------------------


def of_pairs(*pairs: tuple[Record | None, Record | None]) -> Walk:
    walk = Walk()
    for pair in pairs:
        walk.pair(*pair)
    return walk


def both(record: Record) -> tuple[Record, Record]:
    return record, record


def spoilt(port: str, bad: float) -> Walk:
    """A step whose reference, and candidate, hold a number that is not finite."""
    walk, x = whole_step(), X.copy()
    x[0, 0, 0] = bad
    new = tensor(f"loop:{port}", x, branch="", held=True)
    walk.reference, walk.candidate = (
        [new if r.key == new.key else r for r in side] for side in (walk.reference, walk.candidate)
    )
    return walk


EMPTY = np.zeros((1, 0, 40), np.float32)
INCONCLUSIVE: dict[str, tuple[list[Walk], str]] = {
    "nothing at all": ([], "nothing was compared"),
    "no common site": ([of_pairs((tensor("a:out", X), None), (None, tensor("b:out", X)))], ""),
    "only None and scalars": ([of_pairs(both(none("a:in.mask")), both(scalar("a:in.eps", 1e-6)))], ""),
    "only padding": ([of_pairs(both(tensor(f"a:out@{PADDING}", X)))], ""),
    "only empty tensors": ([of_pairs(both(tensor("a:out", EMPTY)))], ""),
    "a reference with NaN": ([spoilt("noise_pred", NAN)], "not finite at noise_pred (step 0)"),
    "a reference with infinity": ([spoilt("latents.after", float("inf"))], "latents after the step (step 0)"),
}


@pytest.mark.parametrize("row", INCONCLUSIVE.values(), ids=INCONCLUSIVE)
def test_what_cannot_be_judged_is_inconclusive(row: tuple[list[Walk], str]) -> None:
    walks, word = row
    found = concluded(*walks)
    assert (found.verdict, found.failed, found.exit_code) == ("inconclusive", None, 125)
    assert word in found.reason


def without(side: str, port: str) -> Walk:
    walk = whole_step()
    setattr(walk, side, [r for r in getattr(walk, side) if r.key.site != f"loop:{port}"])
    return walk


@pytest.mark.parametrize(
    ("walk", "floors"),
    [(without(side, port), True) for side in ("reference", "candidate") for port in ("noise_pred", "latents.after")]
    + [(whole_step(block=0.1, end=0.1), False)],
)
def test_a_side_without_outputs_or_floors_never_passes(walk: Walk, floors: bool) -> None:
    assert concluded(walk, floors=floors).verdict != "pass"


def nan_from(site: str) -> Walk:
    """A candidate that is NaN from this site of branch cond on."""
    walk = whole_step()
    first = next(i for i, r in enumerate(walk.candidate) if r.key.site == site)
    bad = np.full((1, 96, 40), NAN)
    for i, r in enumerate(walk.candidate):
        if i >= first and r.key.branch != "uncond":
            walk.candidate[i] = tensor(r.key.site, bad, branch=r.key.branch, held=r.value is not None)
    return walk


@pytest.mark.parametrize(
    ("make", "origin"),
    [
        (lambda: nan_from("block:out"), "block:out"),
        # Not finite is a difference from a finite reference, not the lack of anything to compare.
        (lambda: of_pairs((tensor("a:out", X), tensor("a:out", np.full_like(X, NAN)))), "a:out"),
    ],
)
def test_nan_fails_at_its_first_producer(make: Callable[[], Walk], origin: str) -> None:
    found = concluded(make())
    assert found.verdict == "fail"
    assert found.origin is not None
    assert (found.origin.key.branch, found.origin.key.site) == ("cond", origin)


def test_a_failure_stays_if_the_reference_breaks_later() -> None:
    """At step 0 both were finite and the block was wrong: that stands whatever the reference does at step 1."""
    later = whole_step(1)
    later.reference = [
        tensor(r.key.site, np.full((1, 96, 40), NAN), branch="", step=1, held=True) if r.key.port == "noise_pred" else r
        for r in later.reference
    ]
    assert concluded(whole_step(0, block=FAR, end=FAR, latents=FAR), later).verdict == "fail"


# --- floors that are too wide ----------------------------------------------------------------------------------


def with_floors(times: float) -> Collected:
    """Sides that agree, with floors that are so many times as wide."""
    reference, candidate = ended({"a:out": 0.0}, 0.0, 0.0).steps()
    floors = {key: dataclasses.replace(floor, l2=floor.l2 * times) for key, floor in reference.floors.items()}
    wide = StepRecords(reference.step, reference.records, floors)
    collected = Collected()
    collected.add(wide, candidate, Judge().step(wide, candidate))
    return collected


@pytest.mark.parametrize(
    ("times", "more", "verdict", "word"),
    [
        # A 5 % error would lie within what rounding does.
        (1e5, {}, "inconclusive", "more than 1e-3"),
        (900.0, {}, "pass", ""),
        (1e5, {"failing": "precision", "widest": math.inf}, "pass", ""),  # 16 bits round by that much
        # Goldens in 16 bits: no round in float32 has gone before.
        (1e5, {"failing": "precision", "widest": widest_of("none", "precision")}, "pass", ""),
        (1e7, {"failing": "precision", "widest": widest_of("none", "precision")}, "inconclusive", "more than 1e-1"),
        # A chip's floors may be as wide as a 16-bit network's.
        (5e3, {}, "inconclusive", "more than 1e-3"),
        (5e3, {"widest": widest_of("v6e")}, "pass", ""),
        (1e5, {"widest": widest_of("v6e")}, "inconclusive", "more than 1e-2"),
    ],
)
def test_a_floor_that_hides_much_is_no_floor(times: float, more: dict[str, Any], verdict: str, word: str) -> None:
    found = conclude(with_floors(times), **{"model": "made", "differing": (), "preflight": (), **more})
    assert (found.verdict, word in found.reason) == (verdict, True)


# --- the rest --------------------------------------------------------------------------------------------------


def test_a_later_step_with_a_wide_floor_is_noted() -> None:
    collected = with_floors(1.0)
    (first,) = collected.steps
    collected.steps.append(dataclasses.replace(first, step=1, noise_pred=Distance(0.0, 0.4, 0.0)))
    found = conclude(collected, model="made", differing=(), preflight=())
    assert found.verdict == "pass"
    (note,) = found.notes
    assert "step 1" in note.text
    assert "4.0e-01" in note.text


@pytest.mark.parametrize(
    ("setting", "harmless"), [("vae.scaling_factor", False), ("vae.padding", False), ("transformer.eps", True)]
)
def test_a_decoders_config_is_not_called_harmless_by_what_comes_before_it(setting: str, harmless: bool) -> None:
    differing = [SettingDifference(setting, "1.0", "0.9")]
    (note,) = conclude(with_floors(1.0), model="made", differing=differing, preflight=()).notes
    assert note.text.startswith("harmless") is harmless


def test_a_stage_that_hands_on_what_differed_before_it_is_not_within_its_floors() -> None:
    def staged(records: Iterable[Record]) -> list[Record]:
        return [
            dataclasses.replace(r, key=dataclasses.replace(r.key, stage="vae", step=-1, branch="")) for r in records
        ]

    after = walk_of({"decode:in.z": FAR, "decode:out": FAR, "decode:frames": 0.0}, -1)
    after.reference, after.candidate = staged(after.reference), staged(after.candidate)
    (stage,) = recorded_stages(concluded(ended({"a:out": FAR}, FAR, FAR), after))
    assert stage.verdict == "pass"
    assert "2 of 3 sites differ" in str(stage.reason)
    assert (stage.output, stage.in_chain.ratio) == ("out", pytest.approx(FAR, rel=0.1)), "its worst output"


def test_moved_moves_by_floors() -> None:
    """The tests above rest on it."""
    x = X.astype(np.float64)
    assert np.linalg.norm(moved(x, 3.0) - x) == pytest.approx(3e-6 * np.linalg.norm(x))
