"""The VAE stage of a run: decoded by itself, both sides from the reference's latents, and in the chain, each from its
own side's; every frame of both.

By itself all sites of the decoder are judged against their floors. In the chain only the frames are: their floors are
the largest of those by itself and of what the loops' own floors come to: the latents of each rounded run, decoded in
float32, and those of the reference in a coarser working dtype, decoded in that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from parity.compare.conclude import stage_diff
from parity.compare.detect.frames import frame_diffs, frame_errors, frames_of, spread
from parity.compare.judge import L2_LIMIT
from parity.compare.metrics import ratio
from parity.compare.preflight import failed
from parity.compare.reason import Output, Reason
from parity.compare.result import Check, Distance, Failed, FrameError, Result
from parity.models.spec import Case
from parity.models.vae import CacheRows, expected_frames, load_decoder, require_known
from parity.paths.stage import Stage, TorchStage, host_tensor
from parity.runs.request import Request, Say
from parity.runs.sink import Sink
from parity.runs.stages.latents import latent_checks
from parity.runs.stages.stage import Judged, StagePair, judge_stage, load_stage, with_checks

FRAMES = "frames"


@dataclass(frozen=True)
class Ends:
    """Final latents [B, C, T, H, W] of a round.

    Attributes:
        reference, candidate: of the two sides; the candidate's is None where there is no chain.
        beside: of the runs that measured floors, by name; `float32` the truth's in a precision round.
    """

    reference: np.ndarray
    candidate: np.ndarray | None = None
    beside: Mapping[str, np.ndarray] = field(default_factory=dict)


def vae_stage(case: Case) -> Stage:
    """The stage of a checkpoint.

    Raises:
        UsageError: its VAE's class is not known.
    """
    require_known(case)
    return Stage("vae", "decoder", partial(load_decoder, case), CacheRows())


def decode_round(case: Case, request: Request, ends: Ends, choice: tuple[str, tuple[str, ...]], failing: Failed,
                 say: Say, sink: Sink) -> Result:  # fmt: skip
    """Decode both sides of a round and judge them.

    Args:
        request: its settings, neutralised in a structure round.
    """
    config = require_known(case)
    checks = latent_checks(config, ends.reference, ends.reference if ends.candidate is None else ends.candidate)
    if failed(checks[:2]) is not None or failed(latent_checks(config, ends.reference, ends.reference)) is not None:
        nothing = Result("pass", None, Reason(kind="agrees"), request.model)
        return with_checks(nothing, checks, "vae")
    say("vae: loading")
    # One text encoder's dtype is none of the decoder's.
    settings = (s.replace(text_byt5_dtype="same") for s in (request.reference, request.candidate))
    pair = load_stage(vae_stage(case), *settings)
    inputs = {"": {"latents": host_tensor(ends.reference)}}
    judged = judge_stage(pair, inputs, choice, request.model, failing, say)
    ours, theirs = judged.truth[""].outputs[FRAMES], judged.candidate[""].outputs[FRAMES]
    checks = (*checks, frames_check(config, ends.reference.shape, ours, theirs))
    sink.frames("reference", ours)
    sink.frames("candidate", theirs)
    result = with_checks(judged.result, checks, "vae")
    if ours.shape != theirs.shape:
        return dataclasses.replace(result, stages=(stage_diff(result, "vae"),))
    floors = np.max([spread(frames_of(ours), frames_of(o[""].outputs[FRAMES])) for o in judged.others.values()], axis=0)
    floors = np.maximum(floors, _least(ours))
    own = frame_errors(frames_of(ours), frames_of(theirs), floors)
    if ends.candidate is None:
        return dataclasses.replace(result, stages=(stage_diff(result, "vae"),), frames=frame_diffs(own, None))
    far, chain = _chain(pair, judged, ends, floors, sink, say)
    if result.verdict == "pass" and not far.ratio <= L2_LIMIT:
        why = Reason(kind="output", stage="vae", output=Output(FRAMES, far))
        result = dataclasses.replace(result, verdict="fail", failed=failing, why=why)
    frames = frame_diffs(own, chain)
    return dataclasses.replace(result, stages=(stage_diff(result, "vae", far),), frames=frames)


def _chain(
    pair: StagePair, judged: Judged, ends: Ends, own_floors: np.ndarray, sink: Sink, say: Say
) -> tuple[Distance, tuple[FrameError, ...]]:
    """Each side's own latents through its own decoder: the distance of all frames and of each.

    Args:
        own_floors: of each frame by itself, which no floor of the chain is below.
    """
    say("vae: each side's own latents")
    assert ends.candidate is not None
    # Observed as before, though nobody reads it: the same program runs, and no other is compiled.
    theirs = pair.candidate.run({"latents": host_tensor(ends.candidate)}, judged.plan).outputs[FRAMES]
    sink.frames("candidate_in_chain", theirs)
    start = ends.beside.get("float32", ends.reference)
    whole = start is ends.reference
    truth = judged.truth[""] if whole else pair.truth.run({"latents": host_tensor(start)}, None)
    ours = truth.outputs[FRAMES]
    spreads = [own_floors]
    decoders = {name: TorchStage(pair.stage, settings) for name, settings in pair.coarse}
    for name, latents in {**ends.beside, "reference": ends.reference}.items():
        other = decoders.get(name, pair.truth).run({"latents": host_tensor(latents)}, None).outputs[FRAMES]
        spreads.append(spread(frames_of(ours), frames_of(other)))
    chain = frame_errors(frames_of(ours), frames_of(theirs), np.max(spreads, axis=0))
    with np.errstate(invalid="ignore", over="ignore"):
        l2 = float(np.linalg.norm(theirs.astype(np.float64) - ours))
    scale = float(np.linalg.norm(ours.astype(np.float64))) or 1.0
    floor = max(float(np.linalg.norm(s)) for s in spreads)
    return Distance(l2 / scale, floor / scale, ratio(l2, floor)), chain


def _least(frames: np.ndarray) -> np.ndarray:
    """Two half ulps of float32 of each frame: what no frame is judged below."""
    return np.array([2.0**-23 * float(np.linalg.norm(f.astype(np.float64))) for f in frames_of(frames)])


def frames_check(config: Mapping[str, object], latents: tuple[int, ...], ours: np.ndarray, theirs: np.ndarray) -> Check:
    """Every frame is accounted for on both sides, and all of the reference's are finite."""
    expected = expected_frames(config, latents[2])
    if ours.shape != theirs.shape or ours.shape[2] != expected:
        detail = f"{expected} frames expected of {latents[2]} latent ones; decoded: {list(ours.shape)} by the reference"
        return Check("frames", "fail", f"{detail}, {list(theirs.shape)} by the candidate")
    bad = [i for i, f in enumerate(frames_of(theirs)) if not np.isfinite(f).all()]
    if bad:
        return Check("frames", "fail", f"{len(bad)} of the candidate's frames hold NaN or Inf; first: {bad[0]}")
    return Check("frames", "pass", f"{ours.shape[0] * expected} of {ours.shape[0] * expected} on both sides")


def reference_latents(side_case: Case, latents: torch.Tensor, family: object) -> np.ndarray:
    """A loop's final latents as the VAE takes them, [B, C, T, H, W], in float32 or wider."""
    out: torch.Tensor = family.stage2(side_case, latents)  # type: ignore[attr-defined]
    return out.to(torch.float32).numpy() if out.dtype in (torch.bfloat16, torch.float16) else out.numpy()
