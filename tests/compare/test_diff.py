"""The diff of two goldens: the verdict of a live run, from what is on disk; and never more than is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parity.compare.diff import Auto, diff
from parity.compare.independent import differences
from parity.compare.judge import Judge
from parity.compare.result import Result
from parity.errors import UsageError
from parity.records import AFTER, FRAMES, PORT, Floor, Key, Provenance, Record, StepRecords
from parity.transforms import bfloat16
from tests.support.made import (
    CANDIDATE,
    REFERENCE,
    Walk,
    moved,
    noise,
    none,
    pair,
    renamed,
    step,
    tensor,
    tensor_record,
    walk,
    walk_of,
    write,
)

FAR = 1e4
SCRIPT = replace(CANDIDATE, backend=PORT)


def diffed(folder: Path, ours: StepRecords | None, theirs: StepRecords | None, **more: Any) -> Result:
    """The diff of two goldens of one step, or of none."""
    reference = write(folder / "a", REFERENCE, [ours] if ours else [])
    return diff(reference, write(folder / "b", more.pop("candidate", CANDIDATE), [theirs] if theirs else [], **more))


def origin(result: Result) -> str:
    return "" if result.origin is None else str(result.origin.key)


def test_within_the_floors_passes(tmp_path: Path) -> None:
    result = diff(*pair(tmp_path))
    assert (result.verdict, result.exit_code, result.failed, result.model) == ("pass", 0, None, "tiny")
    assert [s.step for s in result.steps] == [0, 1]
    assert {c.verdict for c in result.preflight} == {"pass"}


@pytest.mark.parametrize(("dtype", "failed"), [("float32", "logic"), ("bfloat16", "precision")])
def test_a_fault_is_judged_as_in_a_live_run(tmp_path: Path, dtype: str, failed: str) -> None:
    sides = (replace(p, settings={**p.settings, "dtype": dtype}) for p in (REFERENCE, CANDIDATE))
    steps = [walk(step, FAR).steps() for step in (0, 1)]
    result = diff(*(write(tmp_path / dtype / p.side, p, [s[i] for s in steps]) for i, p in enumerate(sides)))
    assert (result.verdict, result.failed, result.exit_code) == ("fail", failed, 1)
    assert origin(result) == "transformer step 1 cond blocks.1:out"
    judge = Judge()
    live = [d for step in (0, 1) for d in judge.step(*walk(step, FAR).steps())]
    assert [(d.key, d.verdict, d.birth, d.distance.ratio) for d in result.sites] == [
        (d.key, d.verdict, d.birth, pytest.approx(d.distance.ratio, rel=1e-6)) for d in live
    ]


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        ("float32", "bfloat16", "inconclusive"),
        ("bfloat16", "float32", "fail"),
        ("bfloat16", "bfloat16", "fail"),
        ("bfloat16", "float16", "fail"),
    ],
)
@pytest.mark.parametrize("far", [FAR, 5e5])
def test_floors_of_a_wider_dtype_judge_no_rounding(
    ours: str, theirs: str, verdict: str, far: float, tmp_path: Path
) -> None:
    reference, candidate = (
        replace(p, settings={**p.settings, "dtype": dtype}) for p, dtype in ((REFERENCE, ours), (CANDIDATE, theirs))
    )
    first, second = walk(1, far).steps()
    found = diff(write(tmp_path / "a", reference, [first]), write(tmp_path / "b", candidate, [second]))
    assert found.verdict == (verdict if far == FAR else "fail"), found.reason  # half of a value is no rounding


@pytest.mark.parametrize(
    ("site", "far", "verdict"),
    [
        ("block:out", 1e4, "inconclusive"),
        ("block:out", 5e5, "fail"),  # half of a value is no rounding
        ("loop:sigma", 1e4, "fail"),  # which no network computes
        ("block:out", 0.0, "pass"),
    ],
)
def test_a_coarser_candidate_fails_where_no_rounding_of_its_dtype_reaches(
    site: str, far: float, verdict: str, tmp_path: Path
) -> None:
    ours, theirs = walk_of({":in.x": 0.0, site: far, "loop:noise_pred": 0.0}).steps()
    candidate = replace(CANDIDATE, settings={**CANDIDATE.settings, "dtype": "bfloat16"})
    found = diff(write(tmp_path / "a", REFERENCE, [ours]), write(tmp_path / "b", candidate, [theirs]))
    assert found.verdict == verdict, found.reason


@pytest.mark.parametrize(
    ("devices", "chip", "dtype", "far", "verdict"),
    [
        (("cpu x 1",), "", "float32", 100.0, "fail"),
        (("TPU v6 lite x 8",), "", "float32", 100.0, "inconclusive"),
        (("TPU v6 lite x 8",), "", "float32", 1e5, "fail"),  # no function is so far off
        (("TPU v6 lite x 8",), "v6e", "float32", 100.0, "fail"),  # its floors hold that already
        (("TPU v6 lite x 8",), "v4", "float32", 100.0, "fail"),  # wider still
        (("TPU v6 lite x 8",), "", "bfloat16", 100.0, "fail"),  # whose rounding is larger
        (("TPU v6 lite x 8",), "a golden may hold anything", "float32", 0.0, "pass"),
    ],
)
def test_floors_that_do_not_allow_for_the_candidates_chip_judge_no_function_of_it(
    devices: tuple[str, ...], chip: str, dtype: str, far: float, verdict: str, tmp_path: Path
) -> None:
    ours, theirs = walk(1, far).steps()
    sides = replace(REFERENCE, chip=chip), replace(CANDIDATE, devices=devices)
    sides = tuple(replace(p, settings={**p.settings, "dtype": dtype}) for p in sides)
    found = diff(*(write(tmp_path / p.side, p, [s]) for p, s in zip(sides, (ours, theirs), strict=True)))
    assert found.verdict == verdict, found.reason
    assert ("--floors v6e" in found.reason) == (verdict == "inconclusive")


@pytest.mark.parametrize(("dtype", "said"), [("float32", 0), ("bfloat16", 1)])
def test_a_pass_in_16_bits_says_what_it_does_not_show(dtype: str, said: int, tmp_path: Path) -> None:
    sides = [replace(p, settings={**p.settings, "dtype": dtype}) for p in (REFERENCE, CANDIDATE)]
    found = diff(*(write(tmp_path / p.side, p, [walk(0).steps()[i]]) for i, p in enumerate(sides)))
    assert found.verdict == "pass"
    assert sum(f"{dtype} alone moves noise_pred by up to 1.0e-06" in note.text for note in found.notes) == said


@pytest.mark.parametrize(("scale", "said"), [(None, True), (5.0, False)])
def test_a_pass_in_16_bits_says_where_guidance_was_not_judged(scale: float | None, said: bool, tmp_path: Path) -> None:
    """LTX-2 rescales what the latents would come to; of that no scale is read off."""
    cond, uncond, other = noise(1), noise(2), noise(3)
    guided = uncond + scale * (cond - uncond) if scale else other
    values = {"cond": cond, "uncond": uncond, "": guided.astype(np.float32)}
    made = step([tensor("loop:noise_pred", x, branch=branch, held=True) for branch, x in values.items()])
    made = replace(made, floors={r.key: Floor(1e-3 * r.moments.l2) for r in made.records if r.moments})
    sides = [replace(p, settings={**p.settings, "dtype": "bfloat16"}) for p in (REFERENCE, CANDIDATE)]
    found = diff(*(write(tmp_path / p.side, p, [made]) for p in sides))
    assert found.verdict == "pass", found.reason
    assert any("guidance was not judged by itself" in note.text for note in found.notes) == said


def test_what_decodes_sound_is_said_to_be_left_out(tmp_path: Path) -> None:
    both = {"audio_vae.scale": "2", "vocoder.rate": "24000", "vae.scale": "1"}
    sides = [replace(p, settings={**p.settings, **both}) for p in (REFERENCE, CANDIDATE)]
    found = diff(*(write(tmp_path / p.side, p, [walk(0).steps()[i]]) for i, p in enumerate(sides)))
    assert any(note.text.endswith("not compared: the outputs of audio_vae and vocoder") for note in found.notes)


@pytest.mark.parametrize(
    ("asked", "verdict"), [(("all", "blocks"), "pass"), (("all", "all"), "fail"), (("", ""), "fail")]
)
def test_what_one_side_was_not_asked_for_is_no_difference(asked: tuple[str, str], verdict: str, tmp_path: Path) -> None:
    ours, theirs = walk_of({"b.0:in.x": 0.3, "b.0.ff:out": 0.3, "b.0:out": 0.3, "/loop:noise_pred": 0.3}).steps()
    blocks = theirs.where(lambda key: key.module != "b.0.ff")
    sides = (replace(REFERENCE, sites=asked[0]), ours), (replace(CANDIDATE, sites=asked[1]), blocks)
    found = diff(*(write(tmp_path / p.side, p, [records]) for p, records in sides))
    assert found.verdict == verdict, found.reason
    assert any("recorded at other sites (all against blocks)" in n.text for n in found.notes) == (verdict == "pass")


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("first", ["blocks.1:out", "blocks.1.attention:in.query"])
def test_a_divergence_inside_which_nothing_was_recorded_is_said(first: str, inside: bool, tmp_path: Path) -> None:
    modules = {"blocks.1": "", **({"blocks.1.ff": "blocks.1"} if inside else {})}
    ours, theirs = walk_of({"blocks.1:in.x": 0.0, first: FAR, "/loop:noise_pred": FAR}).steps()
    reference = write(tmp_path / "a", replace(REFERENCE, modules=modules), [ours])
    notes = diff(reference, write(tmp_path / "b", replace(CANDIDATE, modules=modules), [theirs])).notes
    assert any("inside blocks.1 nothing was recorded: --sites all" in note.text for note in notes) == inside


@pytest.mark.parametrize("behind", [0.0, FAR])
def test_what_recordings_hold_behind_the_first_divergence_is_said_not_to_be_judged(
    behind: float, tmp_path: Path
) -> None:
    ours, theirs = walk_of({"b.0:in.x": 0.0, "b.0:out": FAR, "b.1:out": behind, "/loop:noise_pred": 0.0}).steps()
    found = diff(write(tmp_path / "a", REFERENCE, [ours]), write(tmp_path / "b", CANDIDATE, [theirs]))
    assert any("not judged by itself" in note.text for note in found.notes) == (behind > 0)


@pytest.mark.parametrize("fault", [0.0, FAR])
def test_a_pass_that_does_not_rest_on_what_a_port_installed_is_none(fault: float, tmp_path: Path) -> None:
    idle = "the function that it put in torch.nn.functional.gelu's place was never called"
    result = diff(*pair(tmp_path, fault=fault, candidate=replace(CANDIDATE, idle=(idle,))))
    assert result.verdict == ("fail" if fault else "inconclusive")
    assert any(idle in text for text in (result.reason, *(note.text for note in result.notes)))


def test_what_is_not_comparable_is_inconclusive_and_not_read(tmp_path: Path) -> None:
    reference, candidate = pair(tmp_path, candidate=replace(CANDIDATE, seed=8))
    for part in Path(candidate).glob("*.safetensors"):
        part.unlink()
    auto = Auto()
    result = diff(reference, candidate, rename=auto)
    assert (result.verdict, result.exit_code, result.sites, auto.proposal) == ("inconclusive", 125, (), None)
    assert "seed: 7 against 8" in result.reason
    assert [c.check for c in result.preflight if c.verdict == "fail"] == ["seed"]


# --- without floors --------------------------------------------------------------------------------------------


def test_without_floors_only_equality_passes(tmp_path: Path) -> None:
    reference, candidate = pair(tmp_path, floors=False)
    result = diff(reference, candidate)
    assert (result.verdict, result.exit_code, result.origin) == ("inconclusive", 125, None)
    assert "no floors" in result.reason
    assert {d.verdict for d in result.sites} == {"inconclusive", "pass"}
    assert all(d.birth is None for d in result.sites)
    assert diff(reference, reference).verdict == "pass"


A, B = tensor("a:out", noise(1)), tensor("b:in.x", noise(2))


@pytest.mark.parametrize(
    ("ours", "theirs", "word"),
    [
        ([A, B], [A, none("b:in.x")], "b:in.x"),  # a missing tensor is no equality
        ([none("a:out")], [none("a:out")], ""),
        ([], [], ""),
        ([A], [], ""),
    ],
)
def test_nothing_in_common_is_inconclusive(tmp_path: Path, ours: list[Record], theirs: list[Record], word: str) -> None:
    sides = [StepRecords(0, tuple(records)) if records else None for records in (ours, theirs)]
    result = diffed(tmp_path, *sides)
    assert result.verdict == "inconclusive"
    assert word in result.reason


@pytest.mark.parametrize(("at", "fault", "verdict"), [(0, 0.0, "inconclusive"), (1, FAR, "fail")])
def test_a_site_without_a_floor_cannot_fail_a_run_alone(tmp_path: Path, at: int, fault: float, verdict: str) -> None:
    ours, theirs = walk(at, fault).steps()
    key = ours.records[-1].key
    result = diffed(tmp_path, replace(ours, floors={k: f for k, f in ours.floors.items() if k != key}), theirs)
    assert result.verdict == verdict
    assert verdict == "fail" or str(key) in result.reason


def test_a_site_without_a_floor_is_no_origin(tmp_path: Path) -> None:
    """It differs by rounding, as far as anybody knows, and so may what only grew behind it."""
    sites = {"a:in.x": 0.0, "a:out": 0.5, "b:in.x": 2.5, "b:out": 6.0, "cond/loop:noise_pred": 0.0}
    ours, theirs = walk_of(sites).steps()
    floors = {key: floor for key, floor in ours.floors.items() if key.site != "a:out"}
    result = diffed(tmp_path, replace(ours, floors=floors), theirs)
    assert (result.verdict, result.origin) == ("inconclusive", None)
    assert "a:out" in result.reason or "a output" in result.reason


# --- incomplete and damaged goldens ----------------------------------------------------------------------------


def test_an_unfinished_candidate_passes_only_if_that_part_is_asked_for(tmp_path: Path) -> None:
    reference, _ = pair(tmp_path, fault=FAR)
    killed = write(tmp_path / "killed", CANDIDATE, [walk(0, FAR).steps()[1]], finish=False)
    result = diff(reference, killed)
    assert (result.verdict, [s.step for s in result.steps]) == ("inconclusive", [0])
    assert "candidate was not finished" in result.reason
    assert "--steps 1" in result.reason
    assert diff(reference, killed, steps=1).verdict == "pass"
    with pytest.raises(UsageError, match=r"--steps 2: .*killed holds 1 steps"):
        diff(reference, killed, steps=2)


def test_a_difference_in_an_unfinished_recording_is_one(tmp_path: Path) -> None:
    reference, _ = pair(tmp_path)
    killed = write(tmp_path / "killed", CANDIDATE, [walk(0).steps()[1], walk(1, FAR).steps()[1]], finish=False)
    assert [diff(reference, killed, steps=n).verdict for n in (None, 1, 2)] == ["fail", "pass", "fail"]


@pytest.mark.parametrize("is_port", [True, False])
def test_a_half_step_is_judged_by_what_both_have_whatever_a_port_calls_it(is_port: bool, tmp_path: Path) -> None:
    """A port may name an output differently; of two recordings of one implementation the rest was not made."""
    far = FAR if is_port else 0.3
    ours, theirs = walk_of({"b.0:in.x": 0.3, "b.0:out": far, "cond/loop:noise_pred": far}).steps()
    if is_port:
        theirs = renamed(theirs, lambda site: site.replace("b.0:out", "b.0:out.0"))
    else:
        theirs = replace(theirs, records=theirs.records[:1])
    found = diffed(tmp_path, ours, theirs, finish=False, candidate=SCRIPT if is_port else CANDIDATE)
    assert found.verdict == ("fail" if is_port else "inconclusive"), found.reason  # no part was asked for
    assert origin(found) == ("transformer step 0 cond b.0:out" if is_port else "")


def test_a_candidate_without_noise_pred_does_not_pass(tmp_path: Path) -> None:
    """Its loop's scheduler was not recorded: of guidance and of the step nobody knows."""
    ours, theirs = walk_of({"b.0:in.x": 0.3, "b.0:out": 0.3, "/loop:noise_pred": 0.3}).steps()
    calls = theirs.where(lambda key: key.module != "loop")
    assert diffed(tmp_path / "whole", ours, theirs, candidate=SCRIPT).verdict == "pass"
    found = diffed(tmp_path / "calls", ours, calls, candidate=SCRIPT)
    assert (found.verdict, "give parity.record the scheduler" in found.reason) == ("inconclusive", True)
    both = diffed(tmp_path / "both", ours.where(lambda key: key.module != "loop"), calls, candidate=SCRIPT)
    assert both.verdict == "pass", both.reason


