"""The text stage of a run: both sides encode the prompts, each encoder judged by itself on the same token ids.

What each side encoded is then what its transformer is fed (`Encoded`), and what the runs encoded that measured the
floors is what the loop's runs of the same names are fed, so that the floors of the transformer hold what the encoders'
rounding grows to. With a port's stage-1 file the file stands in the candidate's place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from parity.compare.conclude import stage_diff
from parity.compare.reason import Note, Reason
from parity.compare.result import Check, Failed, Result
from parity.errors import UnjudgedError
from parity.hooks.modules import module_tree
from parity.hooks.sites import split_sites
from parity.models.family import Family
from parity.models.patches import DTYPES
from parity.models.spec import Case
from parity.models.text import TEXT, Encoder, TextStage, divided, load_encoder, skeleton
from parity.paths.inputs import Conditions, Encoded
from parity.paths.stage import Stage, TorchStage
from parity.paths.stage_file import HeldStage, held_dtype
from parity.runs.request import Request, Say
from parity.runs.stages.merged import merged
from parity.runs.stages.stage import (
    Branches,
    Judged,
    StagePair,
    coarse_runs,
    judge_stage,
    load_stage,
    with_checks,
)
from parity.runs.stages.text_checks import file_checks, token_checks
from parity.settings import BITS, Settings

Choice = tuple[str, tuple[str, ...]]


@dataclasses.dataclass(frozen=True)
class Texts:
    """What the text stage came to.

    Attributes:
        result: of its last round. own: round -> each side's own embeddings; empty where it does not pass.
    """

    result: Result
    own: Mapping[str, tuple[Encoded, Encoded]]


def text_modules(case: Case, text: TextStage) -> dict[str, list[str]]:
    """Part -> the module paths of its encoder's stage, known from the configs alone."""
    return {e.part: ["", *module_tree(skeleton(case, e))] for e in text.encoders}


def encoder_stage(case: Case, encoder: Encoder) -> Stage:
    """The stage that runs one encoder; its records have the branch of the prompt."""
    place = "text.byt5" if encoder.byt5 else TEXT
    load: Any = partial(load_encoder, case, encoder)
    return Stage(TEXT, encoder.part, load, encoder.rule, encoder.frames, encoder.divide, place)


def judge_text(
    request: Request, case: Case, family: Family, rounds: tuple[str, ...], choice: Choice, say: Say
) -> Texts:
    """Judge the encoders of a run, round by round; the first round that fails is the last.

    Raises:
        UsageError: the family's encoders are not known, the checkpoint lacks one, a stage-1 file does not fit.
        UnjudgedError: a chosen site never fired, or a setting's code was not reached.
    """
    text = family.text(case)
    for encoder in text.encoders:
        given = (request.reference, request.candidate)
        if encoder.byt5 and not encoder.tokens and any(s.changed("text.byt5_dtype") for s in given):
            raise UnjudgedError(
                "text.byt5_dtype is never reached: neither prompt quotes anything, so ByT5 is not called"
            )
    say("text: tokens")
    checks = token_checks(text, family.text(case))
    if request.stage1 is not None:
        return _judge_file(request, case, text, rounds, checks, say)
    own: dict[str, tuple[Encoded, Encoded]] = {}
    result = with_checks(Result("pass", None, Reason(kind="agrees"), request.model), checks, TEXT)
    choices = split_sites(text_modules(case, text), *choice)
    for name in rounds if result.verdict == "pass" else ():
        ours, theirs = request.reference, request.candidate
        if name == "structure":
            ours, theirs = ours.neutral, theirs.neutral
        failing: Failed = "precision" if name != "structure" or request.rounds == "precision" else "structure"
        judged = {}
        for encoder in text.encoders:
            if not encoder.tokens:
                continue
            say(f"text: loading {encoder.part}")
            pair = load_stage(encoder_stage(case, encoder), encoder.settings(ours), encoder.settings(theirs))
            judged[encoder.part] = judge_stage(pair, encoder.tokens, choices[encoder.part], request.model, failing, say)
        result = _joined(judged, request, checks)
        if result.verdict != "pass":
            return Texts(result, {})
        own[name] = _encoded(text, judged, ours, theirs)
    return Texts(result, own)


def _joined(judged: Mapping[str, Judged], request: Request, checks: tuple[Check, ...]) -> Result:
    """One result of the encoders, with the line of the stage."""
    each = [(part, j.result) for part, j in judged.items()]
    found = with_checks(merged(each, request), checks, TEXT)
    if found.verdict == "pass":
        encoders = tuple(dataclasses.replace(result.why, encoder=part) for part, result in each)
        found = dataclasses.replace(found, why=Reason(kind="agrees", stage=TEXT, together=encoders))
    return dataclasses.replace(found, stages=(stage_diff(found, TEXT),))


