"""Judging which modules matter: one step of a candidate with some of its modules replaced by the reference's.

The reference runs to the step once, keeps there what its modules give, and measures the floor of its noise prediction;
the candidate starts the step from its latents and learns its modules' own errors (`parity.paths.closer.graft`). Each
probe is then one step of the candidate. Both sides are in float32 with the highest matmul precision, as in the
structure round of `parity run`: what is searched is logic.

A wrong weight, which stops `parity run` in preflight, does not stop this: which module matters is the question.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from parity.bisect.strategy import Outcome
from parity.compare.judge import Judge, beyond, severity
from parity.compare.preflight import failed
from parity.compare.result import SiteDiff
from parity.errors import UnjudgedError, UsageError
from parity.golden.records import LOOP, StepRecords
from parity.paths.closer.graft import Activations, Grafted, activations_of, graft
from parity.paths.closer.local import children_of
from parity.paths.floors import make_variants, with_floors
from parity.paths.loop import State, denoise, prepare, state_of
from parity.paths.reference import TorchBackend
from parity.runs.pairing import Pairing, pair
from parity.runs.request import Request, Say
from parity.runs.walk import stand_before
from parity.settings import LAYOUT, Settings

NOISE = "noise_pred"


@dataclass(frozen=True, slots=True)
class Level:
    """The modules that are searched.

    Attributes:
        searched: in the order of the model's tree. fixed: those beside the modules around them, replaced in every run,
            so that nothing outside the searched part differs.
    """

    searched: tuple[str, ...]
    fixed: tuple[str, ...] = ()


def level_of(modules: Sequence[str], within: str = "") -> Level:
    """The children of a module, `""` for the top one: its blocks and its other children.

    Raises:
        UsageError: there is no such module, or nothing below it.
    """
    if within and within not in modules:
        near = difflib.get_close_matches(within, modules, n=3, cutoff=0.4)
        raise UsageError(f"--within: there is no module '{within}'" + (f"; near: {', '.join(near)}" if near else ""))
    searched = children_of(within, modules)
    if not searched:
        raise UsageError(f"--within: there is no module below '{within}'; search the one above it")
    fixed: list[str] = []
    above = ""
    while above != within:
        siblings = children_of(above, modules)
        above = next(m for m in siblings if m == within or within.startswith(m + "."))
        fixed += [m for m in siblings if m != above]
    return Level(searched, tuple(fixed))


def aligned(reference: Settings, candidate: Settings) -> Settings:
    """The candidate's settings with the reference's layout of tokens: an activation replaces another row by row."""
    theirs = {name.replace(".", "_"): reference[name] for name in LAYOUT if candidate[name] != reference[name]}
    return candidate.replace(**theirs) if theirs else candidate


@dataclass
class Transplant:
    """A pair ready to be probed.

    Attributes:
        modules: those that can be replaced, in the order in which the reference calls them. fixed: replaced always.
        left_out: those that cannot, and why. backend: the candidate's, with its modules' errors.
        outside: a failing check of preflight other than of the weights, for messages; empty for none.
    """

    pairing: Pairing
    step: int
    state: State
    truth: StepRecords
    backend: Grafted
    modules: tuple[str, ...]
    fixed: tuple[str, ...]
    left_out: dict[str, str]
    outside: str

    def judge(self, replaced: tuple[str, ...]) -> tuple[Outcome, str]:
        """Run the step with these modules replaced: good where every noise prediction is within its floor."""
        self.backend.replaced = frozenset((*replaced, *self.fixed))
        found = Judge().step(self.truth, noise_of(self._run(self.state)))
        worst = max(found, key=severity)
        return ("bad" if any(map(beyond, found)) else "good"), told(worst)

    def _run(self, state: State) -> StepRecords:
        loop = dataclasses.replace(
            self.pairing.candidate, side=dataclasses.replace(self.pairing.candidate.side, backend=self.backend)
        )
        again = stand_before(loop, self.step, state)
        (records,) = denoise(again, None, first=self.step, stop=self.step + 1)
        return records

    def learn(self, given: Activations) -> None:
        """Learn the modules' errors and leave out those that cannot be replaced."""
        with self.backend.learning(given):
            self._run(self.state)
        self.pairing.candidate.side.reached.require()
        self.left_out.update(self.backend.left_out)
        self.modules = tuple(m for m in self.modules if m not in self.left_out)


def told(d: SiteDiff) -> str:
    """A noise prediction against its floor, in a line."""
    at = f"{d.key.port}{f' ({d.key.branch})' if d.key.branch else ''}"
    return d.note or f"{at}: relative L2 {d.distance.rel_l2:.2e}, {d.distance.ratio:.1f} x its floor"


def noise_of(step: StepRecords) -> StepRecords:
    """The noise predictions of a step alone, of each branch and guided, with their floors."""
    records = tuple(r for r in step.records if r.key.module == LOOP and r.key.port == NOISE)
    return StepRecords(step.step, records, step.floors)


def transplant(request: Request, step: int, within: str, say: Say) -> Transplant:
    """Load a pair and learn what is needed to replace the candidate's modules.

    Args:
        step: that is probed.

    Raises:
        UsageError: no such module; a candidate that runs no torch module; a step at which a feature cache skips blocks.
    """
    ours = request.reference.neutral
    exact = dataclasses.replace(request, reference=ours, candidate=aligned(ours, request.candidate.neutral))
    return prepared(pair(exact, say), step, within, say)


def prepared(pairing: Pairing, step: int, within: str, say: Say) -> Transplant:
    """The same, of a pair that is loaded."""
    reference = pairing.reference.side
    for side in (reference, pairing.candidate.side):
        cache = side.settings.deep_cache
        if cache is not None and not cache.full(step):
            raise UsageError(
                f"the {side.settings.backend} path was given 'cache={side.settings.text('cache')}', which leaves "
                f"blocks out at step {step}, so that they cannot be replaced: probe a multiple of {cache.interval}"
            )
    level = level_of(tuple(reference.modules), within)
    wanted = (*level.fixed, *level.searched)
    backend = graft(pairing.candidate.side.backend, wanted)
    if not isinstance(reference.backend, TorchBackend):
        raise UsageError(f"a reference on '{reference.backend.name}' has no modules to take: it needs torch")
    say("reference", 0, step + 1)
    loop = prepare(reference.with_fresh_sampler())
    for done in denoise(loop, None, stop=step):
        say("reference", done.step + 1, step + 1)
    with activations_of(reference.backend, wanted) as given:
        (first,) = denoise(loop, None, first=step, stop=step + 1)
    state = state_of(first, "before")
    say("floors of the reference")
    runs = [dataclasses.replace(v, loop=stand_before(v.loop, step, state, v.around)) for v in make_variants(reference)]
    (truth,) = with_floors(iter([first]), runs, None, None, first=step)
    called = list(dict.fromkeys(place[0] for branch in given.values() for place in branch))
    problem = failed([c for c in pairing.checks if c.check != "weights"])
    made = Transplant(
        pairing,
        step,
        state,
        noise_of(truth),
        backend,
        tuple(m for m in called if m in level.searched),
        level.fixed,
        {m: "the reference does not call it, or it gives no tensor" for m in level.searched if m not in called},
        f"; preflight: {problem.check}: {problem.detail}" if problem is not None else "",
    )
    say("candidate (tracing and compiling)")
    made.learn(given)
    if not made.modules:
        raise UnjudgedError(f"no module below '{within}' can be replaced: {'; '.join(_reasons(made.left_out))}")
    return made


def _reasons(left_out: dict[str, str]) -> list[str]:
    return [f"{module}: {why}" for module, why in left_out.items()]
