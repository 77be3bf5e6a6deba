"""The text stage of a run: both sides encode the prompts, each encoder compared by itself on the same token ids.

What each side encoded is then what its transformer is fed (`Start`), and what the runs encoded that measured the
floors is what the loop's runs of the same names are fed, so that the floors of the transformer hold what the encoders'
rounding grows to. With a port's stage-1 file the file stands in the candidate's place. Before any encoder runs, token
ids and the rows that masks leave are checked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import torch

from parity.compare.conclude import stage_diff
from parity.compare.preflight import failed
from parity.compare.reason import Reason
from parity.compare.result import Check, Result
from parity.errors import InconclusiveError, Say
from parity.models.patches import DTYPES
from parity.models.registry import opened
from parity.models.stage_files import read_stage1
from parity.models.text import TEXT, Encoder, TextStage
from parity.paths.loaded import array, tensor
from parity.paths.plan import Ends, Given, Openers, Pair, Start, split_branches
from parity.runs.compare import Encodings, compare_stage, merged
from parity.runs.request import Choice, Request
from parity.settings import BITS, Settings
from parity.transforms import stored_as


def compare_text(
    request: Request, rounds: tuple[str, ...], choices: Mapping[str, Choice], openers: Openers, say: Say
) -> tuple[Result, Encodings]:
    """Compare the encoders of a run; returns the result of the last check, and each side's own embeddings by check,
    none where it does not pass.

    Args:
        rounds: of the run, in their order. choices: sites and values by encoder's part.

    Raises:
        UsageError: the family's encoders are not known, the checkpoint lacks one, a stage-1 file does not fit.
        InconclusiveError: a chosen site never fired, or a setting's code was not reached.
    """
    family, case = opened(request.model, prompt=request.prompt)
    text = family.text(case)
    for encoder in text.encoders:
        both = (request.reference, request.candidate)
        if encoder.stream.byt5 and not encoder.tokens and any(s.changed("text.byt5_dtype") for s in both):
            raise InconclusiveError(
                "text.byt5_dtype is never reached: neither prompt quotes anything, so ByT5 is not called"
            )
    say("text: tokens")
    checks = token_checks(text)
    file = None
    if request.stage1 is not None:
        file = read_stage1(request.stage1, family.streams, case.config)
        checks = (*checks, *file_checks(text, file))
    if (bad := failed(checks)) is not None:
        why = Reason(kind="preflight", check=bad.check, detail=bad.detail, stage=TEXT)
        return Result("fail", "preflight", why, request.model, preflight=checks), {}
    came: dict[str, dict[str, Pair[Ends]]] = {}
    results: dict[str, Result] = {}
    notes: list[str] = []
    for encoder in (e for e in text.encoders if e.tokens):
        theirs, one = encoder.settings(request.candidate), request.checks
        sites = choices[encoder.part]
        if file is not None:
            # The file is one set of numbers, so that there is one check: in the dtype that the candidate's settings
            # say, or the file's own where that is coarser.
            argument = encoder.stream.argument
            theirs, note = _of_file(encoder, theirs, [file[branch][argument] for branch in encoder.tokens])
            notes += [note] if note else []
            bits = min(encoder.settings(request.reference).working_bits, theirs.working_bits)
            one, sites = ("precision" if bits < BITS["float32"] else "logic"), ("none", ())
        alone = dataclasses.replace(
            request,
            reference=encoder.settings(request.reference),
            candidate=theirs,
            sites=sites[0],
            values=sites[1],
            checks=one,
            stages=(TEXT,),
            part=encoder.part,
            isolate="none",
        )
        results[encoder.part], came[encoder.part] = compare_stage(alone, openers, say, {})
    result = dataclasses.replace(merged(results, request), preflight=checks).noted(*notes)
    result = dataclasses.replace(result, stages=(stage_diff(result, TEXT),))
    if result.verdict != "pass":
        return (result, {})
    coarse = file is not None and any("precision" in ends for ends in came.values())
    own: dict[str, Pair[Start]] = {}
    for name in rounds:
        if coarse and name == "logic":
            continue  # rounded embeddings are no float32 candidate: both sides take the file there
        pair = _encoded(text, came, name, request.of(name))
        if file is not None:
            dtype = DTYPES[request.candidate.text("dtype")]
            given = {f"{b}.{k}": array(x.to(dtype)) for b, c in file.items() for k, x in c.items()}
            pair = Pair(pair.reference, dataclasses.replace(pair.candidate, inputs=given))
        own[name] = pair
    return (result, own)


def _of_file(encoder: Encoder, said: Settings, held: list[torch.Tensor]) -> tuple[Settings, str]:
    """The settings that a file's embeddings are judged with, and what is to be said of them."""
    found = stored_as(np.concatenate([array(x).values.ravel() for x in held]))
    if BITS[found] >= said.working_bits:
        return said, ""
    return said.with_({"dtype": found}), f"the file's {encoder.stream.name} are {found} numbers, and are judged as such"