def test_a_loop_that_ended_sooner_is_why_other_latents_are_decoded(tmp_path: Path) -> None:
    def steps(count: int, far: float) -> tuple[list[StepRecords], list[StepRecords]]:
        key = Key(AFTER, -1, "", "decode:in.z")
        ours, theirs = (step([tensor_record(key, moved(noise(3), by))], at=-1) for by in (0.0, far))
        loop = [walk(at).steps() for at in range(count)]
        return [*(a for a, _ in loop), ours], [*(b for _, b in loop), theirs]

    reference = write(tmp_path / "a", REFERENCE, steps(2, 0.0)[0])
    for count, said in ((1, True), (2, False)):
        result = diff(reference, write(tmp_path / f"b{count}", SCRIPT, steps(count, FAR)[1]))
        assert origin(result) == "vae decode:in.z"
        assert any("numbers of steps (1 on the candidate, 2 on" in c.cause for c in result.causes) == said


@pytest.mark.parametrize(
    ("made", "noted"),
    [
        ("decode:out", True),
        (f"decode:out {FRAMES}", False),
        ("decode:out video:out", False),
        ("z:out decode:out", True),
    ],
)
def test_frames_that_the_candidate_makes_unseen_are_said(made: str, noted: bool, tmp_path: Path) -> None:
    sides = dict.fromkeys([*made.split(), FRAMES]), made.split()
    own, both = ([tensor_record(Key(AFTER, -1, "", site), noise(3)) for site in side] for side in sides)
    loop = walk(0).steps()
    ours = write(tmp_path / "a", SCRIPT, [loop[0], step(own, at=-1)])
    theirs = write(tmp_path / "b", SCRIPT, [loop[1], step(both, at=-1)])
    found = diff(ours, theirs)
    assert found.verdict == "pass", found.reason
    assert any("frames were not compared" in note.text for note in found.notes) is noted


