"""A path in PyTorch, on the device that its settings name: the reference, or a candidate. Imports no jax.

`matmul_precision` here is what JAX's lower precisions do to float32 matrix products, emulated exactly. On TPU, JAX's
`default` rounds the operands of a float32 product to bfloat16 and accumulates in float32; `high` takes three bfloat16
passes, which keep the operands to about 16 bits: each is split into two bfloat16 terms and the product of the two small
terms is dropped (jax.lax.Precision). The emulation makes a candidate's setting reproducible on the reference alone.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.nn.attention import flex_attention

from parity.errors import UsageError
from parity.hooks.attach import attached
from parity.hooks.methods import replaced
from parity.hooks.reduce.on_torch import TorchReducer, has_float64, to_numpy, torch_records
from parity.hooks.sites import SitePlan
from parity.hooks.tap import Tap, require_fired
from parity.hooks.torchtools import SDPA, Intercept, cast, device_of, eagerly, is_compiled, named_tensors
from parity.models.feature_cache import calling, given_at
from parity.models.patches import device_named
from parity.paths.loaded import BRANCHES, Base, Inputs, Listen, Loaded, Predicted, StepCalls
from parity.paths.network import Network
from parity.records import Record
from parity.settings import Reached, Settings


class TorchBackend(Base):
    """Calls a transformer as it is, with the branches batched as the family's pipeline does. A compiled one is called
    again without torch.compile, to observe its modules.

    Attributes:
        listen: gives the context in which each call of the model is made.
    """

    name = "torch"

    def __init__(self, model: torch.nn.Module, network: Network, inputs: Inputs, reached: Reached) -> None:
        self.model, self.device = model, device_of(model)
        super().__init__(network, inputs, reached, lambda x: torch.from_numpy(x).to(self.device))
        self.listen: Listen = contextlib.nullcontext

    def scope(self) -> contextlib.AbstractContextManager[None]:
        """The context in which everything of the loop runs: precision, gradients, torchax's environment."""
        return torch_scope(self.reached)

    def tensor(self, x: torch.Tensor) -> torch.Tensor:
        """A CPU tensor moved to where this path computes, dtype kept."""
        return x.to(self.device)

    def host(self, x: torch.Tensor) -> np.ndarray:
        """The values of a tensor on the host; bfloat16 and float16 widened to float32."""
        return to_numpy(x)

    def call(self, calls: StepCalls, plan: SitePlan | None) -> Predicted:
        """Make the transformer's calls of one step.

        Args:
            plan: what to observe; None for nothing.
        """
        predictions: dict[str, torch.Tensor] = {}
        records: list[Record] = []
        for group in (g for g in self.groups if g[0] in calls.branches):
            rule = self.rules[group[0]]
            tap = None if plan is None else self.tap(Tap, plan, TorchReducer(), rule, group, self.frames)
            given = given_at(self.reached.settings, calls.step, calls.features, group)
            twice = tap is not None and is_compiled(self.model)
            watched = contextlib.nullcontext() if tap is None or twice else attached(self.model, tap)
            heard = self.listen is not contextlib.nullcontext  # dynamo would compile these hooks too
            eager = eagerly(self.model) if heard else contextlib.nullcontext()
            with eager, self.network.running(), watched, self.listen(group), calling(given) as cached:
                out = self.network.predict(self.model, calls.of(group))
            calls.features[group] = cached.kept
            if tap is not None and twice:
                with eagerly(self.model), self.network.running(), attached(self.model, tap), calling(given):
                    self.network.predict(self.model, calls.of(group))
            for i, branch in enumerate(group):
                predictions[branch] = out if len(group) == 1 else out[i : i + 1]
            if tap is not None and plan is not None:
                if given is None:  # where blocks are skipped, an earlier step has shown that they are called
                    lenient = self.network.may_be_silent and plan.choice in ("blocks", "all")
                    expected = frozenset() if lenient else plan.must_fire - silenced(self.reached.settings)
                    require_fired(plan, expected, tap.calls, {e.site for e in tap.entries})
                self.ran |= tap.ran()
                records += torch_records(tap.settled(), self.network.stage, calls.step)
        return predictions, records

    def weights(self) -> Iterator[tuple[str, str, Callable[[], np.ndarray]]]:
        """(name, dtype, what reads it) of each parameter and buffer; on the host, 16-bit floats as float32."""
        held = list(named_tensors(self.model))
        names = self.network.parameters(name for name, _ in held)
        for name, x in held:
            yield names[name], str(x.dtype).removeprefix("torch."), functools.partial(to_numpy, x)

    def describe(self) -> tuple[str, ...]:
        """The devices by process, for people: `cpu`, `NVIDIA H200`, `TPU v5 lite x 8`."""
        return (torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type,)


