"""A user's port: somebody's own code in place of the family's class.

Torch modules then run through parity's own torch and torchax backends; `parity.paths.port.jax_port` runs the others.
Where a port's functions are called, what they raise is reported, what they change is put back, and their layout is
theirs.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import weakref
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch.nn.modules.dropout import _DropoutNd
from torch.utils import _pytree as pytree

from parity.errors import MalformedError, UsageError
from parity.golden.rename import Rename, decode_rename
from parity.hooks.attach import masks_given
from parity.hooks.torchtools import on_jax, prediction_of, to_torch, uncompiled
from parity.models.family import Condition, Constrain, Family, Place, Said, Sampler, sigmas_of
from parity.models.feature_cache import CALL
from parity.models.folder import Case
from parity.models.generic_inputs import LATENT
from parity.models.patches import DTYPES, in_dtype
from parity.paths.network import Network
from parity.paths.port.load import Entry, build, failures, kept
from parity.port import Case as PortCase, OwnLoop, OwnSchedule, Port, Scheduler
from parity.records import ATTENTION
from parity.settings import Reached, Settings

T = TypeVar("T")


class Read(UserDict[str, str]):
    """A port's settings; `marks` counts how often each was read."""

    def __init__(self, values: Mapping[str, str], marks: dict[str, int]) -> None:
        super().__init__(values)
        self.marks = marks

    def __getitem__(self, name: str) -> str:
        value = super().__getitem__(name)
        self.marks[name] = self.marks.get(name, 0) + 1
        return value