@pytest.mark.parametrize("far", [FAR, 0.0])
def test_a_prompt_of_another_length_is_where_it_begins(far: float, tmp_path: Path) -> None:
    """Not the attention whose keys it leaves without a match; that decides by itself where the outputs agree."""
    walk = walk_of({":in.hidden_states": 0.3, ":in.text": 0.3, "b.0:in.x": 0.3, "b.0:in.text": 0.3, "b.0:out": FAR})
    walk.loop("noise_pred", far)
    ours, theirs = walk.steps()
    cut = [tensor(r.key.site, noise(9)[:, :2]) if r.key.port == "in.text" else r for r in theirs.records]
    found = diffed(tmp_path, ours, replace(theirs, records=tuple(cut)), candidate=SCRIPT)
    assert origin(found) == f"transformer step 0 cond {':in.text' if far else 'b.0:out'}", found.reason
    assert [str(d) for d in differences(found)][:1] == ["the argument text (cond)" if far else "the argument text"]
    assert len(differences(found)) == (1 if far else 2)


@pytest.mark.parametrize("side", ["reference", "candidate"])
def test_a_damaged_part_is_an_error_even_in_the_last_step(tmp_path: Path, side: str) -> None:
    both = pair(tmp_path, fault=FAR)
    part = tmp_path / side / "step-0001.safetensors"
    content = part.read_bytes()
    part.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UsageError, match=r"step-0001\.safetensors"):
        diff(*both)


