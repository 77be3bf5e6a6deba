"""A run of several stages, in their order: text, transformer, vae; each judged by itself and in the chain.

The transformer stage is `parity.runs.run`. The others are `parity.paths.stage.Stage`s, judged round by round as it
is: in float32 first, then as given. The VAE starts from the latents that the loops came to, which are taken from the
run as it ends. The verdict is that of the first stage that fails.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from parity.compare.reason import Note
from parity.compare.result import Result
from parity.errors import UsageError
from parity.golden.facts import Facts
from parity.golden.records import StepRecords
from parity.hooks.modules import module_tree
from parity.hooks.sites import split_sites
from parity.models.family import Family
from parity.models.folder import read_config, skeleton
from parity.models.registry import family_of, make_case, resolve_model
from parity.models.spec import Case, GenerationSpec
from parity.models.stage2 import read_stage2
from parity.paths.inputs import Conditions, Encoded, make_inputs
from parity.paths.loop import denoise, prepare
from parity.paths.plan import Array
from parity.paths.reference import load_reference
from parity.paths.side import Pair
from parity.paths.worker.trees import array
from parity.reached import Reached
from parity.runs.compare import run
from parity.runs.request import Request, Say
from parity.runs.sides import Own
from parity.runs.sink import NoSink, Sink
from parity.runs.stages.merged import merged
from parity.runs.stages.text import judge_text, text_modules
from parity.runs.stages.vae import Ends, decode_round, reference_latents, vae_stage
from parity.runs.stream import Ends as StreamEnds
from parity.settings import parse

STAGES = ("text", "transformer", "vae")

Choices = Mapping[str, tuple[str, tuple[str, ...]]]
"""Stage -> its own sites and values."""


def run_chain(request: Request, say: Say, sink: Sink | None = None) -> Result:
    """Run the stages of a request that names others than the transformer.

    Raises:
        UsageError: bad input. UnjudgedError: a chosen site never fired, or a setting's code was not reached.
    """
    say("preparing the checkpoint")
    case, family = case_of(request)
    given = _stage2(case, request) if request.stage2 is not None else None
    choices = split_sites(stage_modules(case, family, request.stages), request.sites, request.values)
    found: dict[str, Result] = {}
    ends = _Ends(sink or NoSink())
    own: Encoded_ = {}
    told: list[str] = []
    if "text" in request.stages:
        texts = judge_text(request, case, family, _rounds(request), choices["text"], say)
        found["text"], own = texts.result, texts.own
        told = [_embeddings_used(request, own)] if "transformer" in request.stages else []
    if "transformer" in request.stages:
        sites, values = choices["transformer"]
        found["transformer"] = run(dataclasses.replace(request, sites=sites, values=values), say, ends, encodings(own))
    if "vae" in request.stages:
        rounds = ends.rounds or _rounds_alone(request, case, family, given, say)
        if "transformer" in found and found["transformer"].failed == "preflight":
            rounds = {}
        decoded = _decode(case, request, rounds, choices["vae"], say, ends.inner)
        if decoded is not None:
            found["vae"] = decoded
    result = merged([(name, found[name]) for name in STAGES if name in found], request)
    return dataclasses.replace(result, notes=(*map(Note, told), *result.notes))


Encoded_ = Mapping[str, tuple[Encoded, Encoded]]
"""Round -> what each side's text stage made."""


def encodings(own: Encoded_) -> dict[str, Pair[Own]]:
    """Both sides' embeddings of each round, as they are handed to the loops."""

    return {name: Pair(*map(handed, both)) for name, both in own.items()}


def handed(encoded: Encoded) -> Own:
    """A side's embeddings, as they are handed to its loop."""

    def given(conditions: Conditions) -> dict[str, Array]:
        return {f"{b}.{name}": array(x) for b, arguments in conditions.items() for name, x in arguments.items()}

    beside = {name: given(conditions) for name, conditions in encoded.beside.items()}
    return Own(given(encoded.own), beside, {name: array(x) for name, x in encoded.tokens.items()})


def _embeddings_used(request: Request, own: Encoded_) -> str:
    """Which embeddings the loops were given, as the reader has to know what a difference in them would mean."""
    if request.stage1 is None:
        each, both = "each its own encoders'", "the reference's"
    else:
        each, both = "the reference its own encoders', the candidate the file's", "the file's"
    if not own:
        return f"embeddings of the loops: {both} on both sides, as the text stage gave none to go on from"
    also = f"; in the structure round {both} on both sides" if "structure" not in own else ""
    return f"embeddings of the loops: {each}{also if len(_rounds(request)) > 1 else ''}"