class Ported(Network):
    """A port of a model.

    Attributes:
        family: of the inputs, schedule and rows. entry: the port's function. role: which side it is.
        runs_as_it_is: with names of its own; a reference's module that torchax compiles is parity's candidate, with the
            reference's names.
        said: what its code changed for the process, put back.
        marks: how often the port has read each setting.
        keeps: whether it keeps features between steps (its own `cache`).
        from_pipeline: what the pipeline hands to each call beside the loop's arguments, where the port takes it.
        prepared: what the next `load` takes, where a port was built for it.
        _rename: its modules' names and, where a rule has a colon, its arguments' in the reference's. _paths: its own
            names of modules by the reference's.
    """

    is_own = True

    def __init__(self, family: Family, case: Case, entry: Entry, role: str, runs_as_it_is: bool = False) -> None:
        super().__init__(family, case)
        self.entry, self.role, self.runs_as_it_is = entry, role, runs_as_it_is
        self.may_be_silent = True  # a port may name modules that it never calls
        self.keeps, self._rename = False, Rename()
        self._paths: dict[str, str] = {}
        self.said, self.marks = set[str](), dict[str, int]()
        self.prepared: Port | None = None
        self.from_pipeline: Mapping[str, Any] = {}
        self._own: Port | None = None
        self._ports: weakref.WeakKeyDictionary[Any, Port] = weakref.WeakKeyDictionary()

    def checks(self, role: str) -> tuple[Said, ...]:
        """What the port changed for the process, which was put back; then what the family says."""
        said = [*(f"importing it {x}" for x in self.entry.said), *sorted(self.said)]
        detail = f"{self.entry.text}: " + ("; ".join(said) + "; put back" if said else "changed nothing outside")
        own: Said = (f"{self.role} port", "explained" if said else "pass", detail)
        module = None if self._own is None else self._own.module
        return (own, *_dropping(module, self.entry.text), *super().checks(role))

    @property
    def batches(self) -> tuple[tuple[str, ...], ...]:
        """One branch a call, unless the port takes several at once."""
        every = tuple(branch for group in self.family.batches for branch in group)
        own = () if self._own is None else tuple(self._own.branches)
        if own and sorted(own) != sorted(every):
            raise UsageError(f"{self.entry.named}: `branches` is {own}; this model has {', '.join(every)}, each once")
        return (own,) if own else tuple((branch,) for branch in every)

    @property
    def idle(self) -> tuple[str, ...]:
        return () if self.entry.installed is None else self.entry.installed.idle

    def running(self) -> contextlib.AbstractContextManager[None]:
        return self.entry.running()

    def compiling(self) -> contextlib.AbstractContextManager[None]:
        return failures(f"{self.entry.named}: compiling what `call` computes", self.entry.path)

    def named(self, module: str) -> str:
        found = self._rename.module(module)
        owner, _, last = module.rpartition(".")
        if found == module and owner and last == ATTENTION:
            found = f"{self._rename.module(owner)}.{ATTENTION}"
        self._paths[found] = module
        return found

    def named_port(self, module: str, port: str) -> str:
        """The reference's name of an input or output; rules may have either name of its module."""
        for rule in self._rename.ports:
            for name in dict.fromkeys((module, self._paths.get(module, module))):
                renamed = rule.apply(f"{name}:{port}")
                if renamed is not None:
                    return renamed.partition(":")[2]
        return port

    def declares(self, setting: str) -> bool:
        """Whether the port implements the setting itself; parity then leaves it to it."""
        return setting in self.entry.settings

    def build(self, settings: Settings) -> Port:
        """A port of these settings.

        Raises:
            UsageError: see `parity.paths.port.load.build`.
        """
        port, said = built(self.entry, self.role, self.case, settings, self.marks)
        if port.call is None and port.module is None:
            raise UsageError(f"{self.entry.named} brings a VAE alone: run it with --stages vae")
        self.from_pipeline = _accepted(port, self.family.pipeline_arguments(self.case))
        self.keeps = self.declares("cache") and settings.deep_cache is not None
        self._own, self.shard = port, port.shard
        self.said |= {f"{self.entry.function.__name__} {x}" for x in said}
        try:
            self._rename = decode_rename(port.rename if self.runs_as_it_is else {})
        except MalformedError as error:
            raise UsageError(f"{self.entry.named}: `rename`: {error}") from None
        return port

    def sampler(self, seed: int) -> Sampler:
        base, own = super().sampler(seed), self._own
        if own is None or (own.schedule is None and own.loop is None):
            return base
        return OwnSampler(base, self.entry, own.schedule, own.loop)

    def load(self, settings: Settings) -> torch.nn.Module:
        """The torch module of a port, with what calls it remembered."""
        port, self.prepared = self.prepared or self.build(settings), None
        if not isinstance(port.module, torch.nn.Module):
            raise UsageError(
                f"{self.entry.named}: a reference needs a torch.nn.Module as its `module`, found "
                f"{type(port.module).__name__}: its floors are measured by running it again in float64 and perturbed"
            )
        own = uncompiled(port.module)
        # The port may have placed its weights in torchax already.
        with sys.modules["torchax"].default_env() if on_jax(own) else contextlib.nullcontext():
            module = in_dtype(own, DTYPES[settings.text("dtype")])
        self._ports[module] = port
        return module if self.runs_as_it_is else module.eval()

    def retried(self, call: Callable[..., T], *given: Any) -> T:
        """A call that is made once more where it had no place for the numbers among the arguments, as who passes all of
        them on to a function that takes fewer, or gives its own beside them: it is not given them again."""
        try:
            return call(*given)
        except UsageError as error:
            cause, passed = error.__cause__, self.from_pipeline
            numbers = {k for k, x in passed.items() if not any(map(torch.is_tensor, pytree.tree_leaves(x)))}
            if not isinstance(cause, TypeError) or not any(f"'{name}'" in str(cause) for name in numbers):
                raise
        self.from_pipeline = {k: x for k, x in passed.items() if k not in numbers}
        return call(*given)

    def predict(self, model: Any, arguments: Mapping[str, Any]) -> torch.Tensor:
        """One branch's prediction of a torch module's port."""
        return self.retried(self._predicted, model, arguments)

    def _predicted(self, model: Any, arguments: Mapping[str, Any]) -> torch.Tensor:
        port = self._ports[model]
        call = port.call or (lambda inputs: model(**inputs))
        rank = arguments[LATENT].ndim
        with guarded(self.entry):
            given = {k: moved(x, port, rank, self.family.channels, -1) for k, x in arguments.items() if x is not None}
            at = arguments[LATENT].device
            given |= pytree.tree_map_only(torch.Tensor, lambda x: x.to(at), dict(self.from_pipeline))
            if port.padded is not None:
                masks_given(port.padded(given))
            out = prediction_of(self.called(call, given))
        if not isinstance(out, torch.Tensor):
            raise wrong_output(self.entry, out, "a torch.Tensor")
        if type(out) is torch.Tensor and (out.is_meta or out.layout is not torch.strided):  # torchax has its own kind
            kind = "on the meta device, without values" if out.is_meta else f"of layout {out.layout}"
            raise UsageError(f"{self.entry.named}: `call` returned a tensor {kind}; return a dense one with values")
        return self.taken(out, port, arguments)

    def taken(self, out: Any, port: Port, arguments: Mapping[str, Any]) -> Any:
        """A prediction for these arguments, in parity's layout.

        Raises:
            UsageError: of another shape than expected, a single number, or of no floating dtype.
        """
        out = moved(out, port, arguments[LATENT].ndim, -1, self.family.channels)
        returned = f"{self.entry.named}: `call` returned"
        batch = int(arguments[LATENT].shape[0])
        shape = (batch, *self.case.latent_shape[1:]) if self.family.is_known else None
        if "float" not in str(out.dtype):
            raise UsageError(f"{returned} {out.dtype} values; the prediction must be of a float dtype")
        if shape is not None and tuple(out.shape) != shape:
            raise UsageError(f"{returned} shape {list(out.shape)}; the prediction has {list(shape)}")
        if not out.shape:  # nothing says which shape a model has that only its port knows
            raise UsageError(f"{returned} a single number; the prediction has an axis for the batch")
        return out

    def called(self, call: Callable[..., Any], *passed: Any) -> Any:
        """The prediction of a port's `call`; where it keeps features between steps, they are handed in and taken out.

        Raises:
            UsageError: it has a feature cache and does not return what it keeps.
        """
        cached = CALL.get()
        if cached is None or not self.keeps:
            return call(*passed)
        both = call(*passed, kept=cached.given)
        if not isinstance(both, tuple) or len(both) != 2 or not isinstance(both[1], tuple):
            raise UsageError(
                f"{self.entry.named}: with a cache `call(..., kept)` returns (prediction, kept), kept a tuple of "
                f"arrays; found {type(both).__name__}"
            )
        out, cached.kept = both
        return out

    def adapt(self, model: Any, reached: Reached, *, traced: bool, first: Condition | None) -> None:
        """Nothing: its own code applies its settings."""

    def constrain(self, model: Any, place: Constrain) -> None:
        """Nothing, as above."""

    def reached(self, settings: Settings) -> Reached:
        """Marks those that the port has read, and those that it reads from now on."""
        return Reached(settings, marks=self.marks)