def _judge_file(
    request: Request, case: Case, text: TextStage, rounds: tuple[str, ...], checks: tuple[Check, ...], say: Say
) -> Texts:
    """A port's embeddings in the candidate's place. The file is one set of numbers, so that there is one round: in the
    dtype that the candidate's settings say, or the file's own where that is coarser."""
    assert request.stage1 is not None
    given = text.read(request.stage1, case.config)
    checks = (*checks, *file_checks(text, given))
    result = with_checks(Result("pass", None, Reason(kind="agrees"), request.model), checks, TEXT)
    if result.verdict != "pass":
        return Texts(result, {})
    judged, notes = {}, []
    coarse = False
    for encoder in text.encoders:
        held = {branch: given[branch][encoder.argument] for branch in encoder.tokens}
        if not held:
            continue
        theirs, note = _of_file(encoder, encoder.settings(request.candidate), held)
        notes += [note] if note else []
        runs = coarse_runs(encoder.settings(request.reference), theirs)
        coarse = coarse or bool(runs)
        stage = encoder_stage(case, encoder)
        rows = dataclasses.replace(stage, divide=partial(_file_rows, encoder, given))
        outputs = {branch: {encoder.output: x} for branch, x in held.items()}
        say(f"text: loading {encoder.part}")
        truth = TorchStage(stage, encoder.settings(request.reference.neutral))
        pair = StagePair(stage, truth, HeldStage(rows, outputs), runs)
        failing: Failed = "precision" if runs else "structure"
        nothing: Choice = ("none", ())
        judged[encoder.part] = judge_stage(pair, encoder.tokens, nothing, request.model, failing, say)
    result = _joined(judged, request, checks)
    result = dataclasses.replace(result, notes=(*result.notes, *map(Note, notes)))
    if result.verdict != "pass":
        return Texts(result, {})
    own = {}
    for name in rounds:
        if coarse and name == "structure":
            continue  # rounded embeddings are no float32 candidate: both sides take the file there
        ours, theirs = request.reference, request.candidate
        encoded = _encoded(text, judged, ours if coarse else ours.neutral, theirs)
        file = {b: {k: x.to(DTYPES[theirs.text("dtype")]) for k, x in c.items()} for b, c in given.items()}
        own[name] = (encoded[0], dataclasses.replace(encoded[1], own=file))
    return Texts(result, own)


def _of_file(encoder: Encoder, said: Settings, held: Mapping[str, torch.Tensor]) -> tuple[Settings, str]:
    """The settings that a file's embeddings are judged with, and what is to be said of them."""
    found = held_dtype(list(held.values()))
    if BITS[found] >= said.working_bits:
        return said, ""
    return said.replace(dtype=found), f"the file's {encoder.output} are {found} numbers, and are judged as such"


def _file_rows(encoder: Encoder, given: Conditions, branch: str, x: np.ndarray) -> dict[str, tuple[np.ndarray, str]]:
    if not encoder.masked:
        return {"": (x, "")}
    return divided(given[branch][encoder.mask_argument][0].to(torch.float32).numpy() > 0, x)


def _encoded(
    text: TextStage, judged: Mapping[str, Judged], reference: Settings, candidate: Settings
) -> tuple[Encoded, Encoded]:
    """Both sides' own embeddings, and those of the runs beside them."""

    def run(name: str) -> dict[str, Branches]:
        """Of the runs of one name; an encoder that was not run so has its nearest."""
        return {p: j.others.get(name) or (j.others.get("reference") if name == "coarse" else None) or j.truth
                for p, j in judged.items()}  # fmt: skip

    names = dict.fromkeys(name for j in judged.values() for name in j.others)
    beside = {n: conditions_of(text, run(n), torch.float64 if n == "float64" else torch.float32) for n in names}
    beside["float32"] = conditions_of(text, {p: j.truth for p, j in judged.items()}, torch.float32)
    ours = conditions_of(text, run("reference"), DTYPES[reference.text("dtype")])
    theirs = conditions_of(text, {p: j.candidate for p, j in judged.items()}, DTYPES[candidate.text("dtype")])
    tokens = text.tokens()
    return Encoded(ours, beside, tokens), Encoded(theirs, {}, tokens)


def conditions_of(text: TextStage, runs: Mapping[str, Branches], dtype: torch.dtype) -> Conditions:
    """What the encoders gave, as the transformer takes it. `runs`: an encoder's part -> branch -> its run."""
    outputs = {e.part: e.output for e in text.encoders}
    made: dict[str, dict[str, torch.Tensor]] = {part: {} for part in outputs}
    for part, branches in runs.items():
        for branch, seen in branches.items():
            made[part][branch] = torch.from_numpy(np.array(seen.outputs[outputs[part]]))
    return text.conditions(made, dtype)