def _encoded(text: TextStage, came: Mapping[str, Mapping[str, Pair[Ends]]], name: str, request: Request) -> Pair[Start]:
    """Both sides' own embeddings of a check, with its settings; of an encoder without it those of the one it has.

    Args:
        came: an encoder's part -> check -> what both sides came to.
    """
    at = {part: rounds.get(name) or next(iter(rounds.values())) for part, rounds in came.items()}
    ours = start_of(text, {part: pair.reference for part, pair in at.items()}, request.reference)
    return Pair(ours, start_of(text, {part: pair.candidate for part, pair in at.items()}, request.candidate))


def start_of(text: TextStage, ends: Mapping[str, Ends], settings: Settings) -> Start:
    """The embeddings that a loop starts from: its side's own, and those of the runs that measured the encoders' floors.

    An encoder that made no such run takes part in it with its own.

    Args:
        ends: an encoder's part -> what its side came to.
    """

    def given(run: str, dtype: torch.dtype) -> Given:
        made: dict[str, dict[str, torch.Tensor]] = {encoder.part: {} for encoder in text.encoders}
        for part, of in ends.items():
            outputs = split_branches(of.runs.get(run) or of.own)
            made[part] = {branch: tensor(x) for branch, named in outputs.items() for x in named.values()}
        conditions = text.conditions(made, dtype)
        return {f"{b}.{k}": array(x) for b, arguments in conditions.items() for k, x in arguments.items()}

    names = dict.fromkeys(name for of in ends.values() for name in of.beside)
    others = {name: given(name, torch.float64 if name == "float64" else torch.float32) for name in names}
    tokens = {name: array(x) for name, x in text.tokens().items()}
    return Start(given("", DTYPES[settings.text("dtype")]), others, tokens)


def token_checks(text: TextStage) -> tuple[Check, ...]:
    """Token ids and masks, which both sides are given.

    Ids beyond the table of embeddings are an error in torch and whatever lies there in JAX, so they are looked for.
    """
    for encoder in text.encoders:
        top = max((int(given["input_ids"].max()) for given in encoder.tokens.values()), default=0)
        if top >= encoder.vocabulary:
            detail = f"{encoder.part}: token id {top} is beyond its {encoder.vocabulary} embeddings: another tokenizer"
            return (Check("text tokens", "fail", detail),)
    valid = [
        f"{encoder.part} {branch} {int(encoder.mask(branch).sum())} of {encoder.length}"
        for encoder in text.encoders
        for branch in ("cond", "uncond")
    ]
    return (Check("text tokens", "pass", f"{len(text.tokens())} tensors; rows that count: {', '.join(valid)}"),)


def file_checks(text: TextStage, given: Mapping[str, Mapping[str, torch.Tensor]]) -> tuple[Check, ...]:
    """A stage-1 file's masks, or where it has none its lengths, against this tokenizer's."""
    said = []
    for encoder in text.encoders:
        for branch, name in (("cond", encoder.stream.name), ("uncond", f"negative_{encoder.stream.name}")):
            expected = int(encoder.mask(branch).sum())
            arguments, stream = given[branch], encoder.stream
            rows = arguments[stream.argument].shape[1]
            count = int((arguments[stream.mask_argument] > 0).sum()) if stream.masked else rows
            if count != expected:
                detail = (
                    f"'{name}' has {count} valid tokens, the prompt {expected}: another prompt (--prompt), template, "
                    "length or mask"
                )
                return (Check("stage1 rows", "fail", detail),)
            said.append(f"{name} {count}")
    return (Check("stage1 rows", "pass", f"as many valid tokens as the prompts: {', '.join(said)}"),)
