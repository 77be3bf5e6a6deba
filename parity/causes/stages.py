"""Why two sides differ in a stage outside the loop: the text encoders, the VAE.

How. The stage is compared again by itself, which measures its floors. Then the candidate's stage runs with one of its
differing settings at a time, as in the loop (`parity.causes.swaps`). What only rounds takes no part where the logic
check failed. Where no setting of the text stage differs, what differs is in its code, as a note says.

Where no setting of a VAE differs, or a port decodes, nothing is known of its code. The reference then decodes the same
latents with one known fault at a time (`vae.attention=by_frame`, `vae.norm=by_frame`, ...;
`parity.hooks.faults`), and the candidate's error of the frames is looked for among theirs, as an error of the
loop is (`parity.causes.match`). Each is tried on latents that were not divided too: a port that forgets the division
often has another fault. A fault of something that this VAE has not is left out: its code is never reached.

Cost: a comparison of the stage, two runs of it for each differing setting, or two for each known fault.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from parity.bisect.settings import plan
from parity.causes.evidence import decoder_faults
from parity.causes.match import WITHIN, Faults, Known, Vector, as_read, error_vector, matched, noise_norm, scale_of
from parity.causes.swaps import swap_test
from parity.compare.reason import Note
from parity.compare.result import Cause, Result
from parity.errors import ParityError, Say, UsageError
from parity.hooks.sites import SitePlan
from parity.models.registry import opened
from parity.models.text import TEXT
from parity.paths.plan import Openers, Plan, Role, Start
from parity.records import AFTER, LOOP, OUTSIDE, Floor, Key, Record, StepRecords
from parity.runs.chain import latents_of
from parity.runs.compare import run
from parity.runs.request import Request, RunSpec
from parity.runs.sides import spec_of
from parity.settings import BY_NAME, Settings, differences

NOT_DIVIDED = "vae.scaling=none"
"""Tried beside each fault of a decoder: a port that forgets the division often has another fault too."""


def explain_stage(request: Request, openers: Openers, say: Say) -> Iterator[Cause | Note]:
    """Compare one stage again and name the causes of its difference.

    Args:
        request: of one stage outside the loop.

    Raises:
        UsageError: the model or a file is not there. InconclusiveError: the stage cannot be judged.
    """
    stage, found = request.stage, run(request, say, openers=openers)
    if why := _not_run_again(request, found):
        yield Note(why)
        return
    if found.failed == "logic":
        request = request.of("logic")
    outputs = (d for d in found.sites if d.key.module == LOOP and not math.isnan(d.distance.floor))
    again = _again(request, openers, say, {d.key: d.distance.floor for d in outputs})
    varied = [d for d in differences(request.reference, request.candidate) if BY_NAME[d.setting].is_of((stage,))]
    if stage == AFTER and (request.ports.any or not varied):
        yield from _decoding(request, again)
        return
    try:
        searched = plan(request.reference, request.candidate, stages=(stage,))
        ours = again("reference", request.reference.neutral)
        keys = tuple(r.key for r in ours.records)
        swap = functools.partial(again, "candidate")
        yield from swap_test(searched, ours, keys, swap, RunSpec.of(request).at((stage,)))
    except UsageError as error:
        yield Note(f"no cause is named in the {stage} stage: {error}; what differs is in its code")


def _not_run_again(request: Request, found: Result) -> str:
    """Why a stage that was compared again is not run with other settings; empty where it is."""
    if found.verdict != "fail":
        return f"compared again, the {request.stage} stage agrees on this machine"
    if found.failed == "preflight":
        return f"what the {request.stage} stage is given or gives differs: nothing was run again"
    if request.ports.any and request.stage != AFTER:
        return "a port stands in this run: its code is its own, and no setting of its stage is swapped"
    if request.stage == TEXT and request.stage1 is not None:
        return "the candidate's embeddings are a file's: there is no encoder of its own to run again"
    return ""


def _decoding(request: Request, again: Callable[[Role, Settings], StepRecords]) -> Iterator[Cause | Note]:
    """Causes for the known faults that have the error of the candidate's frames."""
    ours = again("reference", request.reference.neutral)
    theirs = again("candidate", request.candidate)
    keys = tuple(r.key for r in ours.records)
    spec = RunSpec.of(request)
    told = request.reference.as_text()
    error, noise = error_vector(ours, theirs, keys), noise_norm(ours, keys)
    known = Known(error, noise, told, lambda fault: spec.with_settings(reference=[fault]).command())
    if known.is_rounding:
        yield WITHIN
        return
    singles = [frozenset({name}) for name in decoder_faults(request.reference)]
    beside = [one | {NOT_DIVIDED} for one in singles if not any(name.startswith("vae.scaling=") for name in one)]
    errors: dict[Faults, Vector] = {}
    for faults in (*singles, *beside):
        changes = {name: BY_NAME[name].read(value) for name, _, value in (fault.partition("=") for fault in faults)}
        with contextlib.suppress(ParityError):  # this VAE has nothing that they change
            made = again("reference", request.reference.neutral.with_(changes))
            errors[faults] = error_vector(ours, made, keys)
    yield from matched(known, errors)


def _again(
    request: Request, openers: Openers, say: Say, floors: Mapping[Key, float]
) -> Callable[[Role, Settings], StepRecords]:
    """Runs a stage again on one side, for its outputs: all encoders of the text stage, one after the other, or the
    decoder.

    Args:
        request: of the stage. floors: of its outputs, relative, as the comparison measured them: they hold what the
            sides' own dtypes cost the reference.
    """
    parts = _parts(request)
    given = Start(latents_of(request, openers, say) if request.stage == AFTER else None)  # what both sides decode
    ports = replace(request.ports, reference=None)  # known faults are of parity's own code

    def outputs(role: Role, settings: Settings) -> StepRecords:
        records: list[Record] = []
        for part, own in parts:
            say(f"{request.stage} {part}".rstrip() + f": the {role} with other settings")
            asked = replace(request, part=part, ports=ports, reference=own(settings), candidate=own(settings))
            with contextlib.closing(openers.of(role).open(spec_of(asked, role, given))) as side:
                first = next(iter(side.observe(Plan(sites=SitePlan("none", (), frozenset())))))
            records += [r for r in first.records if r.key.module == LOOP and r.sketch is not None]
        known = {r.key: Floor(floors[r.key] * scale_of(r)) for r in records if r.key in floors}
        return as_read(StepRecords(OUTSIDE, tuple(records), known)).where(lambda key: not key.is_apart)

    return outputs


def _parts(request: Request) -> tuple[tuple[str, Callable[[Settings], Settings]], ...]:
    """What a stage consists of: the part's name, and its own settings among a side's."""
    if request.stage != TEXT:
        return (("", lambda settings: settings.with_({"text.byt5_dtype": "same"})),)
    family, case = opened(request.model, prompt=request.prompt)
    return tuple((e.part, e.settings) for e in family.text(case).encoders if e.tokens)
