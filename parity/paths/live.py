"""A side whose model is loaded in this process; see `parity.paths.plan.Side`.

`Host` loads sides from their specs and keeps what several of them share: imported ports, the prompt's embeddings. A
side is loaded when it is first asked for something, and lets go of its weights when it is closed.
"""

from __future__ import annotations

import contextlib
import functools
import traceback
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from parity.errors import ParityError, UsageError, summary
from parity.models.family import Family
from parity.models.patches import device_named
from parity.models.registry import opened, tiny_names
from parity.models.spec import Case
from parity.paths.facts import ends, facts_of, leave
from parity.paths.families import from_tensors, load, reference_case, with_names, with_port
from parity.paths.floors import Variant, make_variants, with_floors
from parity.paths.follow import follow, in_loop, stepwise
from parity.paths.loaded import Conditions, Inputs, Loaded, draw_noise, require_fit, require_place, tensor
from parity.paths.loop import Loop, denoise, prepare
from parity.paths.plan import LOOP_STAGE, Array, Forced, Plan, Source, Spec, State, split_branches, state_of
from parity.paths.port.load import DEFAULT_TIMEOUT, Entry, load_entry
from parity.paths.port.settings import PortInfo, typed
from parity.paths.stage_side import Runners, StageSide
from parity.records import Facts, StepRecords
from parity.settings import Backend, Settings

BACKENDS: Mapping[str, Backend] = {"reference": "torch", "candidate": "torchax"}


@dataclass
class Host:
    """Loads sides in this process.

    Attributes:
        runners: loaded stages outside the loop, shared by the sides that hold them.
    """

    _ports: dict[tuple[str, str], Entry] = field(default_factory=dict)
    _encoded: dict[object, Conditions] = field(default_factory=dict)
    runners: Runners = field(default_factory=weakref.WeakValueDictionary)

    def open(self, spec: Spec) -> LiveSide | StageSide:
        """A side, loaded when it is first asked for something."""
        return LiveSide(self, spec) if spec.source.stage == LOOP_STAGE else StageSide(spec, self.runners, self.entry)

    def port(self, option: str, text: str, timeout: float = DEFAULT_TIMEOUT) -> PortInfo:
        """Import a port.

        Raises:
            UsageError: see `parity.paths.port.load.load_entry`.
        """
        return self.entry(option, text, timeout).info

    def entry(self, option: str, text: str, timeout: float = DEFAULT_TIMEOUT) -> Entry:
        """An imported port; it is imported once."""
        key = (option, text)
        if key not in self._ports:
            self._ports[key] = load_entry(option, text, timeout)
        return self._ports[key]

    def encoded(self, spec: Spec, family: Family, case: Case, settings: Settings) -> Conditions:
        """A prompt's embeddings, made once for each dtype of the encoders."""
        source = spec.source
        key = (source.model, source.prompt, source.stage1, settings.text("dtype"), settings.text("text.byt5_dtype"))
        if key not in self._encoded:
            stage1 = None if source.stage1 is None else Path(source.stage1)
            self._encoded[key] = family.conditions(case, settings, stage1, device_named(settings))
        return self._encoded[key]


class InProcess:
    """Opens the sides of both roles in this process: for the library form, benchmarks and tests; see
    `parity.paths.plan.Openers`. What one side's code changes, the other meets."""

    def __init__(self, *ports: Entry) -> None:
        """Openers of this process; `ports`: those that are imported already, or are no files."""
        self._host = Host({(port.option, port.text): port for port in ports})

    def of(self, role: str) -> Host:
        """The host, for either role."""
        return self._host


