"""A side whose model is loaded in this process; see `parity.paths.plan.Side`.

`Host` loads sides from their specs and keeps what several of them share: imported ports, the prompt's embeddings. A
side is loaded when it is first asked for something, and lets go of its weights when it is closed. A reference port that
no checkpoint stands behind has a family of its own: its own inputs, one branch, Euler steps.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch

from parity.errors import ParityError, UsageError, summary
from parity.hooks.torchtools import cast_arguments, nearest, to_torch
from parity.models.family import Family
from parity.models.folder import Case, GenerationSpec
from parity.models.generic import Generic
from parity.models.generic_inputs import LATENT, TIMESTEP, Made, Signature, read_inputs
from parity.models.patches import DTYPES, device_named
from parity.models.registry import opened, tiny_names
from parity.paths.facts import facts_of, leave_files, stage_facts
from parity.paths.floors import Variant, make_variants, with_floors
from parity.paths.follow import Walk, follow, take
from parity.paths.loaded import Conditions, Inputs, Loaded, draw_noise, require_fit, require_place, tensor
from parity.paths.loop import Loop, Once, denoise, prepare, step_calls
from parity.paths.network import Network
from parity.paths.plan import BESIDE, Array, Ends, Forced, Plan, Source, Spec, State
from parity.paths.port.load import Entry, load_entry
from parity.paths.port.ported import Ported, built
from parity.paths.port.settings import PortInfo, typed
from parity.paths.reference import load_reference
from parity.paths.stage import Opaque, conditions_of, decoder_of, known
from parity.paths.stepwise import stepwise
from parity.paths.worker.extras import check_extras
from parity.records import AFTER, LOOP_STAGE, OUTSIDE, Facts, StepRecords
from parity.settings import Backend as PathName, Capability, Settings

PATHS: Mapping[str, PathName] = {"reference": "torch", "candidate": "torchax"}


class Host:
    """Loads sides of either role in this process: in a worker one role's, for the library form, benchmarks and tests
    both, where what one side's code changes the other meets; see `parity.paths.plan.Openers`."""

    def __init__(self, *ports: Entry) -> None:
        """A host; `ports`: those that are imported already, or are no files."""
        self._ports = {(port.option, port.text): port for port in ports}
        self._encoded: dict[object, Conditions] = {}

    def of(self, role: str) -> Self:
        """Itself, for either role."""
        return self

    def open(self, spec: Spec) -> LiveSide:
        """A side, loaded when it is first asked for something."""
        return (LiveSide if spec.source.stage == LOOP_STAGE else StageSide)(self, spec)

    def port(self, option: str, text: str) -> PortInfo:
        """Import a port.

        Raises:
            UsageError: see `parity.paths.port.load.load_entry`.
        """
        return self.entry(option, text).info

    def entry(self, option: str, text: str) -> Entry:
        """An imported port; it is imported once."""
        key = (option, text)
        if key not in self._ports:
            self._ports[key] = load_entry(option, text)
        return self._ports[key]

    def encoded(self, spec: Spec, family: Family, case: Case, settings: Settings) -> Conditions:
        """A source's embeddings, made once for each dtype of the encoders."""
        source = spec.source
        key = (source, settings.text("dtype"), settings.text("text.byt5_dtype"))
        if key not in self._encoded:
            stage1 = None if source.stage1 is None else Path(source.stage1)
            self._encoded[key] = family.conditions(case, settings, stage1, device_named(settings))
        return self._encoded[key]


