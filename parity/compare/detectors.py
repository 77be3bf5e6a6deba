"""All that looks for causes around the model, step by step.

Where nothing else names a cause, config values are said that differ in the component in which a divergence starts. A
config says what a component was built with, a default that a missing field stands for among it. Which of them makes the
difference is not measured: they are said where the divergence starts inside that component, with its own inputs alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np

from parity.compare import frames, guidance, relations, values
from parity.compare.metrics import far_apart
from parity.compare.places import code_of
from parity.compare.result import Cause, SettingDifference, measured
from parity.compare.values import LATENTS, LATENTS_AS, PREDICTED, START, TIMESTEP, Both, Kept, Seen, held
from parity.floors import is_timestep
from parity.golden.disk.part import chosen, recorded_modules
from parity.records import LOOP, LOOP_STAGE, SCHEDULE, Key, Record, StepRecords
from parity.transforms import CASTS

_DETECTORS = (
    values.schedule, values.counters, values.start, values.order, values.rounded, guidance.guidance, relations.stepped,
    relations.decoded,
)  # fmt: skip

FIRST_MODEL = "the first model"
"""Of a pipeline with two: it is called above a boundary of the timesteps."""


@dataclass
class Detectors:
    """Collects causes step by step.

    Attributes:
        settings: of both sides, configs among them. modules: names of both sides' modules.
        notes: what the sides compute in another order or precision, and what was compared otherwise, in sentences.
        scale_read: whether the reference's guidance scale could be read off some step; None without guidance.
        _found: causes, the first first, by their setting and model, or by the site that differs by itself. _shown: of
            those by a setting, the steps at which they show. _many: steps of the loop so far.
        _guided: how the reference combined its branches when it first did. _stepped: see `Seen`.
        _carried: the dtype in which the candidate went on from its latents, see `values.carried`.
        _calling: the sides, 0 and 1, of which predictions of a branch were seen.
        _spans: the timesteps so far at which a side called the first model, and another.
    """

    settings: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})
    modules: tuple[Container[str], Container[str]] = ((), ())
    notes: list[str] = field(default_factory=list)
    scale_read: bool | None = None
    _before: Both | None = None
    _stepped: Set[values.Way] = values.WAYS
    _carried: str = ""
    _calling: set[int] = field(default_factory=set)
    _guided: guidance.Combined | None = None
    _spans: dict[bool, list[float]] = field(default_factory=dict)
    _found: dict[object, Cause] = field(default_factory=dict)
    _shown: dict[object, list[int]] = field(default_factory=dict)
    _many: int = 0

    @property
    def told(self) -> list[Cause]:
        """The causes, with the steps at which each shows where that is not at all."""
        return [self._told(cause, self._shown.get(key, [])) for key, cause in self._found.items()]

    def _told(self, cause: Cause, steps: Sequence[int]) -> Cause:
        if not steps or steps[0] < 0 or len(steps) == self._many:
            return cause
        (witness,) = cause.evidence
        where = f"at step{'s' * (len(steps) > 1)} {_ranges(steps)} of {self._many}"
        said = where if witness.detail in cause.cause else f"{witness.detail}, {where}"
        return replace(cause, evidence=(replace(witness, detail=said),))

    def seen(self, reference: StepRecords, candidate: StepRecords) -> Seen:
        """What both sides hold of the loop's values at a step."""
        ours, theirs = held(reference), held(candidate)
        guided = guidance.combined(ours)
        self._guided = self._guided or guided
        self._stepped = self._stepped & relations.ways_of(ours)
        kept: Kept = guidance.kept(self._guided, guided) if self._guided and guided else ""
        if ("uncond", PREDICTED) in ours:
            read = kept != "" or (guided is not None and guided.is_read)
            self.scale_read = bool(self.scale_read) or read
        return Seen(
            ours=ours,
            theirs=theirs,
            settings=self.settings,
            step=reference.step,
            before=self._before,
            kept=kept,
            stepped=self._stepped,
            cast=CASTS.get(self._carried, np.asarray),
        )

    def add(
        self,
        reference: StepRecords,
        candidate: StepRecords,
        seen: Seen | None = None,
        *,
        differs: bool = True,
        begun: Collection[str] = (),
    ) -> None:
        """Look at one step of both sides; each kind of cause is named once.

        Args:
            seen: what both hold, where that is known already. differs: whether anything in it does; of a step that
                agrees only what the next one needs is kept. begun: sites at which a divergence started so far.
        """
        seen = seen or self.seen(reference, candidate)
        self._many = max(self._many, seen.step + 1)
        a, b = (side.get(("", LATENTS)) for side in (seen.ours, seen.theirs))
        self._before = None if a is None or b is None else (a, b)
        if reference.step == 0:
            for of in (values, guidance, relations):
                self.notes += of.rounded_otherwise(seen)
        called = _called(reference), _called(candidate)
        for model, step in zip(called, (reference, candidate), strict=True):
            if model:
                self._spans.setdefault(model == FIRST_MODEL, []).extend(_timesteps(step, model))
        calls = [any(name for name, site in side if site == PREDICTED) for side in (seen.ours, seen.theirs)]
        self._calling |= {i for i, is_called in enumerate(calls) if is_called}
        if not differs:
            return
        now = seen.theirs.get(("", START))
        if seen.before is not None and now is not None and now.shape == seen.before[1].shape:
            self._carried = values.carried(seen.before[1], now)
        seen = replace(seen, given=_given_alike(reference, candidate))
        other = self._is_another(*called)
        uncalled = self._uncalled(*calls) if seen.pair(PREDICTED) else ()
        another = (*uncalled, *(self._another_called(reference.step, *called) if other else ()))
        of_one = (guidance.guidance, values.order)  # each model has its own scale, and its own predictions
        detectors = [d for d in _DETECTORS if not (other and d in of_one)]
        told = (cause for detector in detectors for cause in detector(seen))
        with np.errstate(all="ignore"):  # what is not finite explains nothing
            pictures = (cause for of in (frames.truncated, frames.by_themselves) for cause in of(reference, candidate))
            for cause in itertools.chain(another, told, pictures):
                guided = cause.setting.startswith("guidance")  # of which each model has its own
                model = called[0] if guided and called[0] != FIRST_MODEL else ""
                named = replace(cause, cause=f"{cause.cause} (of {model})") if model else cause
                self._found.setdefault((cause.setting, model), named)
                self._shown.setdefault((cause.setting, model), []).append(seen.step)
            known = {*begun, *(cause.at for cause in self._found.values()), *([PREDICTED] if other else [])}
            self._found |= {cause.at: cause for cause in relations.by_themselves(seen, known)}

    def _uncalled(self, ours: bool, theirs: bool) -> Iterator[Cause]:
        """A step at which one side alone calls its model, of two that both do at others."""
        if ours != theirs and len(self._calling) == 2:
            side = "candidate" if ours else "reference"
            text = f"the {side} reuses a prediction: it does not call its model, as with a cache of whole steps"
            yield measured(text, "loop.calls", float(ours), float(theirs), at=PREDICTED)

    def _is_another(self, ours: str, theirs: str) -> bool:
        """Whether each side calls another model of two that both have; one alone may hold the weights of either."""
        second = next((name for name in (ours, theirs) if name != FIRST_MODEL), "")
        return bool(ours and theirs) and ours != theirs and all(second in modules for modules in self.modules)

    def _another_called(self, step: int, ours: str, theirs: str) -> Iterator[Cause]:
        """Of pipelines with two models: at one step each side calls another, and no boundary of the timesteps is
        why."""
        if not min(self._spans.get(True, ()), default=0.0) > max(self._spans.get(False, ()), default=0.0):
            text = (
                f"at step {step} the candidate calls {theirs}, the reference {ours}: check the step at which the "
                "pipeline changes models (boundary_ratio), and which model is which"
            )
            yield measured(text, "boundary_ratio", ours, theirs, at=PREDICTED)


