"""Judging which modules matter: one step of a candidate with some of its modules replaced by the reference's.

The reference runs to the step once, keeps there what its modules give, and measures the floor of its noise prediction;
the candidate starts the step from its latents and learns its modules' own errors (`parity.paths.closer.graft`). Each
probe is then one step of the candidate. Both sides are in float32 with the highest matmul precision, as in the
structure round of `parity run`: what is searched is logic.

A wrong weight, which stops `parity run` in preflight, does not stop this: which module matters is the question.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from parity.bisect.strategy import Outcome
from parity.compare.judge import Judge, beyond, severity
from parity.compare.preflight import failed
from parity.compare.result import SiteDiff
from parity.errors import UnjudgedError, UsageError
from parity.golden.records import LOOP, Record, StepRecords
from parity.hooks.sites import children_of
from parity.paths.plan import DEFAULT_KINDS, Plan, State
from parity.paths.side import Pair, Side
from parity.paths.worker.openers import Openers
from parity.runs.request import Request, Say
from parity.runs.sides import ready
from parity.runs.stream import counted, state_of
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


@dataclass(kw_only=True)
class Transplant:
    """A pair ready to be probed.

    Attributes:
        sides: both, open. step: that is probed. state: what it starts from. truth: its noise predictions with floors.
        modules: those that can be replaced, in the order in which the reference calls them. fixed: replaced always.
        left_out: those that cannot, and why.
        outside: a failing check of preflight other than of the weights, for messages; empty for none.
    """

    sides: Pair[Side]
    step: int
    state: State
    truth: StepRecords
    modules: tuple[str, ...]
    fixed: tuple[str, ...]
    left_out: dict[str, str]
    outside: str

    def judge(self, replaced: tuple[str, ...]) -> tuple[Outcome, str]:
        """Run the step with these modules replaced: good where every noise prediction is within its floor."""
        (made,) = self._run(Plan(replaced=(*replaced, *self.fixed)))
        found = Judge().step(self.truth, noise_of(made))
        worst = max(found, key=severity)
        return ("bad" if any(map(beyond, found)) else "good"), told(worst)

    def _run(self, plan: Plan) -> Iterator[StepRecords]:
        return self.sides.candidate.observe(plan, start=self.state, steps=(self.step, self.step + 1))

    def learn(self, given: tuple[Record, ...]) -> None:
        """Learn the modules' errors and leave out those that cannot be replaced."""
        _, last = self._run(Plan(taught=given))
        for line in str(last.records[0].value).splitlines():
            module, _, why = line.partition("=")
            self.left_out[module] = why
        self.modules = tuple(m for m in self.modules if m not in self.left_out)


def told(d: SiteDiff) -> str:
    """A noise prediction against its floor, in a line."""
    at = f"{d.key.port}{f' ({d.key.branch})' if d.key.branch else ''}"
    return d.note or f"{at}: relative L2 {d.distance.rel_l2:.2e}, {d.distance.ratio:.1f} x its floor"


def noise_of(step: StepRecords) -> StepRecords:
    """The noise predictions of a step alone, of each branch and guided, with their floors."""
    records = tuple(r for r in step.records if r.key.module == LOOP and r.key.port == NOISE)
    return StepRecords(step.step, records, step.floors)


@contextlib.contextmanager
def transplant(request: Request, step: int, within: str, openers: Openers, say: Say) -> Iterator[Transplant]:
    """Open a pair and learn what is needed to replace the candidate's modules.

    Args:
        step: that is probed.

    Raises:
        UsageError: no such module; a candidate that runs no torch module; a step at which a feature cache skips blocks.
    """
    ours = request.reference.neutral
    exact = dataclasses.replace(request, reference=ours, candidate=aligned(ours, request.candidate.neutral))
    for side in (exact.reference, exact.candidate):
        cache = side.deep_cache
        if cache is not None and not cache.full(step):
            raise UsageError(
                f"the {side.backend} path was given 'cache={side.text('cache')}', which leaves "
                f"blocks out at step {step}, so that they cannot be replaced: probe a multiple of {cache.interval}"
            )
    with ready(exact, openers, say) as pair:
        made = prepared(pair.sides, pair.modules, step, within, say)
        problem = failed([c for c in pair.checks if c.check != "weights"])
        if problem is not None:
            made.outside = f"; preflight: {problem.check}: {problem.detail}"
        yield made


def prepared(sides: Pair[Side], modules: Sequence[str], step: int, within: str, say: Say) -> Transplant:
    """The same, of sides that are open."""
    reference = sides.reference
    level = level_of(modules, within)
    say("reference", 0, step + 1)
    state: State | None = None
    for done in counted(reference.observe(Plan(), steps=(0, step)) if step else (), "reference", step + 1, say):
        state = state_of(done, "after")
    here = (step, step + 1)
    first, given = reference.observe(Plan(gives=(*level.fixed, *level.searched)), start=state, steps=here)
    state = state_of(first, "before")
    say("floors of the reference")
    (truth,) = reference.observe(Plan(floors=DEFAULT_KINDS), start=state, steps=here)
    called = list(dict.fromkeys(r.key.module for r in given.records))
    made = Transplant(
        sides=sides,
        step=step,
        state=state,
        truth=noise_of(truth),
        modules=tuple(m for m in called if m in level.searched),
        fixed=level.fixed,
        left_out={m: _UNCALLED for m in level.searched if m not in called},
        outside="",
    )
    say("candidate (tracing and compiling)")
    made.learn(tuple(given.records))
    if not made.modules:
        raise UnjudgedError(f"no module below '{within}' can be replaced: {'; '.join(_reasons(made.left_out))}")
    return made


_UNCALLED = "the reference does not call it, or it gives no tensor"


def _reasons(left_out: dict[str, str]) -> list[str]:
    return [f"{module}: {why}" for module, why in left_out.items()]
