"""A run of several stages, in their order: text, transformer, vae; each compared by itself and in the chain.

Each stage is a comparison of its own (`parity.runs.compare`), its sides in the same two processes. The loops start from
what the encoders gave, the VAE from the latents that the loops came to. The verdict is that of the first stage that
fails.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping

from parity.compare.reason import Note, Reason
from parity.compare.result import Result
from parity.hooks.sites import split_sites
from parity.models.registry import opened
from parity.paths.plan import VAE_INPUT, Given, Openers, Plan
from parity.runs.compare import Encodings, compare, merged
from parity.runs.request import Choice, Request, Say
from parity.runs.sides import Sink, counted, spec_of
from parity.runs.vae_stage import decode_round


def run_chain(request: Request, openers: Openers, say: Say, sink: Sink) -> Result:
    """Run the stages of a request that names others than the transformer.

    Raises:
        UsageError: bad input. InconclusiveError: a chosen site never fired, or a setting's code was not reached.
    """
    openers.of("reference"), openers.of("candidate")  # they import their libraries meanwhile
    say("preparing the checkpoint")
    choices = _choices(request)
    found: dict[str, Result] = {}
    own: Encodings = {}
    notes: list[Note] = []
    if "text" in request.stages:
        from parity.runs.text_stage import compare_text  # torch and transformers, only from here on

        found["text"], own = compare_text(request, _rounds(request), choices, openers, say)
        notes = [Note(_embeddings_used(request, own))] if "transformer" in request.stages else []
    if "transformer" in request.stages:
        found["transformer"] = compare(_of(request, "transformer", choices), openers, say, sink, own)
    if "vae" in request.stages and found.get("transformer", _AGREES).failed != "preflight":
        found["vae"] = _vae(_of(request, "vae", choices), request, sink, openers, say)
    result = merged([*found.items()], request)
    return dataclasses.replace(result, notes=(*notes, *result.notes))


_AGREES = Result("pass", None, Reason(kind="agrees"))


def _choices(request: Request) -> Mapping[str, Choice]:
    """Stage or encoder -> its own sites and values: a glob goes to those that have a module it names."""
    if request.sites in ("blocks", "all", "none") and not request.values:
        return defaultdict(lambda: (request.sites, ()))
    from parity.paths.known_stages import stage_modules  # torch, to name what no config names

    family, case = opened(request.model, prompt=request.prompt)
    return split_sites(stage_modules(case, family, request.stages), request.sites, request.values)


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


def _vae(request: Request, whole: Request, sink: Sink, openers: Openers, say: Say) -> Result:
    """The checks of the VAE stage: the first that fails, else the last."""
    chained = sink.ends
    start = None if chained else latents_of(whole, openers, say)
    names, result = tuple(chained) or _rounds(request), _AGREES
    for name in names:
        last = sink if name == names[-1] else Sink()
        result = decode_round(request, name, chained.get(name), start, openers, say, last)
        if result.verdict != "pass":
            return result
    return result


def latents_of(request: Request, openers: Openers, say: Say) -> Given:
    """What both sides decode where no loops are compared: a port's latents, or those of the reference's own loop, in
    float32.

    Raises:
        UsageError: the port's file is not of this model's latents.
    """
    if request.stage2 is not None:
        from parity.paths.known_stages import file_latents  # torch, to read a file of its tensors

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