def _ranges(steps: Sequence[int]) -> str:
    """Rising numbers in words: `5, 8 to 15`."""
    runs = np.split(np.array(steps), np.flatnonzero(np.diff(steps) != 1) + 1)
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def _given_alike(reference: StepRecords, candidate: StepRecords) -> bool:
    """Whether the model is given the same latents in some branch."""
    ours, theirs = ({r.key: r for r in chosen(step.records, _is_given)} for step in (reference, candidate))
    return any(far_apart(r, theirs[key]) <= values.SAME for key, r in ours.items() if key in theirs)


def _is_given(r: Record) -> bool:
    return r.key.is_argument and r.key.port.removeprefix("in.") in LATENTS_AS


def _called(step: StepRecords) -> str:
    """The model that a step calls: all modules of a pipeline's second one have its name before theirs; empty where
    that is not known."""
    modules = recorded_modules(step.records, LOOP_STAGE) - {LOOP, SCHEDULE}
    if "" in modules:
        return FIRST_MODEL
    names = {module.partition(".")[0] for module in modules}
    return names.pop() if len(names) == 1 and len(modules) > 1 and names <= modules else ""


def _timesteps(step: StepRecords, model: str) -> list[float]:
    """The timesteps at which a model is called: its own, or the loop's where those are not recorded."""
    module = "" if model == FIRST_MODEL else model
    records = [*chosen(step.records, _is_timestep)]
    own = [r for r in records if r.key.module == module] or [r for r in records if r.key.module == LOOP]
    return [r.moments.max for r in own if r.moments is not None]


