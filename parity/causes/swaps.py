"""The swap test: the candidate run again with its differing settings as the reference has them, one at a time.

Each setting alone wrong tells whether it does harm, beside what is wrong with all of them set back; each alone set
back, how much of the error goes with it. What does no harm alone, nor together with the others that do none, is
harmless; those that harm only together are found by delta debugging. Its witness is `swap_tests`, for the
candidate of a kept run.

Cost: a run of the candidate, unobserved, for each setting, for each that does harm, and for none.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from parity.bisect.settings import Plan, ddmin, plan
from parity.causes.evidence import Evidence
from parity.causes.match import common_keys, error_vector, noise_norm
from parity.compare.reason import Note
from parity.compare.result import HARMLESS, Cause, Witness
from parity.errors import ParityError, UsageError
from parity.floors import L2_LIMIT
from parity.records import LOOP, LOOP_STAGE, Key, StepRecords
from parity.runs.request import RunSpec
from parity.settings import Settings, remedy, sentence
from parity.transforms import norm

Run = Callable[[Settings], StepRecords]
"""The candidate's outputs with these settings."""


def swap_test(
    searched: Plan, ours: StepRecords, keys: Sequence[Key], run: Run, spec: RunSpec
) -> Iterator[Cause | Note]:
    """One cause a differing setting, by what it does to the error of some outputs; and what no swap takes back.

    Args:
        ours: the reference's records, with floors. keys: of the outputs. spec: of the run.
    """
    names = tuple(s.setting for s in searched.swaps)
    none: frozenset[str] = frozenset()
    noise, what = noise_norm(ours, keys), ", ".join(dict.fromkeys(key.port for key in keys))

    @functools.cache
    def error(wrong: frozenset[str]) -> np.ndarray:
        return error_vector(ours, run(searched.with_only(tuple(n for n in names if n in wrong))), keys)

    def does(wrong: Iterable[str]) -> float:
        return norm(error(frozenset(wrong)) - error(none))

    def fails(wrong: tuple[str, ...]) -> bool:
        return does(wrong) > L2_LIMIT * noise

    whole, base = norm(error(frozenset(names))), norm(error(none))
    guilty = frozenset(n for n in names if fails((n,)))
    rest = tuple(n for n in names if n not in guilty)
    if len(rest) > 1 and fails(rest):  # each harmless alone, not together
        guilty |= set(ddmin(rest, fails))
    left = base / whole if whole and base > L2_LIMIT * noise else 0.0
    if left:
        yield Note(
            f"with every differing setting as the reference has it, {left:.1%} of the error of {what} is left: "
            "something else differs too"
        )
    # The run with all that do harm set back passes, unless something else differs.
    back = [f"{s.setting}={s.without}" for s in searched.swaps if s.setting in guilty]
    confirm = "" if left else spec.with_settings(candidate=back).command()
    alone = {name: does((name,)) / noise if noise else math.inf for name in names}
    for swap in sorted(searched.swaps, key=lambda s: (s.setting not in guilty, -alone[s.setting])):
        name, text, gone, fix = swap.setting, sentence(swap.setting, swap.candidate), 0.0, ""
        if name in guilty:
            gone, fix = max(0.0, 1.0 - norm(error(guilty - {name})) / norm(error(guilty))), remedy(name)
            detail = f"with {name}={swap.without}, {gone:.2%} of the error of {what} disappears"
        else:
            text, detail = f"{HARMLESS}{text}", f"wrong alone, {what} is {alone[name]:.2g} x what rounding gives"
        witness = Witness("swap", gone, detail, confirm if name in guilty else "")
        yield Cause(text, name, swap.without, swap.candidate, gone, (witness,), fix=fix, harmless=name not in guilty)


# --- the candidate of a kept run


def swap_tests(evidence: Evidence) -> Iterator[Cause | Note]:
    """Causes from running the candidate of a kept run, whose settings are known, with one swapped at a time."""
    if evidence.model is None or evidence.request.spec is None:
        return
    machine, ours, theirs, step = evidence.model, evidence.ours, evidence.theirs, evidence.ours.step
    candidate = machine.candidate_settings(evidence.declared)
    try:
        searched = plan(machine.request.reference, candidate, machine.port, ("text", LOOP_STAGE))
    except UsageError as error:
        yield Note(f"no swap test: {error}")
        return
    ran = {_key(candidate): theirs}

    def again(settings: Settings) -> StepRecords:
        machine.say("candidate with swapped settings")
        return machine.candidate(settings, step)

    def run(settings: Settings) -> StepRecords:
        if (key := _key(settings)) not in ran:
            ran[key] = again(settings)
        return ran[key]

    keys = _judged_at(ours, theirs)
    if machine.request.ports.candidate is not None:
        notes: list[str] = []
        searched = _obeyed(searched, again(candidate), run, notes)
        yield from map(Note, notes)
    try:
        yield from swap_test(searched, ours, keys, run, evidence.request.spec) if searched.swaps else ()
    except UsageError as refused:
        yield Note(f"no swap test: the candidate refuses settings that are to be tried: {refused}")
        return
    if rounding := ", ".join(evidence.request.rounding):
        yield Note(
            f"{rounding}: swapped in no run, since the check that failed ran without; judged once that one agrees"
        )


def _key(settings: Settings) -> object:
    return tuple(settings.as_text().items())


def _obeyed(searched: Plan, own: StepRecords, run: Run, notes: list[str]) -> Plan:
    """The swaps that a port takes and obeys: one that raises costs its value, one that changes nothing shows nothing.

    Args:
        own: the port's step as it was, run again unobserved as the others are: observing it may have moved a last bit.
    """
    names = tuple(s.setting for s in searched.swaps)
    taken = []
    for swap in searched.swaps:
        text = f"{swap.setting}={swap.without}"
        try:
            other = run(searched.with_only(tuple(n for n in names if n != swap.setting)))
        except ParityError as refused:
            notes.append(f"{text} is not tried: the port refuses it: {refused}")
            continue
        if _same(own, other):
            notes.append(f"{swap.setting} is not obeyed: the port computes the same to the bit with {text}")
            continue
        taken.append(swap)
    return dataclasses.replace(searched, swaps=tuple(taken))


def _same(one: StepRecords, other: StepRecords) -> bool:
    """Whether the loop's own values are equal to the bit, of which a run that observed the modules too has more."""
    theirs = {r.key: r for r in other.records}
    common = [(r, theirs[r.key]) for r in one.records if r.key.module == LOOP and r.key in theirs]
    return bool(common) and all(np.array_equal(np.asarray(a.value), np.asarray(b.value)) for a, b in common)


def _judged_at(ours: StepRecords, theirs: StepRecords) -> tuple[Key, ...]:
    """noise_pred; the latents after the step, where noise_pred agrees and the step itself is at fault."""
    every = common_keys(ours, theirs)
    keys = tuple(k for k in every if k.site == "loop:noise_pred")
    if norm(error_vector(ours, theirs, keys)) > L2_LIMIT * noise_norm(ours, keys):
        return keys
    return tuple(k for k in every if k.site == "loop:latents.after")
