"""One change from the history of a public repository, as a pair of versions on tiny weights.

A change is told twice, as it was before (the candidate) and as it is since (the reference). Where the faulty line
stands in a model, both versions are torch modules, run as ports; where it stands in the loop around one, both are
scripts, recorded where they run. What parity has to say of it, `at` and `cause`, is written down with the change.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

Kind = Literal["transformer", "glue", "VAE", "text"]


@dataclass(frozen=True, kw_only=True)
class Made:
    """One version of a model.

    Attributes:
        module: with its weights. inputs: tensors by argument name, `hidden_states` among them. static: its other
            arguments.
    """

    module: torch.nn.Module
    inputs: Mapping[str, torch.Tensor]
    static: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One version of a script.

    Attributes:
        parts: what `parity.record` is given. go: runs it and returns values by name, in the order they are made; the
            last one is the result.
    """

    parts: Mapping[str, Any]
    go: Callable[[], Mapping[str, torch.Tensor]]


@dataclass(frozen=True, kw_only=True)
class Change:
    """See the module's docstring.

    Attributes:
        name: of the row. source: `repository#number`, or a commit. commit: what was read of it, empty where only the
            pull request was. what: what changed, in two lines at most.
        at: modules, or values of the loop, of which the verdict has to name one (a glob each); empty for innocents.
        cause: a setting or a word of the gauge that has to be named; `unknown` where no known fault is meant.
        innocent: whether it only rounds, or changes nothing that counts.
        model, script: one of them; each takes whether the fixed version is wanted (and the script a dtype).
    """

    name: str
    source: str
    what: str
    kind: Kind
    commit: str = ""
    at: tuple[str, ...] = ()
    cause: str = "unknown"
    innocent: bool = False
    model: Callable[[bool], Made] | None = None
    script: Callable[[bool, torch.dtype], Scene] | None = None


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal values."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def tame(model: Any, seed: int = 1) -> Any:
    """Weights that keep the size of what they multiply, whatever the class initialises to zero; norms near one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, x in model.named_parameters():
            values = torch.randn(x.shape, generator=generator)
            if max(x.shape, default=1) == x.numel():  # of norms, gammas among them, and biases
                x.copy_(0.1 * values if name.endswith("bias") else 1 + 0.1 * values)
            else:
                x.copy_(values * x[0].numel() ** -0.5)
    return model.eval()


def wrapped(module: torch.nn.Module, change: Callable[..., Any]) -> None:
    """Have a module compute `change(its own forward, *arguments)`; its class and its weights stay."""
    own = module.forward

    @functools.wraps(own)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return change(own, *args, **kwargs)

    module.forward = forward


def processed(attention: Any, change: Callable[[dict[str, Any]], None]) -> None:
    """Have an attention's processor take arguments as `change` leaves them."""
    own = type(attention.processor)

    class Changed(own):  # type: ignore[misc, valid-type]
        @functools.wraps(own.__call__)
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            bound = inspect.signature(own.__call__).bind(self, *args, **kwargs)
            change(bound.arguments)
            return own.__call__(*bound.args, **bound.kwargs)

    attention.processor.__class__ = Changed