# --- a fit never acquits ---------------------------------------------------------------------------------------

ENDS = ("loop:noise_pred", "loop:latents.after")
FITS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "rounded to bfloat16": bfloat16,
    "rounded to integers": np.round,
    "negated": np.negative,
    "times 1.0366": lambda x: 1.0366 * x,
    "plus 0.1": lambda x: x + 0.1,
    "subtracted from 1": lambda x: 1.0 - x,
    "set to zero": lambda x: 0.0 * x,
    "from last to first": lambda x: x[:, ::-1].copy(),
    "halves swapped": lambda x: np.roll(x, x.shape[1] // 2, axis=1),
    "in another order": lambda x: x[:, np.random.default_rng(0).permutation(x.shape[1])],
    "with some of its rows zero": lambda x: x * (np.arange(x.shape[1]) % 2)[None, :, None],
}


@pytest.mark.parametrize("site", [":in.encoder_hidden_states", "block:in.x", "block:out", *ENDS])
@pytest.mark.parametrize("candidate", [CANDIDATE, SCRIPT], ids=["torchax", "port"])
def test_a_fit_never_acquits(site: str, candidate: Provenance, tmp_path: Path) -> None:
    """A difference that a transform explains in full, and that nothing behind it shows, fails all the same."""
    for how, made in FITS.items():
        both = Walk()
        for name in ("loop:latents.before", ":in.encoder_hidden_states", "block:in.x", "block:out", *ENDS):
            x = noise(len(both.reference), (1, 24, 8)).astype(np.float64)
            branch = "" if name.startswith("loop:") else "cond"
            pair = (tensor(name, y, branch=branch, held=True) for y in (x, made(x) if name == site else x))
            both.pair(*pair)
        result = diffed(tmp_path / how, *both.steps(), candidate=candidate)
        assert (result.verdict, how) == ("fail", how)
        assert result.origin is not None
        assert (result.origin.key.site, how) == (site, how)


