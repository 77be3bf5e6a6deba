"""Judging single steps of a candidate against a golden of the reference, whose latents it is given.

The golden holds the loop's own values whole and the floor of each noise prediction. That floor was measured in the
free run: it holds what rounding has grown to by then, and so is, late in a run, wider than a step alone would need.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parity.bisect.strategy import Outcome
from parity.compare.judge import Judge, beyond, severity
from parity.compare.reason import FLOORS
from parity.compare.result import SiteDiff
from parity.errors import UnjudgedError, UsageError
from parity.files import replacing
from parity.golden import Golden
from parity.golden.disk.format import MANIFEST
from parity.golden.facts import Facts
from parity.golden.fingerprint import fingerprint
from parity.golden.records import LOOP, StepRecords
from parity.paths.plan import Plan, Source, Spec, State
from parity.paths.side import Side
from parity.paths.worker.openers import Openers
from parity.runs.recording.record import RecordRequest, record
from parity.runs.request import Request, Say
from parity.runs.stream import state_of
from parity.settings import Settings, changed_by, parse


def steps_of(golden: Golden) -> int:
    """How many steps a golden holds, from the first on.

    Raises:
        UnjudgedError: none.
    """
    held = set(golden.steps)
    count = next(step for step in range(len(held) + 1) if step not in held)
    if count == 0:
        raise UnjudgedError(f"'{golden.name}' holds no steps; record it anew")
    return count


@dataclass
class StepsJudge:
    """Runs single steps of a candidate, or the free run.

    Attributes:
        golden: of the reference. side: the candidate. carried: where the free run's latents are kept between steps.
    """

    golden: Golden
    side: Side
    carried: Carried

    def alone(self, step: int) -> tuple[Outcome, str]:
        """One step from the reference's latents.

        Raises:
            UnjudgedError: the golden holds no latents of it, or no floors.
        """
        recorded = self.golden.read_step(step)
        state = state_of(recorded, "before")
        if LATENTS not in state:
            raise UnjudgedError(f"'{self.golden.name}' holds no latents of step {step}: record it anew")
        # Forced, and so not rounded to the candidate's `latents_dtype`: what this step does to them shows after it.
        (made,) = self.side.observe(Plan(), start={step: state}.get, steps=(step, step + 1))
        return self._judged(recorded, made)

    def free(self, known: int) -> Iterator[tuple[Outcome, str]]:
        """The free run from step `known` on, resumed where the latents after the step before are kept."""
        state = self.carried.load(known)
        first = known if state is not None else 0
        for made in self.side.observe(Plan(), start=state, steps=(first, steps_of(self.golden))):
            if made.step >= known:
                outcome = self._judged(self.golden.read_step(made.step), made)
                self.carried.save(made.step + 1, state_of(made, "after"))
                yield outcome

    def _judged(self, recorded: StepRecords, made: StepRecords) -> tuple[Outcome, str]:
        truth = noise_of(recorded)
        if any(r.key not in truth.floors for r in truth.records) or not truth.records:
            raise UnjudgedError(
                f"'{self.golden.name}' holds no floors of its noise predictions; record it with them: {FLOORS}"
            )
        found = Judge().step(truth, noise_of(made))
        return ("bad" if any(map(beyond, found)) else "good"), told(max(found, key=severity))


def told(d: SiteDiff) -> str:
    """A noise prediction against its floor, in a line."""
    at = f"{d.key.port}{f' ({d.key.branch})' if d.key.branch else ''}"
    return d.note or f"{at}: relative L2 {d.distance.rel_l2:.2e}, {d.distance.ratio:.1f} x its floor"


def noise_of(step: StepRecords) -> StepRecords:
    """The noise predictions of a step alone, of each branch and guided, with their floors."""
    records = tuple(r for r in step.records if r.key.module == LOOP and r.key.port == "noise_pred")
    return StepRecords(step.step, records, step.floors)


LATENTS = "latents"
_DAMAGED = (ValueError, OSError, KeyError, EOFError, zipfile.BadZipFile)
"""What a file that was cut off raises: the free run then begins anew."""


@dataclass(frozen=True)
class Carried:
    """The latents a free run stands at, in a file beside the state file, so that a killed one is resumed."""

    path: Path

    def save(self, step: int, state: State) -> None:
        """Keep what `step` is to start from."""
        arrays: dict[str, Any] = {f"state.{name}": np.asarray(x) for name, x in state.items()}
        with replacing(self.path) as temporary, temporary.open("wb") as opened:
            np.savez(opened, step=np.int64(step), **arrays)
            opened.flush()
            os.fsync(opened.fileno())

    def load(self, step: int) -> State | None:
        """What `step` is to start from; None where that is not what is kept."""
        if step == 0 or not self.path.is_file():
            return None
        with contextlib.suppress(*_DAMAGED), np.load(self.path) as held:
            if int(held["step"]) == step:
                return {name.removeprefix("state."): held[name] for name in held.files if name.startswith("state.")}
        return None

    def forget(self) -> None:
        self.path.unlink(missing_ok=True)


def open_against(
    golden: Golden, model: str, settings: Settings, stage1: Path | None, prompt: str | None, openers: Openers
) -> Side:
    """The candidate, for the run that a golden is of.

    Raises:
        UsageError: it would start from other inputs.
    """
    recorded = golden.provenance
    source = Source(
        model=model,
        steps=max(recorded.steps, 1),
        seed=recorded.seed,
        prompt=prompt,
        stage1=None if stage1 is None else str(stage1),
    )
    kept = [f"{name}={recorded.settings[name]}" for name in changed_by("embeddings") if name in recorded.settings]
    theirs = parse("torch", kept)
    # The encoders' working dtype stays the reference's: a candidate's dtype must not change what it is given.
    encode = {**theirs.as_text(), "text.byt5_dtype": settings.text("text.byt5_dtype")}
    side = openers.of("candidate").open(
        Spec(role="candidate", source=source, settings=settings.as_text(), encode=encode)
    )
    if settings["text.byt5_dtype"] == theirs["text.byt5_dtype"]:
        _require_inputs(golden, side.facts())
    return side


def _require_inputs(golden: Golden, facts: Facts) -> None:
    ours = {name: fingerprint(np.asarray(x)) for name, x in facts.inputs.items()}
    theirs = golden.provenance.inputs
    other = [name for name in sorted(set(ours) & set(theirs)) if ours[name] != theirs[name]]
    if other:
        raise UsageError(
            f"'{golden.name}' was recorded from other inputs: '{other[0]}' differs; give --stage1 or --prompt, and "
            "--model, as it was recorded with"
        )


def record_reference(where: Path, run: Request, restart: bool, say: Say) -> Golden:
    """A golden of a run's reference with floors: recorded now, resumed, or complete already."""
    exists = (where / MANIFEST).is_file()
    if restart or not exists or not Golden.open(where).complete:
        request = RecordRequest(
            where=str(where),
            side="reference",
            run=dataclasses.replace(run, sites="blocks", values=()),
            resume=exists and not restart,
            overwrite=exists and restart,
        )
        record(request, say)
    return Golden.open(where)