def case_of(request: Request) -> tuple[Case, Family]:
    """The sizes and the family of the model whose stages are run."""
    folder = resolve_model(request.model)
    spec = GenerationSpec.load(folder)
    if request.prompt is not None:
        spec = dataclasses.replace(spec, prompt=request.prompt)
    return make_case(request.model, folder, spec), family_of(folder)


def stage_modules(case: Case, family: Family, stages: tuple[str, ...]) -> dict[str, list[str]]:
    """The module paths of each stage, known from the configs alone (as far as the classes make them)."""
    found: dict[str, list[str]] = {}
    if "text" in stages:
        modules = text_modules(case, family.text(case))
        found["text"] = list(dict.fromkeys(name for names in modules.values() for name in names))
    if "transformer" in stages:
        found["transformer"] = ["", *module_tree(skeleton(case.folder, "transformer")), "rope"]
    if "vae" in stages:
        settings = parse("torch")
        root = vae_stage(case).load(settings, Reached(settings, "vae"))
        found["vae"] = ["", *module_tree(root)]
    return found


def _stage2(case: Case, request: Request) -> np.ndarray:
    """A port's latents, float32 [B, C, T, H, W]."""
    assert request.stage2 is not None
    latents, _ = read_stage2(request.stage2)
    channels = int(read_config(case.folder, "vae")["latent_channels"])
    if latents.shape[1] != channels:
        other = "; they are laid out [B, T, C, H, W], permute them" if latents.shape[2] == channels else ""
        raise UsageError(
            f"{request.stage2}: tensor 'latents': expected [B, {channels}, T, H, W] for the VAE of '{case.name}', "
            f"found {list(latents.shape)}{other}"
        )
    return latents.to(torch.float32).numpy()


@dataclass
class _Ends:
    """A sink that keeps the final latents of each round, and hands everything on.

    Attributes:
        inner: the sink of the run. rounds: name -> what the round came to.
    """

    inner: Sink
    rounds: dict[str, Ends] = field(default_factory=dict)
    name: str = ""

    def begin(self, facts: Pair[Facts], name: str) -> str | None:
        self.name = name
        return self.inner.begin(facts, name)

    def step(self, reference: StepRecords, candidate: StepRecords) -> None:
        self.inner.step(reference, candidate)

    def finish(self, ends: Pair[StreamEnds]) -> None:
        self.inner.finish(ends)
        self.rounds[self.name] = Ends(ends.reference.own, ends.candidate.own, ends.reference.beside)

    def frames(self, name: str, frames: np.ndarray) -> None:
        self.inner.frames(name, frames)


def _rounds_alone(request: Request, case: Case, family: Family, given: np.ndarray | None, say: Say) -> dict[str, Ends]:
    """Rounds of the VAE without a transformer stage: from a port's latents, or those of the reference's own loop."""
    latents = given if given is not None else _reference_latents(request, case, family, say)
    return {name: Ends(latents) for name in _rounds(request)}


def _rounds(request: Request) -> tuple[str, ...]:
    """The rounds of a stage outside the loop, as `parity.runs.run` has them."""
    exact = dataclasses.replace(request, reference=request.reference.neutral, candidate=request.candidate.neutral)
    if exact == request:
        return ("structure",)
    return ("structure", "precision") if request.rounds == "both" else (request.rounds,)


def _reference_latents(request: Request, case: Case, family: Family, say: Say) -> np.ndarray:
    stage1 = None if "text" in request.stages else request.stage1  # there it is the candidate's
    say("encoding the prompt" if stage1 is None else "reading the embeddings")
    ours = request.reference.neutral
    inputs, _ = make_inputs(family, case, ours, ours, steps=request.steps, seed=request.seed, stage1=stage1)
    loop = prepare(load_reference(family, case, ours, inputs))
    for step in denoise(loop, None):
        say("the reference's latents", step.step, request.steps)
    return reference_latents(case, loop.side.backend.to_torch(loop.latents), family)


def _decode(
    case: Case, request: Request, rounds: Mapping[str, Ends], choice: tuple[str, tuple[str, ...]], say: Say, sink: Sink
) -> Result | None:
    """The rounds of the VAE stage: the first that fails, else the last."""
    result = None
    for name, ends in rounds.items():
        neutral = name == "structure"
        settings = (s.neutral if neutral else s for s in (request.reference, request.candidate))
        ours, theirs = settings
        these = dataclasses.replace(request, reference=ours, candidate=theirs)
        failing = "precision" if not neutral or request.rounds == "precision" else "structure"
        last = name == list(rounds)[-1]
        result = decode_round(case, these, ends, choice, failing, say, sink if last else NoSink())  # type: ignore[arg-type]
        if result.verdict != "pass":
            return result
    return result