class LiveSide:
    """See the module's docstring; `spec`: what it is."""

    def __init__(self, host: Host, spec: Spec) -> None:
        self.host, self.spec = host, spec
        self._walked: tuple[Plan, Mapping[str, Loop | Once]] = Plan(), {}
        self._variants: list[Variant] = []

    # --- what it runs

    @functools.cached_property
    def port(self) -> Entry | None:
        """Its port, imported."""
        return None if self.spec.port is None else self.host.entry(self.spec.option, self.spec.port)

    @property
    def settings(self) -> Settings:
        return typed(self.port, PATHS[self.spec.role], self.spec.settings)

    @functools.cached_property
    def loaded(self) -> Loaded:
        """The loaded path."""
        spec, source, port, settings = self.spec, self.spec.source, self.port, self.settings
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
        network = Network(base, case) if port is None else Ported(base, case, port, spec.role, own)
        require_place(network, settings, source.steps)
        return load(network, settings, self._inputs(network, settings))

    def _inputs(self, network: Network, settings: Settings) -> Inputs:
        spec, source = self.spec, self.spec.source
        if spec.start.inputs is None:
            encode = typed(None, "torch", spec.encode) if spec.encode else settings  # torch's encoders on both sides
            conditions = self.host.encoded(spec, network.family, network.case, encode)
        else:
            conditions = _conditions(network, spec.start.inputs)
        beside = {name: _conditions(network, given) for name, given in spec.start.beside.items()}
        tokens = {name: tensor(x) for name, x in spec.start.tokens.items()}
        noise = draw_noise(network.case.latent_shape, source.seed)
        start = None if spec.noise is None else tensor(spec.noise)
        if start is not None:
            require_fit(network, conditions, start)
        return Inputs(conditions, noise, source.steps, source.seed, beside, tokens, start)

    def facts(self) -> Facts:
        loop = prepare(self.loaded)
        # Names say which layers the stacked parameters of a port are of.
        named = self.spec.named or self.loaded.backend.stacked
        return facts_of(with_names(loop) if named else loop, self.spec)

    # --- the steps

    def observe(
        self, plan: Plan, *, start: State | Forced | None = None, steps: tuple[int, int] | None = None
    ) -> Iterator[StepRecords]:
        if plan.follow:
            assert steps is not None
            assert not callable(start)
            return self._follow(plan, start, steps[0])
        return self._steps(plan, start, steps)

    def _steps(self, plan: Plan, start: State | Forced | None, steps: tuple[int, int] | None) -> Iterator[StepRecords]:
        outside = self.spec.source.stage != LOOP_STAGE
        first, stop = steps or ((OUTSIDE, OUTSIDE + 1) if outside else (0, self.spec.source.steps))
        forced = start if callable(start) else None
        # A loop that is forced from a later step on has walked there too, for what a feature cache holds by then.
        state = (start(first) if first else None) if callable(start) else start
        loop = self._begin(Variant("", self.loaded), first, state)
        walks = [(v, self._begin(v, first, state, plan.forced)) for v in self.variants(plan)]
        self._walked = plan, {"": loop, **{v.name: walk for v, walk in walks}}
        own = denoise(loop, plan.sites, forced, first=first, stop=stop)
        for step in with_floors(own, walks, plan.sites, forced=plan.forced, first=first):
            if step.step == first:
                self.loaded.reached.require()
            yield step

    def ends(self, leave: str | None = None) -> Ends:
        own, (_, runs) = self.loaded, self._walked
        if leave is not None and isinstance(loop := runs[""], Loop):
            leave_files(Path(leave), self.spec.role, loop)
        heard = own.backend.heard  # some of a port's names show only when it is called
        named = sorted(own.modules if heard is None else heard)
        came = {name: walk.outputs for name, walk in runs.items()}
        return Ends(came, tuple(filter(None, named)), own.backend.ran, own.backend.idle)

    def _follow(self, plan: Plan, state: State | None, step: int) -> Iterator[StepRecords]:
        def walk(run: Variant) -> Walk:
            return lambda listen: take(self._begin(run, step, state), step, run.around, listen)

        own, variants = Variant("", self.loaded), self.variants(plan)
        truth = next((v for v in variants if v.is_truth), own)
        others = [walk(v) for v in variants if v is not truth]
        if truth is not own:
            others = [walk(own), walk(replace(own, around=lambda step: stepwise())), *others]
        yield follow(walk(truth), others, plan, self.spec.source.stage, step)

    def _begin(self, run: Variant, step: int, state: State | None, forced: bool = True) -> Loop | Once:
        """A walk of the side, or of a variant of it, before a step.

        Args:
            forced: whether a stage takes this side's own inputs.
        """
        loop = prepare(run.side)
        if state is not None and step >= self.spec.source.steps:
            loop.take(state)  # no step is left: all that is wanted is what the loop came to
        elif state is not None:
            loop.continue_from(step, state, run.around)
        return loop

    def variants(self, plan: Plan) -> list[Variant]:
        """The runs of it that measure a plan's floors; all plans of a side are for one chip."""
        if plan.floors and not self._variants:
            self._variants = make_variants(self.loaded, plan.chip)
        return self._variants if plan.floors else []

    def close(self) -> None:
        vars(self).pop("loaded", None)
        self._variants.clear()
        self._walked = Plan(), {}


