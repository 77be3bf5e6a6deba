"""From judged steps to one verdict: what fails a run, what does not, and what nobody can judge."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from parity.compare.collected import Collected
from parity.compare.conclude import conclude, recorded_stages, widest_of
from parity.compare.judge import Judge
from parity.compare.reason import Note
from parity.compare.result import Check, Distance, Result, SettingDifference
from parity.golden import PADDING, Record, StepRecords
from parity.report.card import card
from parity.report.formats.json import dumps
from parity.report.result_json import to_json
from tests.support.made import Walk, moved, noise, none, scalar, tensor

FAR = 1e5
NAN = float("nan")


def concluded(
    *walks: Walk,
    excuses: tuple[str, ...] = (),
    differing: tuple[SettingDifference, ...] = (),
) -> Result:
    """The verdict over steps, judged one after the other by one judge."""
    judge, collected = Judge(excuses=excuses), Collected()
    for walk in walks:
        reference, candidate = walk.steps()
        collected.add(reference, candidate, judge.step(reference, candidate))
    return conclude(collected, model="made", differing=differing, preflight=(Check("weights", "pass", "equal"),))


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
        walk.site("text:in.x", branch=branch)
        walk.site("text:out", text, branch=branch)
        walk.site("block:in.x", before, branch=branch)
        walk.site("block:out", block, branch=branch)
    walk.ends(end, latents)
    return walk


@pytest.mark.parametrize(
    ("linf", "bins", "said"),
    [(7.0, (1.0,), "2.0x the rounding floor; its largest element 7x"), (NAN, (1.0, 8.0), "one part of its rows 8x")],
)
def test_the_reason_says_what_is_beyond_where_the_norm_is_not(linf: float, bins: tuple[float, ...], said: str) -> None:
    collected = Collected()
    reference, candidate = whole_step(block=2.0).steps()
    sites = [
        dataclasses.replace(
            d, distance=Distance(2e-6, 1e-6, 2.0), linf_ratio=linf, bins=bins, birth="module", verdict="fail"
        )
        if d.key.site == "block:out"
        else d
        for d in Judge().step(reference, candidate)
    ]
    collected.add(reference, candidate, sites)
    assert said in conclude(collected, model="made", differing=(), preflight=()).reason


def test_agreement_passes_with_its_numbers() -> None:
    found = concluded(whole_step(0, end=1.0), whole_step(1, end=1.2))
    assert (found.verdict, found.failed, found.origin, found.exit_code) == ("pass", None, None, 0)
    assert found.model == "made"
    assert found.preflight == (Check("weights", "pass", "equal"),)
    assert "1.20e-06" in found.reason  # the worst noise_pred
    assert len(found.sites) == 2 * (3 + 1 + 8 + 4)


def test_steps_hold_the_loops_values_of_both_sides() -> None:
    walk = whole_step(3, before=0.5, end=1.0, latents=2.0)
    walk.candidate = [number("timestep", 1000.0, 3) if r.key.site == "loop:timestep" else r for r in walk.candidate]
    (step,) = concluded(walk).steps
    assert step.step == 3
    assert step.timestep == (996.0, 1000.0)
    assert step.sigma == (0.7, 0.7)
    assert step.dt == (-0.1, -0.1)
    assert step.noise_pred.ratio == pytest.approx(1.0, rel=1e-3)
    assert step.latents.ratio == pytest.approx(2.0, rel=1e-3)
    assert step.latents_before.ratio == pytest.approx(0.5, rel=1e-3)
    assert set(step.branches) == {"cond", "uncond"}
    assert step.branches["cond"].ratio == pytest.approx(1.0, rel=1e-3)


def test_a_birth_fails_and_is_the_origin() -> None:
    found = concluded(whole_step(block=FAR, end=FAR, latents=FAR))
    assert (found.verdict, found.failed, found.exit_code) == ("fail", "structure", 1)
    assert found.origin is not None
    assert (found.origin.key.branch, found.origin.key.site, found.origin.birth) == ("cond", "block:out", "module")
    assert "block output (step 0, cond)" in found.reason
    assert "inputs match, output differs by" in found.reason


def test_a_birth_inside_fails_although_noise_pred_is_within_its_floor() -> None:
    found = concluded(whole_step(block=50.0, end=1.5, latents=1.5))
    assert (found.verdict, found.failed) == ("fail", "structure")
    assert found.origin is not None
    assert found.origin.key.site == "block:out"
    assert "noise_pred and latents still match" in found.reason


def test_growth_alone_passes_with_a_note() -> None:
    walk = Walk()
    walk.site("a:in.x", 2.5)
    walk.site("a:out", 5.0)
    walk.ends(1.0, 1.0)
    found = concluded(walk)
    assert (found.verdict, found.exit_code, found.origin) == ("pass", 0, None)
    assert any("1 sites are beyond their floors by growth alone" in note.text for note in found.notes)


def test_growth_that_reaches_noise_pred_fails() -> None:
    walk = Walk()
    for branch in ("cond", "uncond"):
        walk.site("a:in.x", 2.5, branch=branch)
        walk.site("a:out", 5.0, branch=branch)
    walk.ends(5.0, 1.0)
    found = concluded(walk)
    assert found.verdict == "fail"
    assert found.origin is not None
    assert (found.origin.key.site, found.origin.birth) == ("a:out", "amplified")


@pytest.mark.parametrize("port", ["noise_pred", "latents.after"])
@pytest.mark.parametrize("at", [0, 2])
def test_noise_pred_and_latents_beyond_their_floors_fail_at_any_step(port: str, at: int) -> None:
    walks = [whole_step(i) for i in range(3)]
    late = {"noise_pred": {"end": FAR}, "latents.after": {"latents": FAR}}[port]
    walks[at] = whole_step(at, **late)
    found = concluded(*walks)
    assert found.verdict == "fail"
    assert found.origin is not None
    assert (found.origin.key.step, found.origin.key.port) == (at, port)


def test_a_birth_only_in_a_later_step_is_the_origin() -> None:
    found = concluded(whole_step(0), whole_step(1), whole_step(2, block=FAR, end=FAR, latents=FAR))
    assert found.verdict == "fail"
    assert found.origin is not None
    assert (found.origin.key.step, found.origin.key.site) == (2, "block:out")


def test_the_origin_is_the_first_of_several_births() -> None:
    found = concluded(whole_step(text=FAR, block=FAR, end=FAR), whole_step(1, text=FAR))
    assert found.origin is not None
    assert (found.origin.key.step, found.origin.key.branch, found.origin.key.site) == (0, "cond", "text:out")


@pytest.mark.parametrize("paired", [True, False])
def test_what_could_not_be_paired_is_not_said_to_match(paired: bool) -> None:
    """An attention whose rows are others on both sides, and after it an input that differs."""
    walk = Walk(0)
    walk.loop("latents.before", 0.0)
    walk.site("block.norm:out")
    shapes = [np.ones((1, rows, 4), np.float32) for rows in (6, 6 if paired else 8)]
    walk.pair(*(tensor("block.attention:out", x) for x in shapes))
    walk.site("block.to_out:in.x", FAR)
    walk.site("block.to_out:out", FAR)
    walk.ends(FAR, FAR)
    reference, candidate = walk.steps()
    collected = Collected()
    collected.add(reference, candidate, Judge(strict_sites=False).step(reference, candidate))
    result = conclude(collected, model="made", differing=(), preflight=())
    assert result.origin is not None
    assert (result.origin.key.site, result.origin.birth) == ("block.to_out:in.x", "input")
    matching = "everything before it matches, this input"
    apart = "everything before it but for block.attention (not compared) matches, this input"
    assert (matching if paired else apart) in result.reason
    told = dict(card(result).rows)["first divergence"]
    assert ("its producer matches" if paired else "where not all could be compared (block.attention)") in told


@pytest.mark.parametrize(("far", "birth"), [(20.0, "amplified"), (FAR, "module")])
def test_a_block_with_an_input_that_could_not_be_paired_can_be_the_origin(far: float, birth: str) -> None:
    """Nothing is known of that input: it might be beyond its limit, and only what is far beyond that is a birth."""
    walk = Walk(0)
    walk.loop("latents.before", 0.0)
    walk.site("block:in.image")
    walk.pair(*(tensor("block:in.text", np.ones((1, rows, 4), np.float32)) for rows in (6, 8)))
    walk.site("block:out", far)
    walk.ends(FAR, FAR)
    reference, candidate = walk.steps()
    judge = Judge(strict_sites=False)
    (block,) = [d for d in judge.step(reference, candidate) if d.key.site == "block:out"]
    assert (block.verdict, block.birth) == ("fail", birth)
    collected = Collected()
    collected.add(reference, candidate, Judge(strict_sites=False).step(reference, candidate))
    result = conclude(collected, model="made", differing=(), preflight=())
    if birth == "module":
        assert result.origin is not None
        assert result.origin.key.site == "block:out"
        assert "inputs match but for its input text (not compared), output differs" in result.reason


@pytest.mark.parametrize(("timestep", "block", "origin"), [
    (999.0, FAR, "block:out"), (999.0, 0.0, "schedule:timesteps"), (996.0, FAR, "schedule:timesteps"),
])  # fmt: skip
def test_a_schedule_is_the_origin_only_where_the_step_had_read_what_differs(
    timestep: float, block: float, origin: str
) -> None:
    walk, whole = whole_step(block=block, end=FAR, latents=FAR), Walk(0)
    times = np.linspace(999.0, 0.0, 50, dtype=np.float32)
    schedules = (tensor("schedule:timesteps", x, branch="", held=True) for x in (times, times * np.float32(1.01)))
    whole.pair(*schedules)
    whole.pair(number("timestep", 999.0), number("timestep", timestep))
    whole.reference, whole.candidate = whole.reference + walk.reference[1:], whole.candidate + walk.candidate[1:]
    found = concluded(whole)
    assert (found.verdict, found.failed) == ("fail", "structure")
    assert found.origin is not None
    assert found.origin.key.site == origin


# --- declared differences --------------------------------------------------------------------------------------

TEXT = SettingDifference("text.byt5_dtype", "same", "bfloat16")


def test_an_excused_difference_within_the_output_floors_is_harmless_and_listed() -> None:
    found = concluded(whole_step(text=FAR), excuses=("text",), differing=(TEXT,))
    assert (found.verdict, found.exit_code) == ("pass", 0)
    assert found.differing_settings == (TEXT,)
    assert any("harmless: text.byt5_dtype differs (same against bfloat16)" in note.text for note in found.notes)
    assert {d.verdict for d in found.sites if d.key.site == "text:out"} == {"harmless"}


def test_an_excused_difference_that_reaches_noise_pred_fails_and_is_the_origin() -> None:
    """Whatever explains it: but the reader must be led to the setting, not to what was fed its result."""
    found = concluded(whole_step(text=FAR, end=FAR, latents=FAR), excuses=("text",), differing=(TEXT,))
    assert found.verdict == "fail"
    assert found.origin is not None
    assert (found.origin.key.site, found.origin.birth) == ("text:out", "module")


def test_what_an_excused_difference_feeds_does_not_fail_a_run_within_its_output_floors() -> None:
    walk = Walk()
    walk.site("text:in.x")
    walk.site("text:out", FAR)
    walk.site("block:in.x", 20.0)
    walk.site("block:out", 10.0)
    walk.ends(1.0, 1.0)
    found = concluded(walk, excuses=("text",), differing=(TEXT,))
    assert found.verdict == "pass"


def test_an_excuse_covers_no_other_birth() -> None:
    found = concluded(whole_step(text=FAR, block=FAR), excuses=("text",), differing=(TEXT,))
    assert found.verdict == "fail"
    assert found.origin is not None
    assert found.origin.key.site == "block:out"


# --- fail closed -----------------------------------------------------------------------------------------------


def test_nothing_at_all_is_unjudged() -> None:
    found = conclude(Collected(), model="made", differing=(), preflight=())
    assert (found.verdict, found.failed, found.exit_code) == ("unjudged", None, 125)
    assert "nothing was compared" in found.reason


def test_no_common_site_is_unjudged() -> None:
    walk = Walk()
    walk.pair(tensor("a:out", noise(0)), None)
    walk.pair(None, tensor("b:out", noise(0)))
    assert concluded(walk).verdict == "unjudged"


def test_only_none_and_scalars_in_common_is_unjudged() -> None:
    walk = Walk()
    walk.pair(none("a:in.mask"), none("a:in.mask"))
    walk.pair(scalar("a:in.eps", 1e-6), scalar("a:in.eps", 1e-6))
    assert concluded(walk).verdict == "unjudged"


def test_only_padding_in_common_is_unjudged() -> None:
    walk = Walk()
    walk.pair(tensor(f"a:out@{PADDING}", noise(0)), tensor(f"a:out@{PADDING}", noise(0)))
    assert concluded(walk).verdict == "unjudged"


def test_only_tensors_without_an_element_in_common_is_unjudged() -> None:
    walk = Walk()
    empty = np.zeros((1, 0, 40), np.float32)
    walk.pair(tensor("a:out", empty), tensor("a:out", empty))
    assert concluded(walk).verdict == "unjudged"


@pytest.mark.parametrize("bad", [NAN, float("inf")])
@pytest.mark.parametrize("port", ["noise_pred", "latents.after"])
def test_a_reference_that_is_not_finite_is_unjudged(bad: float, port: str) -> None:
    walk = whole_step()
    x = noise(0)
    broken = x.copy()
    broken[0, 0, 0] = bad

    def replaced(records: list[Record], y: np.ndarray) -> list[Record]:
        new = tensor(f"loop:{port}", y, branch="", held=True)
        return [new if r.key == new.key else r for r in records]

    walk.reference = replaced(walk.reference, broken)
    walk.candidate = replaced(walk.candidate, broken)
    found = concluded(walk)
    assert (found.verdict, found.exit_code) == ("unjudged", 125)
    assert f"loop:{port}" in found.reason


def test_a_candidate_that_is_nan_fails_at_its_first_producer() -> None:
    walk = whole_step()
    first = next(i for i, r in enumerate(walk.candidate) if r.key.site == "block:out")
    for i, r in enumerate(walk.candidate):
        if i >= first and r.key.branch != "uncond":
            walk.candidate[i] = tensor(
                r.key.site, np.full((1, 96, 40), NAN), branch=r.key.branch, held=r.value is not None
            )
    found = concluded(walk)
    assert found.verdict == "fail"
    assert found.origin is not None
    assert (found.origin.key.branch, found.origin.key.site, found.origin.birth) == ("cond", "block:out", "module")
    (step,) = found.steps
    assert math.isnan(step.noise_pred.rel_l2)


def test_a_candidate_that_is_nan_wherever_it_can_be_compared_fails() -> None:
    """Not finite is a difference from a finite reference, not the lack of anything to compare."""
    walk = Walk()
    x = noise(0)
    walk.pair(tensor("a:out", x), tensor("a:out", np.full_like(x, NAN)))
    found = concluded(walk)
    assert found.verdict == "fail"
    assert found.origin is not None
    assert found.origin.key.site == "a:out"


def test_a_failure_is_not_unsaid_by_a_reference_that_breaks_later() -> None:
    """At step 0 both were finite and the block was wrong: that stands whatever the reference does at step 1."""
    later = whole_step(1)
    later.reference = [
        tensor(r.key.site, np.full((1, 96, 40), NAN), branch="", step=1, held=True) if r.key.port == "noise_pred" else r
        for r in later.reference
    ]
    found = concluded(whole_step(0, block=FAR, end=FAR, latents=FAR), later)
    assert found.verdict == "fail"


@pytest.mark.parametrize("side", ["reference", "candidate"])
@pytest.mark.parametrize("port", ["noise_pred", "latents.after"])
def test_a_side_without_its_outputs_never_passes(side: str, port: str) -> None:
    walk = whole_step()
    records = getattr(walk, side)
    setattr(walk, side, [r for r in records if r.key.site != f"loop:{port}"])
    assert concluded(walk).verdict != "pass"


def test_none_against_a_tensor_fails() -> None:
    walk = whole_step()
    walk.pair(none("other:in.mask"), tensor("other:in.mask", noise(0)))
    found = concluded(walk)
    assert found.verdict == "fail"
    assert found.origin is not None
    assert found.origin.key.site == "other:in.mask"
    assert "None against a tensor" in found.reason


def test_without_floors_a_difference_never_passes() -> None:
    walk = whole_step(block=0.1, end=0.1)
    judge, collected = Judge(), Collected()
    reference, candidate = StepRecords(0, tuple(walk.reference)), StepRecords(0, tuple(walk.candidate))
    collected.add(reference, candidate, judge.step(reference, candidate))
    assert conclude(collected, model="made", differing=(), preflight=()).verdict != "pass"


def test_padding_alone_apart_passes() -> None:
    walk = whole_step()
    walk.pair(
        tensor(f"block:out@{PADDING}", noise(0)), tensor(f"block:out@{PADDING}", np.full((1, 96, 40), NAN, np.float32))
    )
    found = concluded(walk)
    assert found.verdict == "pass"
    assert {d.verdict for d in found.sites if PADDING in d.key.site} == {"apart"}


# --- what the report reads -------------------------------------------------------------------------------------


def test_every_verdict_can_be_written_as_json() -> None:
    broken = whole_step()
    broken.candidate = [
        dataclasses.replace(r, key=r.key) if r.key.module == "loop" else tensor("x:out", moved(noise(0), FAR))
        for r in broken.candidate
    ]
    for found in (
        concluded(whole_step()),
        concluded(broken),
        conclude(Collected(), model="", differing=(), preflight=()),
    ):
        assert '"verdict"' in dumps(to_json(found))


@pytest.mark.parametrize("failing", ["structure", "precision"])
def test_the_round_that_fails_is_named(failing: str) -> None:
    walk = whole_step(block=FAR, end=FAR)
    judge, collected = Judge(), Collected()
    reference, candidate = walk.steps()
    collected.add(reference, candidate, judge.step(reference, candidate))
    found = conclude(collected, model="made", differing=(), preflight=(), failing=failing)  # type: ignore[arg-type]
    assert found.failed == failing


def test_notes_are_kept() -> None:
    for walk in (whole_step(), whole_step(block=FAR)):
        judge, collected = Judge(), Collected()
        reference, candidate = walk.steps()
        collected.add(reference, candidate, judge.step(reference, candidate))
        found = conclude(collected, model="made", differing=(), preflight=(), notes=(Note("said before"),))
        assert Note("said before") in found.notes


def with_floors(times: float) -> Collected:
    """Sides that agree, with floors that are so many times as wide."""
    walk = Walk()
    walk.site("a:out")
    walk.ends()
    reference, candidate = walk.steps()
    floors = {key: dataclasses.replace(floor, l2=floor.l2 * times) for key, floor in reference.floors.items()}
    wide = StepRecords(reference.step, reference.records, floors)
    collected = Collected()
    collected.add(wide, candidate, Judge().step(wide, candidate))
    return collected


def test_a_floor_that_hides_percents_is_no_floor() -> None:
    """Timesteps a thousand times too large: a 5 % error would lie within what rounding does."""
    collected = with_floors(1e5)
    result = conclude(collected, model="made", differing=(), preflight=())
    assert (result.verdict, result.exit_code) == ("unjudged", 125)
    assert "more than 1e-3: no floor to judge by; it begins at" in result.reason
    as_given = conclude(collected, model="made", differing=(), preflight=(), failing="precision")
    assert as_given.verdict == "pass"  # 16 bits round by that much


def test_a_later_step_whose_floor_hides_much_is_told() -> None:
    """Its timestep is rounded, the first one's is a whole number: the first step alone was judged closely."""
    collected = with_floors(1.0)
    (first,) = collected.steps
    blurred = dataclasses.replace(first, step=1, noise_pred=Distance(0.0, 0.4, 0.0))
    collected.steps.append(blurred)
    found = conclude(collected, model="made", differing=(), preflight=())
    assert found.verdict == "pass"
    assert [note.text for note in found.notes] == [
        "from step 1 on rounding alone moves noise_pred by up to 4.0e-01: a smaller fault is not seen there"
    ]