def _is_timestep(r: Record) -> bool:
    return r.key.site == TIMESTEP or (r.key.is_input and is_timestep(r.key.port.removeprefix("in.")))


# --- config values of the component in which a divergence starts

CLASS = "scheduler.class"
"""What says all where two schedulers are of other classes, whose configs differ too."""
MOST = 4
"""Fields that are listed at most; with more the two are other models."""


def config_causes(
    differing: Sequence[SettingDifference], begins: Iterable[Key], known: Container[str]
) -> Iterator[Cause]:
    """One cause for each component in which a divergence starts and whose config differs.

    Args:
        begins: where divergences start, the first first. known: codes (`code_of`) of which a cause is known.
    """
    first: dict[tuple[str, ...], Key] = {}
    for key in begins:
        first.setdefault(_configs(key), key)
    for names, key in first.items():
        fields = [d for d in differing if d.setting.startswith(names)]
        fields = [d for d in fields if d.setting == CLASS] or fields
        if not fields or len(fields) > MOST or code_of(key.site) in known:
            continue
        shown = "; ".join(f"{d.setting} is {d.candidate or 'missing'}, not {d.reference or 'missing'}" for d in fields)
        plural = "values differ" if len(fields) > 1 else "value differs"
        text, one = f"the divergence starts in a component whose config {plural}: {shown}", fields[0]
        yield measured(text, one.setting, one.reference, one.candidate, float(len(fields)), at=key.site)


def _configs(key: Key) -> tuple[str, ...]:
    """How the config of the component in which a divergence starts is named; empty for the loop's own values and what
    is given to it."""
    begins = key.site == START and key.step == 0  # a scheduler scales the noise, and adds it to a video
    if key.module == SCHEDULE or key.site in (LATENTS, f"{LOOP}:history") or begins:
        return ("scheduler.",)
    if key.stage == "vae" and key.site == "decode:out":
        return ("vae.",)
    inside = key.stage == "transformer" and key.module not in ("", LOOP)
    return ("transformer.", "transformer_2.", "unet.") if inside else ()
