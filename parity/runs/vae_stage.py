"""The VAE stage of a run: decoded by itself, both sides from the reference's latents, and in the chain, each from its
own side's; every frame of both.

By itself all sites of the decoder are judged against their floors. In the chain only the frames are: their floors are
the largest of those by itself and of what the loops' own floors come to: the latents of each rounded run, decoded in
float32, and those of the reference in a coarser working dtype, decoded in that.

Before a decode the latents are looked at: are they laid out and scaled as the VAE takes them? Ports lose days here:
latents handed on as [B, T, C, H, W] decode without an error where sizes happen to fit, and a scaling factor applied
twice, or never, gives a picture that is only a little too grey.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parity.compare.conclude import stage_diff
from parity.compare.frames import as_shown, frame_diffs, frame_errors, frames_of, spread
from parity.compare.metrics import L2_LIMIT, ratio
from parity.compare.preflight import failed
from parity.compare.reason import Output, Reason
from parity.compare.result import Check, Distance, FrameError, Result
from parity.models.folder import expected_frames, vae_config
from parity.models.registry import resolve_model
from parity.paths.plan import BESIDE, VAE_INPUT, VAE_STAGE, Ends, Given, Openers, Outputs, Pair, Start
from parity.runs.compare import compare_stage, with_checks
from parity.runs.request import Request, Say
from parity.runs.sides import Sink

FRAMES = ".frames"
CHAIN = "chain"
"""The run whose latents a candidate decodes in the chain: its own loop's."""


def decode_round(
    request: Request, name: str, loops: Pair[Ends] | None, start: Given | None, openers: Openers, say: Say, sink: Sink
) -> Result:
    """Decode both sides of a check and judge them.

    Args:
        request: of the VAE alone. name: of the check. loops: what the loops came to; None where there is no chain.
        start: the latents to decode where there is none.
    """
    checked = request.of(name)
    # One text encoder's dtype is none of the decoder's.
    ours, theirs = (s.with_({"text.byt5_dtype": "same"}) for s in (checked.reference, checked.candidate))
    # There is one step: nothing to be forced.
    alone = dataclasses.replace(request, reference=ours, candidate=theirs, checks=name, stage1=None, isolate="none")
    config = vae_config(resolve_model(request.model))
    beside: dict[str, Given] = {}
    chain: dict[str, Given] = {}
    if loops is not None:
        # By itself the candidate starts from the reference's latents, in the chain from its own.
        start, chain = {VAE_INPUT: loops.reference.own["latents"]}, {CHAIN: {VAE_INPUT: loops.candidate.own["latents"]}}
        beside = {name: {VAE_INPUT: x["latents"]} for name, x in loops.reference.beside.items()}
    assert start is not None
    latents = start[VAE_INPUT].values
    checks = latent_checks(config, latents, chain.get(CHAIN, start)[VAE_INPUT].values)
    if failed(checks[:2]) is not None or failed(latent_checks(config, latents, latents)) is not None:
        return with_checks(Result("pass", None, Reason(kind="agrees"), request.model), checks, VAE_STAGE)
    own = Pair(Start(start, beside), Start(start, chain))
    result, came = compare_stage(alone, openers, say, {name: own})
    if result.failed is not None and request.checks == "precision":
        result = dataclasses.replace(result, failed="precision")
    return _judged(result, came[next(reversed(came))], config, latents, loops is not None, checks, sink)


def _judged(
    result: Result,
    came: Pair[Ends],
    config: Mapping[str, object],
    latents: np.ndarray,
    chained: bool,
    checks: tuple[Check, ...],
    sink: Sink,
) -> Result:
    """The result with its frames, by themselves and in the chain."""
    runs = came.reference.runs
    ours, theirs = _frames(runs.get("float32", runs[""])), _frames(came.candidate.own)
    checks = (*checks, frames_check(config, latents.shape, ours, theirs))
    sink.frames("reference", ours)
    sink.frames("candidate", theirs)
    failing = result.failed or ("logic" if "float32" not in runs else "precision")
    result = with_checks(result, checks, VAE_STAGE)
    if ours.shape != theirs.shape:
        return dataclasses.replace(result, stages=(stage_diff(result, VAE_STAGE),))
    others = [_frames(x) for name, x in runs.items() if not name.startswith(BESIDE) and name != "float32"]
    floors = np.maximum(np.max([spread(frames_of(ours), frames_of(x)) for x in others], axis=0), _least(ours))
    shown = as_shown(ours, theirs)
    own = frame_errors(frames_of(shown[0]), frames_of(shown[1]), floors)
    if not chained:
        return dataclasses.replace(result, stages=(stage_diff(result, VAE_STAGE),), frames=frame_diffs(own, None))
    last = _frames(came.candidate.runs[f"{BESIDE}{CHAIN}"])
    sink.frames("candidate_in_chain", last)
    far, chain = _chain(came.reference, ours, last, floors)
    if result.verdict == "pass" and not far.ratio <= L2_LIMIT:
        why = Reason(kind="output", stage=VAE_STAGE, output=Output(FRAMES.strip("."), far))
        result = dataclasses.replace(result, verdict="fail", failed=failing, why=why)
    return dataclasses.replace(result, stages=(stage_diff(result, VAE_STAGE, far),), frames=frame_diffs(own, chain))