@contextlib.contextmanager
def guarded(entry: Entry, name: str = "call") -> Iterator[None]:
    """A call of a port: what it raises becomes one line; what it changes for the process is put back, and an error.

    Args:
        name: of the function.

    Raises:
        UsageError: see above.
    """
    said: list[str] = []
    with kept(said), entry.running(), failures(f"{entry.named}: `{name}`", entry.path):
        yield
    if said:
        raise UsageError(f"{entry.named}: `{name}` {'; '.join(said)}; put back, but nothing outside may be changed")


def moved(x: Any, port: Port, rank: int, source: int, target: int) -> Any:
    """An array of the latents' rank with its channels moved, where the port has them last; anything else as it is."""
    if port.layout == "channels_first" or rank < 4 or getattr(x, "ndim", 0) != rank:
        return x
    if isinstance(x, torch.Tensor):
        return x.movedim(source, target)
    import jax.numpy as jnp

    return jnp.moveaxis(x, source, target)


def built(entry: Entry, role: str, case: Case, settings: Settings, marks: dict[str, int]) -> tuple[Port, list[str]]:
    """A port of these settings, and what its code changed for the process, which was put back.

    Args:
        marks: counts how often the port reads each setting.

    Raises:
        UsageError: see `parity.paths.port.load.build`.
    """
    texts = settings.as_text()
    known = Read({name: texts[name] for name in ("dtype", *entry.settings)}, marks)  # which none needs to declare
    shape = tuple(case.latent_shape) or None
    return build(entry, PortCase(role, case.name if case.config else "", case.folder, case.config, shape, known))


def _dropping(module: object, port: str) -> Iterator[Said]:
    """What is to be said of a port's module that drops values at random, since nobody called its `eval`."""
    modules = module.named_modules() if isinstance(module, torch.nn.Module) else ()
    names = [name for name, x in modules if x.training and isinstance(x, _DropoutNd) and x.p > 0]
    if names:
        detail = f"{port} returns a module in which {names[0]} drops values at random: call its .eval()"
        yield "training mode", "explained", detail