@pytest.mark.parametrize(("setting", "harmless"), [("vae.scaling_factor", False), ("transformer.eps", True)])
def test_a_decoders_config_is_not_called_harmless_by_what_comes_before_it(setting: str, harmless: bool) -> None:
    differing = [SettingDifference(setting, "1.0", "0.9")]
    found = conclude(with_floors(1.0), model="made", differing=differing, preflight=())
    (note,) = found.notes
    assert note.text.startswith("harmless") is harmless
    assert harmless or "noise_pred and latents do not depend on it" in note.text


@pytest.mark.parametrize(("times", "verdict"), [(1e5, "pass"), (1e7, "unjudged")])
def test_goldens_in_16_bits_may_have_floors_of_a_tenth(times: float, verdict: str) -> None:
    """No round in float32 has gone before: what is wrong by less than the floor, nobody else would say."""
    collected = with_floors(times)
    limit = widest_of("none", "precision")
    result = conclude(collected, model="made", differing=(), preflight=(), failing="precision", widest=limit)
    assert result.verdict == verdict
    if verdict == "unjudged":
        assert "more than 1e-1: no floor to judge by" in result.reason
        assert result.reason.endswith("record both sides in float32 too")


@pytest.mark.parametrize(("times", "verdict"), [(5e3, "pass"), (1e5, "unjudged")])
def test_a_chips_floors_may_be_as_wide_as_a_16_bit_networks(times: float, verdict: str) -> None:
    collected = with_floors(times)
    assert conclude(collected, model="made", differing=(), preflight=()).verdict == "unjudged"
    result = conclude(collected, model="made", differing=(), preflight=(), widest=widest_of("v6e"))
    assert result.verdict == verdict
    assert verdict == "pass" or "more than 1e-2" in result.reason


def test_a_stage_that_hands_on_what_differs_before_it_is_not_within_its_floors() -> None:
    after = Walk(at=-1)
    for site in ("decode:in.z", "decode:out", "decode:frames"):
        x = noise(len(after.reference)).astype(np.float64)
        floors = 0.0 if site == "decode:frames" else FAR
        pair = (tensor(site, y, branch="", step=-1) for y in (x, moved(x, floors)))
        after.pair(*(dataclasses.replace(r, key=dataclasses.replace(r.key, stage="vae")) for r in pair))
    loop = Walk()
    loop.site("a:out", FAR)
    loop.ends(FAR, FAR)
    (stage,) = recorded_stages(concluded(loop, after))
    assert (stage.verdict, stage.reason) == (
        "pass",
        "vae: 2 of 3 sites differ by what they are given, nothing begins there",
    )


def test_other_weights_leave_no_cause_to_be_found() -> None:
    walk = Walk()
    walk.site("a:out", FAR)
    walk.ends(FAR, FAR)
    result = concluded(walk)
    assert result.has_causes_to_find
    assert not dataclasses.replace(result, failed="preflight").has_causes_to_find
