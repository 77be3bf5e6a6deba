"""A run of several stages, in their order: text, transformer, vae; each compared by itself and in the chain.

Each stage is a comparison of its own (`parity.runs.compare`), its sides in the same two processes. The loops start from
what the encoders gave, the VAE from the latents that the loops came to. The verdict is that of the first stage that
fails.

The VAE decodes by itself, both sides from the reference's latents, and in the chain, each from its own side's; every
frame of both is compared. By itself all sites of the decoder are judged against their floors. In the chain only the
frames are: their floors are the largest of those by itself and of what the loops' own floors come to: the latents of
each rounded run, decoded in float32, and those of the reference in a coarser working dtype, decoded in that. The
latents need no look of their own: those of a loop were compared as it gave them, scale and layout with them, and those
of a file are checked where it is read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from parity.compare.conclude import stage_diff
from parity.compare.frames import as_shown, frame_diffs, frame_errors, frames_of, spread
from parity.compare.metrics import distance
from parity.compare.reason import Note, Output, Reason
from parity.compare.result import UNKNOWN, Distance, Failed, FrameError, Result
from parity.errors import Say
from parity.floors import L2_LIMIT
from parity.models.registry import opened
from parity.paths.plan import BESIDE, VAE_INPUT, Ends, Given, Openers, Outputs, Pair, Plan, Start
from parity.records import AFTER
from parity.runs.compare import Encodings, compare, compare_stage, merged
from parity.runs.request import Choice, Request
from parity.runs.sides import Sink, counted, spec_of

FRAMES = ".frames"
CHAIN = "chain"
"""The run whose latents a candidate decodes in the chain: its own loop's."""


def run_chain(request: Request, openers: Openers, say: Say, sink: Sink) -> Result:
    """Run the stages of a request that names others than the transformer.

    Raises:
        UsageError: bad input. InconclusiveError: a chosen site never fired, or a setting's code was not reached.
    """
    openers.of("reference"), openers.of("candidate")  # they import their libraries meanwhile
    say("preparing the checkpoint")
    choices = request.choices()
    found: dict[str, Result] = {}
    own: Encodings = {}
    notes: list[Note] = []
    if "text" in request.stages:
        from parity.runs.text_stage import compare_text  # torch and transformers, only from here on

        found["text"], own = compare_text(request, _rounds(request), choices, openers, say)
        notes = [Note(_embeddings_used(request, own))] if "transformer" in request.stages else []
    if "transformer" in request.stages:
        found["transformer"] = compare(_of(request, "transformer", choices), openers, say, sink, own)
    if "vae" in request.stages and not ("transformer" in found and found["transformer"].failed == "preflight"):
        found["vae"] = _vae(_of(request, "vae", choices), request, sink, openers, say)
    result = merged(found, request)
    return dataclasses.replace(result, notes=(*notes, *result.notes))


def _of(request: Request, stage: str, choices: Mapping[str, Choice]) -> Request:
    """The request of one stage."""
    sites, values = choices[stage]
    return dataclasses.replace(request, sites=sites, values=values, stages=(stage,))


def _embeddings_used(request: Request, own: Encodings) -> str:
    """Which embeddings the loops were given, as the reader has to know what a difference in them would mean."""
    if request.stage1 is None:
        each, both = "each its own encoders'", "the reference's"
    else:
        each, both = "the reference its own encoders', the candidate the file's", "the file's"
    if not own:
        return f"embeddings of the loops: {both} on both sides, as the text stage gave none to go on from"
    also = f"; in the logic check {both} on both sides" if "logic" not in own else ""
    return f"embeddings of the loops: {each}{also if len(_rounds(request)) > 1 else ''}"


def _rounds(request: Request) -> tuple[str, ...]:
    """The checks of a stage outside the loop, as `parity.runs.compare` has them."""
    if request.of("logic") == request:
        return ("logic",)
    return ("logic", "precision") if request.checks == "both" else (request.checks,)


# --- the VAE


def _vae(request: Request, whole: Request, sink: Sink, openers: Openers, say: Say) -> Result:
    """The checks of the VAE stage: the first that fails, else the last."""
    chained = sink.ends
    start = None if chained else latents_of(whole, openers, say)
    for name in tuple(chained) or _rounds(request):
        result, frames = decode_round(request, name, chained.get(name), start, openers, say)
        if result.verdict != "pass":
            break
    for side, video in frames.items():  # many files: of the check that decides alone
        sink.frames(side, video)
    return result


def latents_of(request: Request, openers: Openers, say: Say) -> Given:
    """What both sides decode where no loops are compared: a port's latents, or those of the reference's own loop, in
    float32.

    Raises:
        UsageError: the port's file is not of this model's latents.
    """
    if request.stage2 is not None:
        from parity.paths.stage import file_latents  # torch, to read a file of its tensors

        return {VAE_INPUT: file_latents(opened(request.model)[1], request.stage2)}
    stage1 = None if "text" in request.stages else request.stage1  # there it is the candidate's
    alone = dataclasses.replace(request, reference=request.reference.neutral, stages=("transformer",), stage1=stage1)
    say("encoding the prompt" if stage1 is None else "reading the embeddings")
    side = openers.of("reference").open(spec_of(alone, "reference"))
    for _ in counted(side.observe(Plan()), "the reference's latents", request.steps, say):
        continue
    latents = side.ends().own["latents"]
    side.close()
    return {VAE_INPUT: latents}


def decode_round(
    request: Request, name: str, loops: Pair[Ends] | None, start: Given | None, openers: Openers, say: Say
) -> tuple[Result, dict[str, np.ndarray]]:
    """Decode both sides of a check and judge them; returns the frames too, by side.

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
    return _judged(result, came[next(reversed(came))], loops is not None)


def _judged(result: Result, came: Pair[Ends], chained: bool) -> tuple[Result, dict[str, np.ndarray]]:
    """The result with how its frames differ, by themselves and in the chain, unless they are of other shapes, which the
    result says; and the frames."""
    runs = came.reference.runs
    ours, theirs = _frames(runs.get("float32", runs[""])), _frames(came.candidate.own)
    frames = {"reference": ours, "candidate": theirs}
    if ours.shape != theirs.shape:
        return dataclasses.replace(result, stages=(stage_diff(result, AFTER),)), frames
    others = [_frames(x) for name, x in runs.items() if not name.startswith(BESIDE) and name != "float32"]
    floors = np.maximum(np.max([spread(frames_of(ours), frames_of(x)) for x in others], axis=0), _least(ours))
    shown = as_shown(ours, theirs)
    own = frame_errors(frames_of(shown[0]), frames_of(shown[1]), floors)
    far, chain = UNKNOWN, None
    if chained:
        last = frames["candidate_in_chain"] = _frames(came.candidate.runs[f"{BESIDE}{CHAIN}"])
        far, chain = _chain(came.reference, ours, last, floors)
        if result.verdict == "pass" and not far.ratio <= L2_LIMIT:
            why = Reason(kind="output", stage=AFTER, output=Output(FRAMES.strip("."), far))
            failing: Failed = "precision" if "float32" in runs else "logic"
            result = dataclasses.replace(result, verdict="fail", failed=failing, why=why)
    line = stage_diff(result, AFTER, far)
    return dataclasses.replace(result, stages=(line,), frames=frame_diffs(own, chain)), frames


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