def _accepted(port: Port, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Those of the pipeline's own arguments that a port has a place for: a `call` takes all of them in one dict."""
    if port.call is not None or port.module is None:
        return arguments
    call = port.module.forward if isinstance(port.module, torch.nn.Module) else port.module
    taken = inspect.signature(call).parameters
    every = any(p.kind is p.VAR_KEYWORD for p in taken.values())
    return {name: x for name, x in arguments.items() if every or name in taken}


def wrong_output(entry: Entry, out: Any, wanted: str) -> UsageError:
    """What to raise for a `call` that returns no array."""
    found = "None" if out is None else f"an object of type {type(out).__name__}"
    return UsageError(f"{entry.named}: `call` returned {found}; return the prediction, {wanted}")


# --- its own schedule and its own step of the loop


class OwnSampler(Sampler):
    """The family's sampler with a port's scheduler, step, or both in its place; see `parity.models.family.Sampler`.

    Real schedulers repeat timesteps in bfloat16, start where a warm-up left them, or take the second of two equal
    timesteps: none of that is emulated, their own code says it.

    Args:
        base: the family's. schedule: steps -> the port's scheduler, ready for its first step; None for the family's.
        loop: one step of the port's loop; None for the family's guidance and the scheduler's step.
    """

    _before: torch.Tensor

    def __init__(self, base: Sampler, entry: Entry, schedule: OwnSchedule | None, loop: OwnLoop | None) -> None:
        self.base, self.entry, self._schedule, self._loop = base, entry, schedule, loop
        self.guidance_scale = base.guidance_scale
        self.scheduler: Scheduler | None = None
        self._after: torch.Tensor | None = None

    @property
    def sigmas(self) -> torch.Tensor:
        return self.base.sigmas if self.scheduler is None else _tensor(sigmas_of(self.scheduler, self.timesteps))

    @property
    def end(self) -> float:
        return self.base.end

    @property
    def step_index(self) -> int | None:
        """Where the scheduler stands; before its first step, where its own code would begin."""
        return self.base.step_index if self.scheduler is None else self.first

    def set_schedule(self, steps: int, device: object, place: Place, dtype: torch.dtype | None) -> None:
        self.base.set_schedule(steps, device, place, dtype)
        self.timesteps, self._after = self.base.timesteps, None
        if self._schedule is None:
            return
        where = f"{self.entry.named}: `schedule({steps})`"
        with failures(where, self.entry.path):
            made = self._schedule(steps)
            needed = ("timesteps", "step", "alphas_cumprod" if hasattr(made, "final_alpha_cumprod") else "sigmas")
            missing = [name for name in needed if not hasattr(made, name)]
            if missing:
                raise UsageError(f"{where} returned an object of type {type(made).__name__} without `{missing[0]}`")
            given = len(made.timesteps), len(getattr(made, "sigmas", range(steps + 1)))
            if given[0] < steps or given[1] < steps + 1:
                raise UsageError(f"{where} has {given[0]} timesteps and {given[1]} sigmas, one more")
            self.first = _first_index(made)
            tensors = {name: x for name, x in vars(made).items() if type(x) is torch.Tensor}
        for name, x in tensors.items():  # as ports do: what is the script's CPU tensor goes to where the model is
            setattr(made, name, place(x))
        with failures(where, self.entry.path):
            self.scheduler, self.timesteps = made, _tensor(made.timesteps)

    def start(self, noise: torch.Tensor) -> torch.Tensor:
        return self.base.start(noise)

    def model_input(self, latents: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        self._before = latents
        if self.scheduler is None:
            return self.base.model_input(latents, step)
        return latents, self.timesteps[step].expand(latents.shape[0])

    def guide(self, predictions: Mapping[str, torch.Tensor], step: int, dtype: torch.dtype | None) -> torch.Tensor:
        if self._loop is None:
            return self.base.guide(predictions, step, dtype)
        with failures(f"{self.entry.named}: `loop`", self.entry.path):
            made = self._loop(predictions, self._before, step, self.scheduler)
            if not isinstance(made, (tuple, list)) or len(made) != 2:
                found = f"{len(made)} values" if isinstance(made, (tuple, list)) else f"one {type(made).__name__}"
                raise UsageError(f"{self.entry.named}: `loop` returned {found}, not (guided prediction, latents after)")
        shape = self._before.shape
        for what, x in zip(("guided prediction", "latents after"), made, strict=True):
            if not isinstance(x, torch.Tensor) or x.shape != shape:
                found = f"{list(x.shape)}" if isinstance(x, torch.Tensor) else f"an object of type {type(x).__name__}"
                raise UsageError(f"{self.entry.named}: the {what} of `loop` is {found}, not a tensor {list(shape)}")
        guided, self._after = made
        return guided

    def step(self, guided: torch.Tensor, latents: torch.Tensor, step: int) -> torch.Tensor:
        if self._after is not None:
            after, self._after = self._after, None
            return after
        if self.scheduler is None:
            return self.base.step(guided, latents, step)
        with failures(f"{self.entry.named}: `schedule(...).step`", self.entry.path):
            return super().step(guided, latents, step)

    def stand_before(self, step: int, state: Mapping[str, torch.Tensor]) -> None:
        self.base.stand_before(step, state)
        super().stand_before(step, state)


def _tensor(x: Any) -> torch.Tensor:
    """A schedule's numbers, which may be an array of numpy's or JAX's, or a list."""
    return x if isinstance(x, torch.Tensor) else to_torch(x)


def _first_index(scheduler: Scheduler) -> int:
    """The index of the sigma that the first step is going to use: the scheduler's counter, else what its own search for
    the first timestep finds (of equal ones, diffusers' schedulers take the second)."""
    index = getattr(scheduler, "step_index", None)
    index = getattr(scheduler, "begin_index", None) if index is None else index
    search = getattr(scheduler, "index_for_timestep", None)
    if index is None and search is not None:
        index = search(scheduler.timesteps[0])
    return 0 if index is None else int(index)