# --- names -----------------------------------------------------------------------------------------------------


def test_phantom_keys_are_counted_in_an_attention_whose_rows_could_not_be_paired(tmp_path: Path) -> None:
    """A script that leaves a stream of padding out: 2 of its 10 tokens are zeroed, and 118 fill a block of 128."""
    rng = np.random.default_rng(6)
    q, k, v = (rng.standard_normal((14, 2, 8)) for _ in range(3))
    weights = np.exp(np.einsum("qhd,khd->hqk", q, k[:8]) / np.sqrt(8))
    out = np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v[:8])
    shrunk = np.einsum("hqk,khd->qhd", weights / (weights.sum(-1, keepdims=True) + 2 + 118), v[:8])
    out[8:] = 0.0
    both = walk_of({"loop:latents.before": 0.0, "joint:in.hidden_states": 0.0})
    for port, ours, theirs in (("in.query", q, q[:10]), ("in.key", k, k[:10]), ("out", out, shrunk[:10])):
        sides = (tensor(f"joint.attention:{port}", x[None].astype(np.float32), held=True) for x in (ours, theirs))
        both.pair(*sides)
    both.site("joint:out", FAR)
    both.ends(FAR, FAR)
    result = diffed(tmp_path, *both.steps(), candidate=SCRIPT)
    assert result.verdict == "fail"
    assert "joint.attention (not compared: shape" in result.reason
    assert "120.00 phantom keys on cond" in result.causes[0].cause