class LiveSide:
    """See the module's docstring.

    Attributes:
        spec: what it is. role: which side that is.
    """

    def __init__(self, host: Host, spec: Spec, loaded: Loaded | None = None) -> None:
        """A side of a spec; `loaded`: the path that it names, where it is loaded already."""
        self.host, self.spec, self.role = host, spec, spec.role
        if loaded is not None:
            self.loaded = loaded
        self._first: Loop | None = None
        self._variants: dict[tuple[str, ...], list[Variant]] = {}

    # --- what it runs

    @functools.cached_property
    def loaded(self) -> Loaded:
        """The loaded path."""
        spec, source = self.spec, self.spec.source
        port = None if spec.port is None else self.host.entry(spec.option, spec.port)
        settings = typed(port, BACKENDS[spec.role], spec.settings)
        inputs = None if source.inputs is None else Path(source.inputs)
        base: Family
        if spec.tensors is not None:
            file = Path(source.model.rpartition(":")[0])
            case, base = from_tensors(source.model, file, {name: tensor(x) for name, x in spec.tensors.items()})
        elif source.alone and port is not None:
            case, base = reference_case(port, settings, inputs)
        else:
            base, case = opened(source.model, inputs, source.prompt)
        own = spec.role == "candidate" and spec.option != "--reference-port"
        family = with_port(base, case, spec.role, port, own=own)
        require_place(family, case, settings, source.steps)
        return load(spec.role, family, case, settings, self._inputs(family, case, settings))

    def _inputs(self, family: Family, case: Case, settings: Settings) -> Inputs:
        spec, source = self.spec, self.spec.source
        if spec.start.inputs is None:
            backend: Backend = "torch"  # the encoders are torch's on both sides
            encode = typed(None, backend, spec.encode) if spec.encode else settings
            conditions = self.host.encoded(spec, family, case, encode)
        else:
            conditions = _conditions(family, spec.start.inputs)
        beside = {name: _conditions(family, given) for name, given in spec.start.beside.items()}
        tokens = {name: tensor(x) for name, x in spec.start.tokens.items()}
        noise = draw_noise(case.latent_shape, source.seed)
        start = None if spec.noise is None else tensor(spec.noise)
        if start is not None:
            require_fit(family, case, conditions, start)
        return Inputs(conditions, noise, source.steps, source.seed, beside, tokens, start)

    def facts(self) -> Facts:
        if self._first is None:  # the next walk from the beginning takes it
            loop = prepare(self.loaded)
            self._first = with_names(loop) if self.spec.named else loop
        return facts_of(self._first, alone=self.spec.source.alone)

    # --- the steps

    def observe(
        self, plan: Plan, *, start: State | Forced | None = None, steps: tuple[int, int] | None = None
    ) -> Iterator[StepRecords]:
        if plan.follow:
            assert steps is not None
            assert not callable(start)
            return self._follow(plan, start, steps[0])
        return self._steps(plan, start, steps or (0, self.spec.source.steps))

    def _steps(self, plan: Plan, start: State | Forced | None, steps: tuple[int, int]) -> Iterator[Any]:
        first, stop = steps
        forced = start if callable(start) else None
        # A loop that is forced from a later step on has walked there too, for what a feature cache holds by then.
        state = (start(first) if first else None) if callable(start) else start
        loop = self._at(first, state)
        variants = self._floors(plan.floors, first, state) if plan.floors else []
        states: dict[int, State] = {}

        def walked() -> Iterator[StepRecords]:
            for step in denoise(loop, plan.sites, forced, first=first, stop=stop):
                states[step.step] = state_of(step, "before")
                yield step
                states.pop(step.step, None)

        for step in with_floors(walked(), variants, plan.sites, states.get if plan.forced else None, first=first):
            if step.step == first:
                self.loaded.reached.require()
            yield step
        if plan.leave is not None:
            leave(Path(plan.leave), loop)
        if plan.ends:
            yield ends({"": loop, **{v.name: v.loop for v in variants}})

    def _follow(self, plan: Plan, state: State | None, step: int) -> Iterator[StepRecords]:
        variants = self._made(plan.floors) if plan.floors else []
        truth = next((v for v in variants if v.is_truth), None)
        own = functools.partial(self._at, step, state)
        walks = [in_loop(functools.partial(self._again, v, step, state), step, v.around(step)) for v in variants]
        if truth is None:
            yield follow(in_loop(own, step), walks, plan, LOOP_STAGE, step)
            return
        first = walks.pop(variants.index(truth))
        as_given = [in_loop(own, step), in_loop(own, step, stepwise())]
        yield follow(first, [*as_given, *walks], plan, LOOP_STAGE, step)

    def _at(self, step: int, state: State | None) -> Loop:
        if state is None and self._first is not None:
            loop, self._first = self._first, None
            return loop
        loop = prepare(self.loaded.with_fresh_sampler())  # the first loop may still be walking
        if state is not None and step >= self.spec.source.steps:
            loop.take(state)  # no step is left: all that is wanted is what the loop came to
        elif state is not None:
            loop.continue_from(step, state)
        return loop

    def _floors(self, kinds: tuple[str, ...], step: int, state: State | None) -> list[Variant]:
        if kinds not in self._variants and state is None:
            return self._made(kinds)
        return [replace(v, loop=self._again(v, step, state)) for v in self._made(kinds)]

    def _made(self, kinds: tuple[str, ...]) -> list[Variant]:
        if kinds not in self._variants:
            self._variants[kinds] = make_variants(self.loaded, kinds)
        return self._variants[kinds]

    def _again(self, variant: Variant, step: int, state: State | None) -> Loop:
        """A variant's loop before a step."""
        loop = prepare(variant.loop.side.with_fresh_sampler())
        if state is not None:
            loop.continue_from(step, state, variant.around)
        return loop

    def close(self) -> None:
        vars(self).pop("loaded", None)
        self._first, self._variants = None, {}


def _conditions(family: Family, inputs: Mapping[str, Array]) -> Conditions:
    """Explicit inputs by branch; a branch of the family may have none but latents and timestep."""
    own = split_branches({name: tensor(x) for name, x in inputs.items()})
    return {branch: {} for group in family.batches for branch in group} | own


@contextlib.contextmanager
def checkpoint(source: Source) -> Iterator[None]:
    """Within it, what libraries raise names the checkpoint, in one line.

    A config of somebody's own can make diffusers, transformers or numpy raise anything at any depth. That is the
    input's fault, exit code 2; with a model of parity's own it is an internal error, and keeps its traceback.

    Raises:
        UsageError: something failed, and the model is not one of parity's own.
    """
    try:
        yield
    except ParityError:
        raise
    except Exception as error:
        if source.alone or source.model in tiny_names():
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise UsageError(
            f"'{source.model}' cannot be run: {summary(error)} ({Path(last.filename).name}:{last.lineno}); is the "
            "checkpoint whole, and one of the pinned diffusers'?"
        ) from error
