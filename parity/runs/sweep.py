"""A sweep: one reference with its floors, measured once, and many candidates judged against it.

Problem. A team that chooses between two ways to mask wants their errors and prices side by side, and each `parity run`
measures the reference and its floors anew, which is most of its time.

How. The rounds are those of `parity run`. The float32 truth and its floors are computed once; so is the reference as
given, and in each coarser dtype that a row works in. A row whose settings differ in rounding alone shares the
structure round of the row that it becomes with them neutralised. Preflight decides as it does in `parity run`, but
the numbers are measured behind it all the same: the price list is there for them.

Cost. For each row a loaded candidate, its compiled programs (observed; unobserved for the time) and one run, beside the
base candidate, which every row's time is compared with. The records of the reference are held (8 KB a site and step).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from parity.compare.conclude import Collected, conclude
from parity.compare.judge import Judge, excuses
from parity.compare.preflight import failed, preflight
from parity.compare.prices import Price, PriceList, in_order, priced
from parity.compare.reason import Reason
from parity.compare.result import Result
from parity.errors import ParityError, UsageError
from parity.golden.facts import Facts
from parity.hooks.sites import plan_sites
from parity.models.registry import family_of, make_case, resolve_model
from parity.models.spec import GenerationSpec
from parity.paths.facts import gather
from parity.paths.inputs import Inputs, make_inputs, require_place
from parity.paths.loaded import Loaded
from parity.paths.loop import denoise, prepare
from parity.paths.reference import load_reference
from parity.runs.pairing import Pairing, Request, Say
from parity.runs.precision import Truth, coarse_settings, needs_coarse, precision, truth_alone
from parity.runs.sink import NoSink, token_grid
from parity.runs.sweep_plan import Row, merged
from parity.settings import Settings, differences, parse


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """What `parity sweep` was asked for, of one model.

    Attributes:
        model: tiny name, folder or hub name. reference, candidate: `NAME=VALUE` of the reference and of every row.
        steps, seed: of the runs.
    """

    model: str
    reference: tuple[str, ...] = ()
    candidate: tuple[str, ...] = ()
    steps: int = 1
    seed: int = 0


class Sweep:
    """Prices rows one by one against one reference.

    Attributes:
        request: what is asked.
    """

    def __init__(self, request: SweepRequest, say: Say) -> None:
        """Load the reference and measure its floors.

        Raises:
            UsageError: bad input.
        """
        self.request, self.say = request, say
        say("preparing the checkpoint")
        folder = resolve_model(request.model)
        self.case = make_case(request.model, folder, GenerationSpec.load(folder))
        self.family = family_of(folder)
        self.blocks = int(self.case.config.get("num_layers", 0))
        self.reference = parse("torch", request.reference)
        base = parse("torchax", request.candidate)
        self._inputs: dict[tuple[str, ...], tuple[Inputs, Inputs]] = {}
        self._coarse: dict[tuple[str, ...], Truth] = {}
        self._structures: dict[tuple[str, ...], Result] = {}
        self._facts: dict[int, Facts] = {}
        ours, _ = self._inputs_of(self.reference, base)
        say("loading the reference")
        self.side = load_reference(self.family, self.case, self.reference, ours)
        self.plan = plan_sites(["", *self.side.modules], "blocks")
        exact, _ = self._inputs_of(self.reference.neutral, base.neutral)
        self.truth_side = (
            self.side
            if self.reference == self.reference.neutral
            else load_reference(self.family, self.case, self.reference.neutral, exact)
        )
        loop = prepare(self.truth_side.with_fresh_sampler())
        self.truth = truth_alone(Pairing(loop, loop, (), ()), self._request(self.reference, base), say)
        self.given = tuple(denoise(prepare(self.side.with_fresh_sampler()), self.plan))
        self.side.reached.require()
        say("loading the base candidate")
        self.base = self._candidate(base, self.reference)

    def rows(self, rows: Sequence[Row], known: dict[str, Price]) -> Iterator[Price]:
        """Each row's price in turn; those in `known` (by name) are taken from there.

        Nothing that a row's settings bring about is raised: such rows are refused or unjudged, with the reason.
        """
        for i, row in enumerate(rows):
            name = Price(row, "refused").name
            self.say(f"row {i + 1} of {len(rows)}: {name}", i, len(rows))
            yield known[name] if name in known else self.price(row)

    def price(self, row: Row) -> Price:
        """Judge and time one row."""
        try:
            settings = parse("torchax", merged(self.request.candidate, row))
            require_place(self.family, self.case, settings, self.request.steps)
            side = self._candidate(settings, self.reference)
        except UsageError as error:
            return Price(row, "refused", reason=str(error))
        try:
            return self._judged(row, side)
        except ParityError as error:
            return Price(row, "unjudged", reason=str(error))
        except Exception as error:  # one row that no compiler takes must not cost the others
            first = str(error).strip().splitlines()[:1]
            return Price(row, "unjudged", reason=f"it does not run: {type(error).__name__}: {''.join(first)[:200]}")

    def list_of(self, rows: Sequence[Price]) -> PriceList:
        """The rows in order, with what they were measured on."""
        from parity.paths.candidate_cost import interpreted

        r = self.request
        return PriceList(
            r.model,
            r.steps,
            r.seed,
            r.reference,
            r.candidate,
            ", ".join(self.base.backend.describe()),
            ", ".join(self.side.backend.describe()),
            interpreted(),
            in_order(list(rows)),
        )

    def _judged(self, row: Row, side: Loaded) -> Price:
        from parity.paths.candidate_cost import step_costs

        pairing = self._pairing(self.side, side)
        problem = failed(pairing.checks)
        result = self._result(pairing)
        if problem is not None:
            why = Reason(kind="preflight", check=problem.check, detail=problem.detail)
            result = dataclasses.replace(result, verdict="fail", failed="preflight", why=why)
        self.say("time and memory")
        base, cost = step_costs([self.base, side])
        of_base = cost.seconds / base.seconds
        return dataclasses.replace(priced(row, result), seconds=cost.seconds, of_base=of_base, memory=cost.memory)

    def _result(self, pairing: Pairing) -> Result:
        """The rounds of `parity run`, the reference's part in them known."""
        settings = pairing.candidate.side.settings
        exact = self.reference == self.reference.neutral and settings == settings.neutral
        key = tuple(settings.neutral.as_text().values())
        if key not in self._structures:
            pair = pairing
            if not exact:
                pair = self._pairing(self.truth_side, self._candidate(settings.neutral, self.reference.neutral))
            self._structures[key] = dataclasses.replace(self._structure(pair), sites=())
        first = self._structures[key]
        if exact or first.verdict != "pass":
            return first
        request = self._request(self.reference, settings)
        return precision(pairing, request, self.truth, NoSink(), self.say, self._references(pairing))

    def _structure(self, pairing: Pairing) -> Result:
        """The structure round against the known truth; where a divergence is born is told by the block."""
        judge, collected = Judge(excuses(pairing.differing)), Collected()
        for ours, theirs in zip(self.truth, denoise(pairing.candidate, self.plan), strict=True):
            if ours.step == 0:
                pairing.candidate.side.reached.require()
            collected.add(ours, theirs, judge.step(ours, theirs))
        return conclude(
            collected,
            model=self.request.model,
            differing=pairing.differing,
            preflight=pairing.checks,
            grid=token_grid(self.side),
        )

    def _references(self, pairing: Pairing) -> list[Truth]:
        """The reference as given and, where the candidate works in a coarser dtype, in that one."""
        theirs = pairing.candidate.side
        if not needs_coarse(self.reference, theirs.settings):
            return [self.given]
        settings = coarse_settings(self.reference, theirs.settings)
        key = (*settings.as_text().values(), theirs.settings.text("text.byt5_dtype"))
        if key not in self._coarse:
            self.say("the reference in the candidate's working dtype")
            side = load_reference(self.family, self.case, settings, theirs.inputs)
            self._coarse[key] = tuple(denoise(prepare(side), self.plan))
        return [self.given, self._coarse[key]]

    def _pairing(self, ours: Loaded, theirs: Loaded) -> Pairing:
        reference, candidate = prepare(ours.with_fresh_sampler()), prepare(theirs.with_fresh_sampler())
        differing = differences(ours.settings, theirs.settings)
        if id(ours) not in self._facts:
            self._facts[id(ours)] = gather(reference)
        checks = preflight(self._facts[id(ours)], gather(candidate), [d.setting for d in differing])
        return Pairing(reference, candidate, differing, checks)

    def _candidate(self, settings: Settings, reference: Settings) -> Loaded:
        from parity.paths.candidate import load_candidate

        _, theirs = self._inputs_of(reference, settings)
        return load_candidate(self.family, self.case, settings, theirs)

    def _inputs_of(self, reference: Settings, candidate: Settings) -> tuple[Inputs, Inputs]:
        """Encoded once for each dtype of the text stage, of which alone the inputs depend."""
        key = (reference.text("dtype"), reference.text("text.byt5_dtype"), candidate.text("text.byt5_dtype"))
        if key not in self._inputs:
            self.say("encoding the prompt")
            steps, seed = self.request.steps, self.request.seed
            self._inputs[key] = make_inputs(
                self.family, self.case, reference, candidate, steps=steps, seed=seed, stage1=None
            )
        return self._inputs[key]

    def _request(self, reference: Settings, candidate: Settings) -> Request:
        return Request(self.request.model, reference, candidate, self.request.steps, self.request.seed)