class StageSide(LiveSide):
    """A stage outside the loop, of one step, `OUTSIDE`; what it ends in are its outputs: `cond.prompt_embeds`,
    `.frames`.

    Runs that measure its floors take this side's own inputs where a plan is `forced`, as in a comparison of the stage
    by itself, and else those of the runs of the same name before it (`Start.beside`), as in a recording of a chain.
    Where they take its own, what it came to is also what the stage makes of each of those inputs (`BESIDE`).
    """

    @functools.cached_property
    def port(self) -> Entry | None:
        """The candidate's, which may bring a decoder."""
        return super().port if self.spec.option == "--port" and self.spec.source.stage == AFTER else None

    @functools.cached_property
    def loaded(self) -> Loaded:
        """What it runs, on what; in a decoder's place the one that the candidate's port brings."""
        stage = known(self.spec)
        own = None if self.port is None else decoder_of(stage, self.port, self.settings)
        stage = stage if own is None else replace(stage, replaced=own)
        named = {name: conditions_of(given) for name, given in self.spec.start.beside.items()}
        inputs = Inputs(stage.inputs, torch.empty(0), 0, 0, beside=named)
        if stage.replaced:
            return Loaded(stage, inputs, Opaque(stage, inputs), {})
        return load(stage, self.settings, inputs)

    def facts(self) -> Facts:
        return stage_facts(self.loaded, self.spec)

    def _begin(self, run: Variant, step: int, state: State | None, forced: bool = True) -> Once:
        return Once(replace(run.side, inputs=self.loaded.inputs) if forced else run.side)

    def ends(self, leave: str | None = None) -> Ends:
        plan, runs = self._walked
        came = {name: walk.outputs for name, walk in runs.items()}
        for name in self._also(plan):
            again = Once(replace(self.loaded, inputs=self.loaded.inputs.of(name)))
            # Observed as before, though nobody reads it: the same program runs, and no other is compiled.
            next(denoise(again, plan.sites, first=OUTSIDE))
            came[f"{BESIDE}{name}"] = again.outputs
        return Ends(came)

    def _also(self, plan: Plan) -> tuple[str, ...]:
        """The runs whose inputs this side takes too, so that the chain can be judged."""
        spec = self.spec
        if spec.run:
            return (spec.run,) if spec.run in spec.start.beside else ()
        alone = plan.floors and plan.forced
        return tuple(spec.start.beside) if alone or self.spec.role == "candidate" else ()


def _conditions(network: Network, inputs: Mapping[str, Array]) -> Conditions:
    """Explicit inputs by branch; a branch of the family may have none but latents and timestep."""
    none: Conditions = {branch: {} for group in network.batches for branch in group}
    return {**none, **conditions_of(inputs)}


