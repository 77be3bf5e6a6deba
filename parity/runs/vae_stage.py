"""The VAE stage of a run: decoded by itself, both sides from the reference's latents, and in the chain, each from its
own side's; every frame of both.

By itself all sites of the decoder are judged against their floors. In the chain only the frames are: their floors are
the largest of those by itself and of what the loops' own floors come to: the latents of each rounded run, decoded in
float32, and those of the reference in a coarser working dtype, decoded in that.

The latents need no look of their own: those of a loop were compared as it gave them, scale and layout with them, and
those of a file are checked where it is read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from parity.compare.conclude import stage_diff
from parity.compare.frames import as_shown, frame_diffs, frame_errors, frames_of, spread
from parity.compare.metrics import distance
from parity.compare.reason import Output, Reason
from parity.compare.result import Distance, FrameError, Result
from parity.floors import L2_LIMIT
from parity.paths.plan import BESIDE, VAE_INPUT, VAE_STAGE, Ends, Given, Openers, Outputs, Pair, Start
from parity.runs.compare import compare_stage
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
    beside: dict[str, Given] = {}
    chain: dict[str, Given] = {}
    if loops is not None:
        # By itself the candidate starts from the reference's latents, in the chain from its own.
        start, chain = {VAE_INPUT: loops.reference.own["latents"]}, {CHAIN: {VAE_INPUT: loops.candidate.own["latents"]}}
        beside = {name: {VAE_INPUT: x["latents"]} for name, x in loops.reference.beside.items()}
    assert start is not None
    own = Pair(Start(start, beside), Start(start, chain))
    result, came = compare_stage(alone, openers, say, {name: own})
    if result.failed is not None and request.checks == "precision":
        result = dataclasses.replace(result, failed="precision")
    return _judged(result, came[next(reversed(came))], loops is not None, sink)


def _judged(result: Result, came: Pair[Ends], chained: bool, sink: Sink) -> Result:
    """The result with its frames, by themselves and in the chain; without them where they are of other shapes, which
    the result says."""
    runs = came.reference.runs
    ours, theirs = _frames(runs.get("float32", runs[""])), _frames(came.candidate.own)
    sink.frames("reference", ours)
    sink.frames("candidate", theirs)
    failing = result.failed or ("logic" if "float32" not in runs else "precision")
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
    floor = max(float(np.linalg.norm(s)) for s in spreads)
    return distance(l2, float(np.linalg.norm(ours.astype(np.float64))), floor), chain


def _least(frames: np.ndarray) -> np.ndarray:
    """Two half ulps of float32 of each frame: what no frame is judged below."""
    return np.array([2.0**-23 * float(np.linalg.norm(f.astype(np.float64))) for f in frames_of(frames)])
