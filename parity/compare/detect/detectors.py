"""All that looks for causes around the model, step by step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from parity.compare.detect.frames import truncated
from parity.compare.detect.relations import (
    decoded,
    guidance,
    judged_by_own_branches,
    judged_by_own_latents,
    rounded_otherwise,
    stepped,
)
from parity.compare.detect.seen import GIVEN, Both, Seen, held, latents_of
from parity.compare.detect.values import counters, order, schedule, start
from parity.compare.result import Cause
from parity.records import StepRecords

OWN_LATENTS = f"{GIVEN} is compared with what the reference's scaling makes of the candidate's latents"
OWN_BRANCHES = "noise_pred is compared with what the reference's guidance makes of the candidate's branches"

Detector = Callable[[Seen], Iterator[Cause]]
_DETECTORS: tuple[Detector, ...] = (schedule, counters, start, order, guidance, stepped, decoded)


@dataclass
class Detectors:
    """Collects causes step by step.

    Attributes:
        settings: of both sides, configs among them. found: causes, the first first.
        notes: what the sides compute in another order or precision, and what was compared otherwise, in sentences.
    """

    settings: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})
    found: list[Cause] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _before: Both | None = None

    def as_judged(self, reference: StepRecords, candidate: StepRecords) -> tuple[StepRecords, StepRecords]:
        """The reference of a step as `add` reads it, and as it is to be judged.

        See `judged_by_own_latents` and `judged_by_own_branches`; `add` reads the branches that were recorded.
        """
        read = judged_by_own_latents(reference, candidate, self._before)
        judged = judged_by_own_branches(read, candidate)
        for instead, of, note in ((read, reference, OWN_LATENTS), (judged, read, OWN_BRANCHES)):
            if instead is not of and note not in self.notes:
                self.notes.append(note)
        return read, judged

    def add(self, reference: StepRecords, candidate: StepRecords, *, differs: bool = True) -> None:
        """Look at one step of both sides; each kind of cause is named once.

        Args:
            differs: whether anything in it does; of a step that agrees only what the next one needs is kept.
        """
        ours, theirs = held(reference), held(candidate)
        before, self._before = self._before, latents_of((ours, theirs))
        seen = Seen(ours=ours, theirs=theirs, settings=self.settings, step=reference.step, before=before)
        if reference.step == 0:
            self.notes += rounded_otherwise(seen)
        if not differs:
            return
        told = (cause for detector in _DETECTORS for cause in detector(seen))
        for cause in itertools.chain(told, truncated(reference, candidate)):
            if cause.setting not in {c.setting for c in self.found}:
                self.found.append(cause)