@contextmanager
def checkpoint(source: Source) -> Iterator[None]:
    """Within it, what libraries raise names the checkpoint, in one line.

    A config of somebody's own can make diffusers, transformers or numpy raise anything at any depth. That is the
    input's fault, exit code 2; with a model of parity's own it is an internal error, and keeps its traceback.

    Raises:
        UsageError: something failed, and the model is not one of parity's own.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, ParityError) or source.alone or source.model in tiny_names():
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise UsageError(
            f"'{source.model}' cannot be run: {summary(error)} ({Path(last.filename).name}:{last.lineno}); is the "
            "checkpoint whole, and one of the pinned diffusers'?"
        ) from error


# --- the loaded path, and the family of a port with inputs of its own


def load(network: Network, settings: Settings, inputs: Inputs) -> Loaded:
    """Load a path: a candidate's own port as its `runs` says, parity's own candidate in torchax, or in torch on a
    device that is named, as a reference is."""
    runs: str | None = settings.backend
    if isinstance(network, Ported) and network.runs_as_it_is:
        port = network.build(settings)
        if port.runs != "torch":
            check_extras()
        if port.runs == "jax":
            from parity.paths.port.jax_port import load_jax_port

            return load_jax_port(network, settings, inputs, port)
        network.prepared, runs = port, port.runs
    if runs == "torch":
        return load_reference(network, settings, inputs)
    try:
        # jax and torchax, only from here on
        from parity.paths.jax.candidate import load_candidate
    except RuntimeError as error:
        raise UsageError(
            f"torchax cannot be imported here: {error}; `-c device=NAME` runs the candidate in torch, "
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps torch from loading another backend"
        ) from None
    return load_candidate(network, settings, inputs)


def with_names(loop: Loop) -> Loop:
    """A loop whose side knows the names that it will be observed under; those that a JAX port taps show in a trace."""
    side, backend = loop.side, loop.side.backend
    if backend.heard is None:
        return loop
    with backend.scope():
        backend.hear(step_calls(loop, 0))
    paths = dict.fromkeys([*side.modules, *sorted(backend.heard)], "")
    return replace(loop, side=replace(side, modules={p: nearest(p, paths) for p in paths if p}))


class PortInputs(Generic):
    """See `parity.models.family.Family`; made by `from_tensors`."""

    title = "a port with inputs of its own"

    def lacks(self, config: Mapping[str, Any]) -> Mapping[Capability, str]:
        return {}

    def conditions(
        self, case: Case, settings: Settings, stage1: Path | None, device: torch.device
    ) -> dict[str, dict[str, torch.Tensor]]:
        cast = super().conditions(case, settings, stage1, device)["cond"]
        own = cast_arguments(self.made.tensors, DTYPES[settings.text("dtype")])
        return {"cond": {name: own[name] for name in cast}}

    def model_arguments(
        self, case: Case, settings: Settings, latents: torch.Tensor, timestep: torch.Tensor, dtype: torch.dtype
    ) -> dict[str, Any]:
        if TIMESTEP not in self.given:
            return {LATENT: latents.to(dtype)}
        if not settings.changed("timestep_dtype"):  # a plain module has nothing that would cast it
            own = cast_arguments(self.made.tensors, dtype)[TIMESTEP].dtype
            timestep = timestep.to(own if own.is_floating_point else dtype)
        return {LATENT: latents.to(dtype), TIMESTEP: timestep}


def reference_case(entry: Entry, settings: Settings, file: Path | None) -> tuple[Case, PortInputs]:
    """Case and family of a reference port without a model: it is built once to be asked for its inputs.

    Args:
        file: of the user's (`--inputs`), whose tensors take precedence.

    Raises:
        UsageError: no latents among the inputs, or something that is no array.
    """
    nothing = Case(entry.text, entry.path.parent, {}, GenerationSpec(), ())
    port, _ = built(entry, "reference", nothing, settings, {})
    for name, x in port.inputs.items():
        if not hasattr(x, "__array__"):
            raise UsageError(f"{entry.named}: the input '{name}' is of type {type(x).__name__}, not an array")
    given = {name: to_torch(x).cpu() for name, x in port.inputs.items()}
    names = tuple(given)
    if file is not None:
        given |= read_inputs(file, None)
    if LATENT not in given:
        raise UsageError(
            f"{entry.named}: without --model a reference needs inputs: its port's `inputs` must hold '{LATENT}' (the "
            f"latents), found {', '.join(names) or 'none'}; or give them with --inputs FILE.safetensors"
        )
    if given[LATENT].ndim < 3 or given[LATENT].shape[0] != 1:
        raise UsageError(f"{entry.named}: '{LATENT}' must be [1, ...], found {list(given[LATENT].shape)}")
    timesteps = given.get(TIMESTEP)
    if timesteps is not None and timesteps.ndim == 0:
        given[TIMESTEP] = timesteps[None]
    return from_tensors(entry.text, entry.path, given)


def from_tensors(text: str, file: Path, given: Mapping[str, torch.Tensor]) -> tuple[Case, PortInputs]:
    """Case and family of a reference port, wherever it runs, from its inputs.

    Args:
        text: the port, `FILE:FUNCTION`.
    """
    timesteps, spec = given.get(TIMESTEP), GenerationSpec()
    scale = float(timesteps[0]) if timesteps is not None and timesteps.ndim == 1 and timesteps[0] > 0 else 1000.0
    family = PortInputs(Signature(file.name, {}, (), tuple(given), scale), given, Made(given, {}))
    return Case(text, file.resolve().parent, {}, spec, family.latent_shape(file, spec)), family