@contextlib.contextmanager
def torch_scope(reached: Reached) -> Iterator[None]:
    """The context in which the reference computes: no gradients, products as `matmul_precision` says, never in TF32.

    Flex attention is not wrapped in torch.compile(backend="eager") here, by torch's own switch: that adds seconds, and
    fails once torchax is imported (dynamo asks the accelerator for its stream).
    """
    before, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False  # on by default, whatever the precision of products
    try:
        uncompiled = replaced(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        with torch.no_grad(), uncompiled, rounded_matmuls(reached):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
        torch.backends.cudnn.allow_tf32 = convolutions


_PRODUCTS = {
    torch.nn.functional.linear,
    torch.matmul,
    torch.Tensor.matmul,
    torch.Tensor.__matmul__,
    torch.bmm,
    torch.Tensor.bmm,
    torch.nn.functional.conv2d,
    torch.conv2d,
    torch.nn.functional.conv3d,
    torch.conv3d,
    SDPA,
}
"""Functions whose first two arguments are operands of a product; a bias or mask after them is left alone."""


def rounded_matmuls(reached: Reached) -> contextlib.AbstractContextManager[object]:
    """Within it, float32 products round their operands as `matmul_precision` says; nothing where it is `highest`."""
    precision = reached.settings.text("matmul_precision")

    def handle(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        reached.mark("matmul_precision")
        operands = 3 if func is SDPA else 2
        args = tuple(_round(x, precision) if i < operands else x for i, x in enumerate(args))
        return func(*args, **{n: _round(x, precision) if n in _OPERANDS else x for n, x in kwargs.items()})

    return contextlib.nullcontext() if precision == "highest" else Intercept(handle, only=_PRODUCTS)


_OPERANDS = ("query", "key", "value", "input", "weight")


def _round(x: Any, precision: str) -> Any:
    if not isinstance(x, torch.Tensor) or x.dtype != torch.float32:
        return x
    large = x.to(torch.bfloat16).to(torch.float32)
    if precision == "default":
        return large
    return large + (x - large).to(torch.bfloat16).to(torch.float32)


def load_reference(network: Network, settings: Settings, inputs: Inputs, *, dtype: torch.dtype | None = None) -> Loaded:
    """Load a path in torch, as the reference, or a stage outside the loop.

    Args:
        dtype: in place of the settings' dtype: float64 for the floor.
    """
    reached = network.reached(settings)
    model = network.load(settings)
    own = device_of(model)
    # A port that its code has put on a device stays there.
    model = model.to(device_named(settings)) if own.type == "cpu" or settings.changed("device") else model
    reached.mark("device")
    if dtype is torch.float64 and not has_float64(device_of(model)):
        raise UsageError(
            f"floors are measured in float64, which '{device_of(model).type}' does not have: run the reference on cuda "
            "or cpu (-r device=cpu)"
        )
    model = model if dtype is None else cast(model, dtype)
    reached.mark("dtype")
    with torch.no_grad():
        network.adapt(model, reached, traced=False, first=inputs.conditions.get(BRANCHES[0]))
    mark_text_settings(reached, inputs)
    backend = TorchBackend(model, network, inputs, reached)
    backend.dtype = dtype or backend.dtype
    return Loaded(network, inputs, backend, network.modules(model))


def mark_text_settings(reached: Reached, inputs: Inputs) -> None:
    """The text stage has run by the time a side is loaded; its setting took effect where there is ByT5 text."""
    if any("encoder_hidden_states_2" in condition for condition in inputs.conditions.values()):
        reached.mark("text.byt5_dtype")


def silenced(settings: Settings) -> frozenset[str]:
    """Modules that a setting keeps from being called, so that their silence is no error."""
    return frozenset({"image_embedder"}) if settings.text("vision_states") == "none" else frozenset()