def _frames(outputs: Outputs) -> np.ndarray:
    return outputs[FRAMES].values


def _chain(
    reference: Ends, alone: np.ndarray, theirs: np.ndarray, own_floors: np.ndarray
) -> tuple[Distance, tuple[FrameError, ...]]:
    """Each side's own latents through its own decoder: the distance of all frames and of each.

    Args:
        alone: the truth's frames of the reference's latents. theirs: the candidate's of its own.
        own_floors: of each frame by itself, which no floor of the chain is below.
    """
    beside = {name.removeprefix(BESIDE): _frames(x) for name, x in reference.runs.items() if name.startswith(BESIDE)}
    ours = beside.get("float32", alone)
    others: Sequence[np.ndarray] = [*beside.values(), _frames(reference.own)]
    spreads = [own_floors, *(spread(frames_of(ours), frames_of(x)) for x in others)]
    ours, theirs = as_shown(ours, theirs)
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


SCALE_MATCH = 0.01
"""How near the gain between two sides' latents must be to the scaling factor (or its inverse) to be called it."""


def latent_checks(config: Mapping[str, Any], reference: np.ndarray, candidate: np.ndarray) -> tuple[Check, ...]:
    """Check latents [B, C, T, H, W] against the VAE's config, and the two sides' against each other.

    Args:
        config: of the VAE. reference, candidate: what each side's decode is to start from.
    """
    name, factor, scale = "scaling factor", config.get("scaling_factor"), 1.0
    if not isinstance(factor, (int, float)) or not math.isfinite(factor) or factor <= 0:
        check = Check(name, "fail", f"the VAE's config says {factor!r}, not a positive number")
    else:
        scale = float(factor)
        check = Check(name, "pass", f"{factor} in the VAE's config; the latents are divided by it on both sides")
    return _layout(config, reference, candidate), check, _statistics(scale, reference, candidate)


def _layout(config: Mapping[str, Any], a: np.ndarray, b: np.ndarray) -> Check:
    name, channels = "latents layout", int(config["latent_channels"])
    for side, x in (("reference", a), ("candidate", b)):
        if x.ndim != 5 or x.shape[1] != channels:
            other = " (they are laid out [B, T, C, H, W])" if x.ndim == 5 and x.shape[2] == channels else ""
            detail = f"the {side}'s latents are {list(x.shape)}, not [B, {channels}, T, H, W] as the VAE takes them"
            return Check(name, "fail", detail + other)
    if a.shape != b.shape:
        return Check(name, "fail", f"{list(a.shape)} against {list(b.shape)}")
    return Check(name, "pass", f"[B, C, T, H, W] = {list(a.shape)} on both sides")


def _statistics(factor: float, a: np.ndarray, b: np.ndarray) -> Check:
    """Finite, not constant, and not apart by the scaling factor alone."""
    name = "latents statistics"
    for side, x in (("reference", a), ("candidate", b)):
        bad = int((~np.isfinite(x)).sum())
        if bad:
            return Check(name, "fail", f"the {side}'s latents hold {bad} NaN or Inf of {x.size}")
        if float(x.std()) == 0.0:
            return Check(name, "fail", f"the {side}'s latents are constant ({float(x.flat[0]):g})")
    detail = f"mean {_both(a.mean(), b.mean())}, standard deviation {_both(a.std(), b.std())}"
    if a.shape != b.shape:
        return Check(name, "pass", detail)
    x, y = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    gain, cosine = float(x @ y / (x @ x)), float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))
    for what, value in (("divided by", 1 / factor), ("multiplied by", factor)):
        close = abs(gain - value) < SCALE_MATCH * abs(value - 1)
        if close and cosine > 1 - abs(value - 1) * SCALE_MATCH:
            detail = f"the candidate's latents are the reference's {what} the scaling factor already (gain {gain:.5f})"
            return Check(name, "fail", detail)
    return Check(name, "pass", detail)


def _both(a: float, b: float) -> str:
    return f"{a:.4g}" if f"{a:.4g}" == f"{b:.4g}" else f"{a:.4g} against {b:.4g}"
