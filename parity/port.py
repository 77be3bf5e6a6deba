"""What a port's file imports: the object it returns, what it is given, and `tap`. Needs neither torch nor jax.

    from parity.port import Case, Port, tap

    SETTINGS = {"dtype": "float32"}              # the settings this port knows, with their values by default

    def build(case: Case) -> Port:
        weights = load(case.folder)
        return Port(call=lambda weights, inputs: forward(weights, inputs), weights=weights)

`docs/your-model.md` has the whole protocol.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

T = TypeVar("T")

Layout = Literal["channels_first", "channels_last"]
Runs = Literal["torch", "torchax", "jax"]


@dataclass(frozen=True)
class Case:
    """What a port is given before it is built.

    Attributes:
        role: `reference` or `candidate`. model: as given with --model; empty without one.
        folder: the checkpoint of --model, else the folder of the port's file. config: of its transformer.
        latent_shape: of `hidden_states` before anything is joined to it; None where the reference port's inputs say.
        settings: the settings in `SETTINGS` with the values of this run. A value counts as used once it is read.
    """

    role: str
    model: str
    folder: Path
    config: Mapping[str, Any]
    latent_shape: tuple[int, ...] | None
    settings: Mapping[str, str]


class Scheduler(Protocol):
    """What a port's `schedule` returns: diffusers' schedulers, and whatever has these members of theirs.

    Attributes:
        timesteps: [steps]. sigmas: [steps + 1]; or, as DDIM has them, `alphas_cumprod` and `final_alpha_cumprod`.
    """

    timesteps: Any
    sigmas: Any

    def step(self, model_output: Any, timestep: Any, sample: Any, *, return_dict: bool) -> tuple[Any, ...]:
        """(latents after the step, ...)."""
        ...


OwnSchedule = Callable[[int], Scheduler]
OwnLoop = Callable[[Mapping[str, Any], Any, int, Any], tuple[Any, Any]]


@dataclass
class Port:
    """A transformer somebody wrote.

    Attributes:
        call: one branch's prediction, `call(inputs)`, or `call(weights, inputs)` where there are weights; `inputs` are
            the transformer's arguments by name, arrays of the kind that `runs` says. Default: `module(**inputs)`.
        module: what is observed: a torch.nn.Module (its submodules), or an object whose attributes are callable modules
            (Flax NNX), or a Flax linen module. None: only what `tap` names.
        weights: arrays in any nest, handed to `call`; else they are constants of the compiled program (JAX only).
        runs: `torch` (eager), `torchax` (compiled by parity from a torch module), `jax` (compiled by parity). Default:
            torch for a torch module, torchax for one with its tensors or that it compiled, else jax.
        layout: of arrays of the latents' rank: `channels_last` are given and taken that way.
        rename: regular expression over a whole module name -> the reference's name, `\\1` for groups; first match.
            One with a colon is of an argument: `block\\.(\\d+):in\\.img` -> `blocks.\\1:in.hidden_states`.
        padded: `padded(inputs)` -> a mask [B, rows] of the valid text rows by the reference's module, such as
            `{"transformer_blocks": mask}`, where its modules are given none. Default: masks among arguments.
        branches: the guidance branches that one `call` takes in its batch, in their order, such as
            `("uncond", "cond")`. Default: one branch a call.
        schedule: steps -> the port's own scheduler as it stands before its first step, warm-up calls made.
        loop: one step of the port's own loop, `loop(predictions, latents, step, scheduler)` -> (guided prediction,
            latents after it), torch's tensors in a JAX port too; predictions by branch. Default: the model's own
            guidance, the scheduler's step.
        shard: regular expression over a whole parameter name -> its PartitionSpec, `("tp", None)`, on the mesh of the
            run (torchax only). Default: what `sharding` says.
        vae: the port's own decoder, `vae(latents)` -> frames [B, 3, T, H, W], some -1 to 1, for the latents
            [B, C, T, H, W] that a loop ends in, not scaled yet: arrays of the kind that `runs` says, on the CPU. May
            stand alone. Default: parity's own.
        inputs: arguments by name, for a reference without --model; `hidden_states` are the latents, `timestep` one
            number a step, falling.
    """

    call: Callable[..., Any] | None = None
    module: Any = None
    weights: Any = None
    runs: Runs | None = None
    layout: Layout = "channels_first"
    rename: Mapping[str, str] = field(default_factory=dict)
    padded: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    branches: tuple[str, ...] = ()
    schedule: OwnSchedule | None = None
    loop: OwnLoop | None = None
    shard: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    vae: Callable[[Any], Any] | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)


Listener = Callable[[str, Any], None]
_LISTENER: ContextVar[Listener | None] = ContextVar("parity_port_listener", default=None)


def tap(name: str, value: T) -> T:
    """Name a value so that it is observed, and return it as it is; nothing happens outside a parity run.

    Args:
        name: of the module whose output it is, `blocks.0`; or with a port, `blocks.0:in.hidden_states`. Inside a
            `lax.scan` of JAX `blocks.*`: the layers are counted.
        value: an array, traced or not, or a nest of them.
    """
    listener = _LISTENER.get()
    if listener is not None:
        listener(name, value)
    return value


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Within it, `tap` hands what it sees to the listener. For parity's own use."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)
