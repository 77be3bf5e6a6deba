"""A stage outside the loop as a side; see `parity.paths.plan.Side`.

It has one step, `STAGES_STEP`, and what it ends in are its outputs: `cond.prompt_embeds`, `.frames`. Its floors are
measured as a transformer's are. Runs that measure them take this side's own inputs where a plan is `forced`, as in a
comparison of the stage by itself, and else those of the runs of the same name before it (`Start.beside`), as in a
recording of a chain. Where they take its own, what follows the step is also what the stage makes of each of those
inputs (`BESIDE`).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from parity.errors import UsageError
from parity.floors import Floors
from parity.golden.fingerprint import weight_prints
from parity.hooks.sites import SitePlan
from parity.paths.follow import Walk, follow, stepwise
from parity.paths.known_stages import Known, known
from parity.paths.loaded import array, tensor
from parity.paths.plan import BESIDE, STAGES_STEP, VAE_STAGE, Array, Ends, Forced, Plan, Spec, State, split_branches
from parity.paths.port.load import Entry, load_entry
from parity.paths.port.settings import typed
from parity.paths.stage import HeldStage, Inputs, PortDecoder, Rounded, Seen, TorchStage, decoder_of, rounded
from parity.records import Facts, Floor, Key, Provenance, Record, StepRecords
from parity.settings import BITS, Settings
from parity.versions import versions

Branches = Mapping[str, Seen]
"""Guidance branch (`""` where there is none) -> what a run of it gave."""


if TYPE_CHECKING:
    from parity.paths.jax.stage import TorchaxStage

    Runner = TorchStage | TorchaxStage | HeldStage | PortDecoder

Runners = MutableMapping[tuple[object, ...], "TorchStage | TorchaxStage"]
"""Loaded stages of both roles, by what they are, while somebody holds them."""


class StageSide:
    """See the module's docstring.

    Attributes:
        spec: what it is. role: which side that is.
    """

    def __init__(self, spec: Spec, runners: Runners, entry: Callable[[str, str], Entry] = load_entry) -> None:
        """A side of a spec.

        Args:
            runners: loaded stages, shared while a side holds them. entry: imports a port, by its option and its text.
        """
        self.spec, self.role, self._runners, self._entry = spec, spec.role, runners, entry

    @functools.cached_property
    def known(self) -> Known:
        """What it runs, on what."""
        return known(self.spec)

    @property
    def settings(self) -> Settings:
        return typed(self._port, "torch" if self.role == "reference" else "torchax", self.spec.settings)

    @functools.cached_property
    def _port(self) -> Entry | None:
        """The candidate's port, which may bring a decoder."""
        spec = self.spec
        if spec.port is None or spec.option != "--port" or spec.source.stage != VAE_STAGE:
            return None
        return self._entry(spec.option, spec.port)

    @functools.cached_property
    def _own(self) -> PortDecoder | None:
        """The decoder that the candidate's port brings."""
        if self._port is None:
            return None
        return decoder_of(self.known.stage, self._port, self.known.case, self.settings)

    @functools.cached_property
    def loaded(self) -> Runner:
        """The stage, loaded when it is first asked for."""
        at, settings, source = self.known, self.settings, self.spec.source
        if at.held is not None:
            return HeldStage(at.stage, at.held)
        if self._own is not None:
            return self._own
        key = (self.role, source.model, source.prompt, source.stage, source.part, *self.spec.settings.items())
        held = self._runners.get(key)
        if held is None and settings.backend == "torch":
            held = TorchStage(at.stage, settings)
        elif held is None:
            from parity.paths.jax.stage import TorchaxStage  # jax and torchax, only from here on

            held = TorchaxStage(at.stage, settings)
        self._runners[key] = held
        return held

    def _truth(self, refusal: str) -> TorchStage:
        """The stage, of a reference."""
        if self.role != "reference" or not isinstance(self.loaded, TorchStage):
            raise UsageError(refusal)
        return self.loaded

    def facts(self) -> Facts:
        at, spec, settings = self.known, self.spec, self.settings
        modules = self.loaded.modules if at.modules is None else at.modules
        inputs = {f"{branch}.{name}": x for branch, given in at.inputs.items() for name, x in given.items()}
        plain = {name: array(x) for name, x in inputs.items()}
        weights = (
            weight_prints((f"{spec.source.stage}.{name}", x) for name, x in self.loaded.weights()) if spec.named else {}
        )
        origin = Provenance(
            side=self.role,
            backend=settings.backend,
            model=at.case.name,
            settings=settings.as_text(),
            seed=spec.source.seed,
            steps=0,
            weights=weights,
            inputs={},
            versions=versions(),
            devices=(),
            modules=modules,
        )
        return Facts(
            weights={},
            dtypes={},
            inputs={name: x.values for name, x in plain.items()},
            tables={},
            provenance=origin,
            dtype=settings.text("dtype"),
            input_dtypes={name: x.dtype for name, x in plain.items()},
            own=self._own is not None,
            trunk=at.stage.trunk,
        )

    def observe(
        self, plan: Plan, *, start: State | Forced | None = None, steps: tuple[int, int] | None = None
    ) -> Iterator[StepRecords]:
        return self._follow(plan) if plan.follow else self._observed(plan)

    def _observed(self, plan: Plan) -> Iterator[Any]:
        inputs = self.known.inputs
        own = run_branches(self.loaded, inputs, plan.sites)
        self.loaded.reached.require()
        runs: dict[str, Branches] = {"": own}
        floors: dict[Key, Floor] = {}
        if plan.floors:
            others, floors = self._floors(plan, records_of(own))
            runs |= others
        yield StepRecords(STAGES_STEP, records_of(own), floors)
        if plan.ends:
            for name in self._also(plan):
                # Observed as before, though nobody reads it: the same program runs, and no other is compiled.
                runs[f"{BESIDE}{name}"] = run_branches(self.loaded, self._beside(name), plan.sites)
            yield Ends({name: _came(seen) for name, seen in runs.items()})

    def _follow(self, plan: Plan) -> Iterator[StepRecords]:
        truth, inputs = self._truth(f"the reference follows a candidate, not the {self.role}"), self.known.inputs
        walks: list[Walk] = []
        if self.settings.working_bits < BITS["float32"]:
            walks += [truth.walk(inputs, contextlib.nullcontext), truth.walk(inputs, stepwise)]
            truth = TorchStage(self.known.stage, self.settings.neutral)
        walks += [stage.walk(inputs, around) for _, stage, around in rounded(truth, plan.floors)]
        yield follow(truth.walk(inputs, contextlib.nullcontext), walks, plan, self.known.stage.name, STAGES_STEP)

    def _floors(self, plan: Plan, own: tuple[Record, ...]) -> tuple[dict[str, Branches], dict[Key, Floor]]:
        """The runs that floors are measured from, and the floors of this side's records.

        Where this side does not work in float32, the floors are those of the float32 truth and its distance to that.
        """
        settings, truth = self.settings, self._truth(f"floors are measured on the reference, not on the {self.role}")
        floors, found = Floors(own), dict[str, Branches]()
        first: list[Rounded] = []
        if "dtype" in plan.floors and settings.working_bits < BITS["float32"]:
            truth = TorchStage(self.known.stage, settings.neutral)
            first = [("float32", truth, contextlib.nullcontext)]
        for name, stage, around in itertools.chain(first, rounded(truth, plan.floors)):
            inputs = self.known.inputs if plan.forced or name not in self.spec.start.beside else self._beside(name)
            seen = run_branches(stage, inputs, plan.sites, around)
            floors.add(records_of(seen), truth=name == "float32")
            found[name] = {branch: Seen(s.outputs, ()) for branch, s in seen.items()}
        return found, floors.done()

    def _also(self, plan: Plan) -> tuple[str, ...]:
        """The runs whose inputs this side takes too, so that the chain can be judged."""
        spec = self.spec
        if spec.run:
            return (spec.run,) if spec.run in spec.start.beside else ()
        alone = plan.floors and plan.forced
        return tuple(spec.start.beside) if alone or self.role == "candidate" else ()

    def _beside(self, name: str) -> Mapping[str, Inputs]:
        """The inputs of a run before this stage, by branch."""
        return split_branches({key: tensor(x) for key, x in self.spec.start.beside[name].items()})

    def close(self) -> None:
        for name in ("known", "loaded"):
            vars(self).pop(name, None)


def run_branches(
    runner: Runner,
    inputs: Mapping[str, Inputs],
    plan: SitePlan | None,
    around: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
) -> dict[str, Seen]:
    """Run a stage once for each branch, in their order; `around`: context of each run."""
    seen = {}
    for branch, given in inputs.items():
        with around():
            seen[branch] = runner.run(given, plan, branch)
    return seen


def _came(branches: Branches) -> dict[str, Array]:
    """What a run came to, as `BRANCH.OUTPUT`."""
    outputs = {f"{branch}.{name}": x for branch, seen in branches.items() for name, x in seen.outputs.items()}
    return {name: Array(x, str(x.dtype)) for name, x in outputs.items()}


def records_of(branches: Branches) -> tuple[Record, ...]:
    """The records of all branches, one branch after the other."""
    return tuple(r for seen in branches.values() for r in seen.records)
