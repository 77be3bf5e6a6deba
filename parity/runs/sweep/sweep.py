"""A sweep: one reference with its floors, measured once, and many candidates judged against it.

Problem. A team that chooses between two ways to mask wants their errors and prices side by side, and each `parity run`
measures the reference and its floors anew, which is most of its time.

How. Each row is compared as `parity run` compares it, against sides that remember (`parity.runs.memo`): the reference
in each dtype that a row works in, and the candidate with its dtypes neutralised, which rows that only round share.
Preflight decides as it does in `parity run`, but the numbers are measured behind it all the same: the price list is
there for them. Imports neither torch nor jax.

Cost. For each row a loaded candidate, its compiled programs (observed; unobserved for the time) and one run, beside the
base candidate, which every row's time is compared with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from parity.compare.prices import Price, PriceList, in_order, priced, with_one_base
from parity.errors import ParityError, UsageError
from parity.golden.facts import Facts
from parity.paths.plan import Spec
from parity.paths.side import Side
from parity.paths.worker.openers import Openers
from parity.paths.worker.process import RemoteError
from parity.runs.compare import compare
from parity.runs.memo import Remembering
from parity.runs.request import Request, Say
from parity.runs.sides import candidate_spec, reference_spec
from parity.runs.sink import NoSink
from parity.runs.sweep.costs import step_costs
from parity.runs.sweep.plan import Row, merged
from parity.settings import NEUTRAL, paired, parse


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
        request: what is asked. blocks: of the transformer.
    """

    def __init__(self, request: SweepRequest, openers: Openers, say: Say) -> None:
        """Load the reference and the base candidate.

        Raises:
            UsageError: bad input.
        """
        self.request, self.say = request, say
        self.openers = Remembering(openers, _is_shared)
        ours, base = paired(parse("torch", request.reference), parse("torchax", request.candidate))
        self._run = Request(request.model, ours, base, request.steps, request.seed)
        say("loading the reference")
        self.reference = self.openers.of("reference").open(reference_spec(self._run)).facts()
        say("loading the base candidate")
        self.base = self._side(self._run)
        self.facts = self.base.facts()

    @property
    def blocks(self) -> int:
        provenance = self.reference.provenance
        modules: Mapping[str, str] = {} if provenance is None else provenance.modules
        return sum(m.startswith("transformer_blocks.") and m.count(".") == 1 for m in modules)

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
            request = replace(self._run, candidate=settings)
            self._side(request).facts()
        except UsageError as error:
            return Price(row, "refused", reason=str(error))
        try:
            return self._priced(row, request)
        except ParityError as error:
            return Price(row, "unjudged", reason=str(error))
        except RemoteError as error:  # one row that no compiler takes must not cost the others
            return Price(row, "unjudged", reason=f"it does not run: {str(error)[:200]}")

    def _priced(self, row: Row, request: Request) -> Price:
        result = compare(request, self.openers, self.say, NoSink(), past_preflight=True)
        self.say("time and memory")
        side = self._side(request)
        caches = self._run.candidate.deep_cache, request.candidate.deep_cache
        base, cost = step_costs([(self.base, caches[0]), (side, caches[1])], request.steps)
        side.close()
        ratio, quartiles = cost.over(base)
        return replace(
            priced(row, result),
            seconds=cost.median,
            of_base=ratio,
            of_base_quartiles=quartiles,
            base_seconds=base.median,
            memory=cost.memory,
        )

    def _side(self, request: Request) -> Side:
        return self.openers.of("candidate").open(candidate_spec(request, self.reference))

    def list_of(self, rows: Sequence[Price]) -> PriceList:
        """The rows in order, with what they were measured on."""
        r = self.request
        return PriceList(
            r.model,
            r.steps,
            r.seed,
            r.reference,
            r.candidate,
            _devices(self.facts),
            _devices(self.reference),
            self.facts.interpreted,
            in_order(with_one_base(rows)),
        )


def _is_shared(spec: Spec) -> bool:
    """Whether several rows may have this side: every reference, and candidates that round as little as they can."""
    return spec.role == "reference" or all(spec.settings.get(name) == str(value) for name, value in NEUTRAL.items())


def _devices(facts: Facts) -> str:
    return "" if facts.provenance is None else ", ".join(facts.provenance.devices)
