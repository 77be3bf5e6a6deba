"""`parity explain`: why two paths differ, by witnesses that are independent of each other.

1. *Counterfactual* (a kept run, whose settings are known): the candidate is run again with one setting at a time as the
   reference has it.
2. *Signature* (any candidate, from its records alone): this machine's reference is run under each known fault, and the
   candidate's error is looked for among theirs. What none of them explains is said to be unknown.
3. *Gauge*: what the records at the origin show by themselves: phantom keys, a gain, another order.

A witness that lacks what it needs is skipped, and that is said.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parity.compare.diff import diff
from parity.compare.gauges import gauges
from parity.compare.judge import L2_LIMIT
from parity.compare.regress import Explained, common_keys, error_vector, noise_norm, search
from parity.compare.result import NAN, Cause, Result, Witness
from parity.diagnose.advice import remedy, sentence
from parity.diagnose.bisect_settings import plan
from parity.diagnose.counterfactual import Share, shares
from parity.diagnose.known_faults import Simulated, known_faults
from parity.diagnose.pairing import Say
from parity.diagnose.phantom_run import attention_values
from parity.diagnose.phantoms import Phantoms, count_phantoms
from parity.errors import ParityError, UsageError
from parity.golden import Golden
from parity.golden.fingerprint import fingerprint
from parity.golden.records import Key, Provenance, StepRecords
from parity.hooks.sites import ATTENTION
from parity.models.family import Case, Family, family_of, make_case
from parity.models.folder import resolve_model
from parity.models.spec import GenerationSpec
from parity.paths.inputs import make_inputs
from parity.paths.loop import denoise, prepare
from parity.settings import BITS, NEUTRAL, Settings, Value, parse

ALIKE = 0.02
"""Two faults whose errors differ by less than this share, or by rounding, cannot be told apart."""
UNKNOWN = 0.3
"""An error of which known faults leave more than this share of its norm is not explained by them."""


@dataclass(frozen=True, slots=True)
class ExplainRequest:
    """What `parity explain` was asked for.

    Attributes:
        reference, candidate: goldens. kept: the kept run's folder where they are of one, whose settings are known.
        model: in place of the golden's. stage1: the embeddings both were recorded with, where they were given a file.
        prompt: the prompt, where it was not the model's own.
        rounding: (setting, candidate's value) of the differing settings that the round of these goldens neutralised.
    """

    reference: str
    candidate: str
    kept: Path | None = None
    model: str | None = None
    stage1: Path | None = None
    prompt: str | None = None
    rounding: tuple[tuple[str, str], ...] = ()


def of_run(where: Path) -> ExplainRequest:
    """The request for a kept run (`parity run --out DIR`): its last round.

    Raises:
        UsageError: the folder is no kept run.
    """
    try:
        told = json.loads((where / "request.json").read_text())
        stage1, prompt = told["stage1"], told["prompt"]
        differing = json.loads((where / "result.json").read_text())["differing_settings"]
        rounding = tuple((str(d["setting"]), str(d["candidate"])) for d in differing if d["setting"] in NEUTRAL)
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(f"'{where}' is no kept run: make one with `parity run --out DIR`") from None
    at = where / "precision" if (where / "precision").is_dir() else where
    if not (at / "reference").is_dir():
        raise UsageError(f"'{where}' holds no records: it ended in preflight; its result.json says why")
    stage = Path(stage1) if isinstance(stage1, str) else None
    given = prompt if isinstance(prompt, str) else None
    left = rounding if at == where else ()
    return ExplainRequest(str(at / "reference"), str(at / "candidate"), where, None, stage, given, left)


def explain(request: ExplainRequest, say: Say) -> Result:
    """Find the causes of a difference.

    Raises:
        UsageError: no golden, a damaged one. UnjudgedError: nothing can be judged.
    """
    say("comparing")
    found = diff(request.reference, request.candidate)
    if found.verdict != "fail" or found.origin is None:
        note = "there is nothing to explain" if found.verdict == "pass" else "without a verdict there is no cause"
        return dataclasses.replace(found, notes=(*found.notes, note))
    step = found.origin.key.step
    ours, theirs = (Golden.open(where).read_step(step) for where in (request.reference, request.candidate))
    causes, notes = list(gauges(ours.records, theirs.records, found.origin)), list(found.notes)
    try:
        machine = _Machine.of(request, Golden.open(request.reference).provenance, say)
    except ParityError as error:
        notes.append(f"counterfactuals and signatures are skipped: {error}")
        return dataclasses.replace(found, causes=tuple(causes), notes=tuple(notes))
    named = _signatures(machine, request, ours, theirs, step, notes)
    swapped: list[Cause] = []
    if request.kept is not None:
        swapped = _counterfactuals(machine, request, ours, step, notes)
    merged = _merged(swapped, named)
    merged += _phantoms(machine, request, found.origin.key, step, notes)
    return dataclasses.replace(found, causes=(*merged, *causes), notes=tuple(notes))


@dataclass(frozen=True)
class _Machine:
    """The model of a golden on this machine."""

    family: Family
    case: Case
    provenance: Provenance
    settings: Settings
    stage1: Path | None
    say: Say

    @classmethod
    def of(cls, request: ExplainRequest, told: Provenance, say: Say) -> _Machine:
        """Raises ParityError where the model, its weights or its inputs are not the golden's."""
        name = request.model or told.model
        folder = resolve_model(name)
        spec = GenerationSpec.load(folder)
        if request.prompt is not None:
            spec = dataclasses.replace(spec, prompt=request.prompt)
        case, family = make_case(name, folder, spec), family_of(folder)
        if told.backend != "torch":
            raise UsageError("the reference golden was not recorded by a torch path of parity's")
        settings = parse("torch", [f"{k}={v}" for k, v in told.settings.items()])
        inputs, _ = make_inputs(
            family, case, settings, settings, steps=told.steps, seed=told.seed, stage1=request.stage1
        )
        own = {
            f"{branch}.{n}": fingerprint(np.asarray(x.float().numpy()))
            for branch, condition in inputs.conditions.items()
            for n, x in condition.items()
        }
        other = [n for n, known in told.inputs.items() if n in own and own[n] != known]
        if other:
            say(f"this machine encodes '{other[0]}' otherwise than the golden's did")
        return cls(family, case, told, settings, request.stage1, say)

    def settings_on(self, candidate: Settings) -> dict[str, Value]:
        """The reference's choices on the candidate's backend."""
        try:
            return dict(plan(self.settings, candidate).with_only(()).values)
        except UsageError:
            return dict(candidate.values)

    def simulated(self, step: int) -> Simulated:
        told = self.provenance
        return Simulated(self.family, self.case, self.settings, told.steps, told.seed, step, self.stage1, self.say)


def _signatures(
    machine: _Machine, request: ExplainRequest, ours: StepRecords, theirs: StepRecords, step: int, notes: list[str]
) -> list[Cause]:
    """Causes from the candidate's records alone."""
    simulated = machine.simulated(step)
    base = simulated.run(frozenset())
    names = tuple(known_faults(machine.settings, machine.family, machine.case))
    runs = {}
    for name in names:
        try:
            runs[name] = simulated.run(frozenset({name}))
        except ParityError as refused:
            notes.append(f"known fault {name} could not be run: {refused}")
    keys = common_keys(ours, theirs, base)
    if not keys:
        notes.append("signatures are skipped: the goldens share no outputs with this machine's reference")
        return []
    error = error_vector(ours, theirs, keys)
    noise = noise_norm(ours, keys)
    drift = float(np.linalg.norm(error_vector(ours, base, keys)))
    if drift > 3.0 * noise:
        notes.append(
            f"signatures are uncertain: this machine's reference is {drift / max(noise, 1e-300):.0f} x the floor from "
            "the golden's"
        )
    singles = {name: error_vector(base, run, keys) for name, run in runs.items()}

    def together(faults: frozenset[str]) -> np.ndarray | None:
        try:
            return error_vector(base, simulated.run(faults), keys)
        except ParityError:
            return None

    explained = search(error, singles, together, noise)
    if not explained.names or explained.residual > UNKNOWN:
        notes.append(_unknown(explained))
        return []
    return [_named(name, explained, singles, machine, noise) for name in explained.names]


def _unknown(explained: Explained) -> str:
    best = max(explained.fits.items(), key=lambda item: item[1].r2, default=None)
    nearest = "" if best is None else f"; the nearest, {best[0]}, has R2 {best[1].r2:.2f}"
    return f"unknown: no known fault, nor several together, has this error{nearest}"


def _named(name: str, explained: Explained, singles: dict[str, np.ndarray], machine: _Machine, noise: float) -> Cause:
    setting, _, value = name.partition("=")
    fit = explained.fits[name]
    size = float(np.linalg.norm(singles[name]))
    if size <= 3.0 * noise:
        text = f"beside the fault, {sentence(setting, value)}: harmless alone"
        witness = Witness("signature", 0.0, f"alone {size / noise if noise else 0.0:.2g} x what rounding gives")
        return Cause(text, setting, machine.settings.as_text()[setting], value, 0.0, (witness,))
    near = max(ALIKE * size, 3.0 * noise)
    alike = [n for n, v in singles.items() if n != name and float(np.linalg.norm(v - singles[name])) <= near]
    group = f" (or {', '.join(alike)}, whose errors are the same)" if alike else ""
    detail = (
        f"coefficient {fit.coefficient:.3f} +- {fit.half:.3f}, R2 {fit.r2:.4f}; with all named faults run on the "
        f"reference {explained.residual:.1%} of the error is left; confirm: parity record DIR --setting {name}, then "
        "parity diff DIR CANDIDATE passes"
    )
    share = fit.r2 if len(explained.names) == 1 else max(0.0, min(1.0, fit.r2))
    text = f"{sentence(setting, value)}{group}: {remedy(setting)}"
    reference = machine.settings.as_text()[setting]
    return Cause(text, setting, reference, value, share, (Witness("signature", fit.coefficient, detail),))


def _counterfactuals(
    machine: _Machine, request: ExplainRequest, ours: StepRecords, step: int, notes: list[str]
) -> list[Cause]:
    """Causes from running the candidate with one setting swapped at a time."""
    told = Golden.open(request.candidate).provenance
    if told.backend != "torchax":
        notes.append("counterfactuals are skipped: the candidate is not parity's own path")
        return []
    candidate = parse("torchax", [f"{k}={v}" for k, v in told.settings.items()])
    try:
        searched = plan(machine.settings, candidate)
    except UsageError as error:
        notes.append(f"counterfactuals are skipped: {error}")
        return []
    keys = tuple(k for k in common_keys(ours) if k.site == "loop:noise_pred")
    noise = noise_norm(ours, keys)

    def run(settings: Settings) -> np.ndarray:
        return error_vector(ours, _candidate_step(machine, settings, step), keys)

    found = [_swapped(share) for share in shares(searched, run, noise)]
    return [*found, *_neutralised(machine, request, candidate, ours, keys, step, notes)]


def _neutralised(
    machine: _Machine,
    request: ExplainRequest,
    candidate: Settings,
    ours: StepRecords,
    keys: Sequence[Key],
    step: int,
    notes: list[str],
) -> list[Cause]:
    """The differing settings that only round, of a run that failed before they came into play: each alone.

    Their floor is what the coarser working dtype costs the reference, as in the precision round.
    """
    found = []
    for setting, value in request.rounding:
        given = parse("torchax", [f"{setting}={value}"])
        alone = Settings("torchax", {**machine.settings_on(candidate), setting: given[setting]})
        if alone.values == candidate.values:
            continue
        error = error_vector(ours, _candidate_step(machine, alone, step), keys)
        noise = noise_norm(ours, keys)
        if alone.working_bits < machine.settings.working_bits:
            name = f"dtype={next(n for n, bits in BITS.items() if bits <= alone.working_bits)}"
            coarse = error_vector(ours, machine.simulated(step).run(frozenset({name})), keys)
            noise = max(noise, float(np.linalg.norm(coarse)))
        ratio = float(np.linalg.norm(error)) / noise
        harmless = ratio <= L2_LIMIT
        text = f"{'harmless, below the floor: ' if harmless else ''}{sentence(setting, value)}"
        detail = f"wrong alone, noise_pred is {ratio:.2g} x the floor of its working dtype"
        share = 0.0 if harmless else NAN
        found.append(Cause(text, setting, "", value, share, (Witness("counterfactual", ratio, detail),)))
    return found


def _candidate_step(machine: _Machine, settings: Settings, step: int) -> StepRecords:
    from parity.paths.candidate import load_candidate  # jax and torchax, only from here on

    machine.say("candidate with swapped settings")
    told = machine.provenance
    _, theirs = make_inputs(
        machine.family, machine.case, machine.settings, settings, steps=told.steps, seed=told.seed,
        stage1=machine.stage1,
    )  # fmt: skip
    loop = prepare(load_candidate(machine.family, machine.case, settings, theirs))
    *_, last = denoise(loop, None, stop=step + 1)
    return last


def _swapped(found: Share) -> Cause:
    swap = found.swap
    if found.harmless:
        text = f"harmless: {sentence(swap.setting, swap.candidate)}"
        detail = f"wrong alone, noise_pred is {found.alone:.2g} x what rounding gives"
    else:
        text = f"{sentence(swap.setting, swap.candidate)}: {remedy(swap.setting)}"
        detail = (
            f"swapped back, {found.recovered:.2%} of the error of noise_pred goes; share {found.share:.3f} +- "
            f"{found.half:.1g}; confirm: parity run without --candidate {swap.setting}={swap.candidate}"
        )
    witness = Witness("counterfactual", found.recovered, detail)
    return Cause(text, swap.setting, swap.without, swap.candidate, found.share, (witness,))


def _merged(swapped: Sequence[Cause], named: Sequence[Cause]) -> list[Cause]:
    """One cause a setting, with all its witnesses; what only one kind of witness names stands by itself."""
    merged = []
    for cause in swapped:
        same = [c for c in named if (c.setting, c.candidate) == (cause.setting, cause.candidate)]
        witnesses = (*cause.witnesses, *(w for c in same for w in c.witnesses))
        merged.append(dataclasses.replace(cause, witnesses=witnesses))
    known = {(c.setting, c.candidate) for c in swapped}
    # Where settings are known a signature only confirms them: another name for the same error is no second cause.
    rest = [c for c in named if (c.setting, c.candidate) not in known] if not swapped else []
    return sorted([*merged, *rest], key=lambda c: -c.share)


def _phantoms(machine: _Machine, request: ExplainRequest, origin: Key, step: int, notes: list[str]) -> list[Cause]:
    """Phantom keys, where the divergence is born in an attention call."""
    if origin.module.rpartition(".")[2] != ATTENTION:
        return []
    try:
        reference, candidate = attention_values(request, machine.settings, origin.module, step, machine.say)
    except ParityError as error:
        notes.append(f"phantom keys are not counted: {error}")
        return []
    counted = count_phantoms(reference, candidate, origin.module)
    return [_phantom(p, origin.module) for p in counted if p.is_certain]


def _phantom(found: Phantoms, module: str) -> Cause:
    text = (
        f"{found.count:.2f} phantom keys on {found.branch} = {found.meaning()}: keys and values are zeroed there, each "
        "still has weight exp(0); mask the logits, or rescale the output by the log-sum-exp"
    )
    detail = f"{found.count:.4f} +- {found.spread:.1g} at {found.share:.1%} of the queries and heads of {module}"
    return Cause(text, "", "", "", NAN, (Witness("gauge", found.count, detail),))
