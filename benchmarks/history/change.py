"""One change from the history of a public repository, as a pair of versions on tiny weights.

A change is written twice, as it was before (the candidate) and as it is since (the reference). Where the faulty line
stands in a model, both versions are torch modules, run as ports; where it stands in the loop around one, both are
scripts, recorded where they run. A change is a function: its name is the row's, its docstring says what changed, and
what parity has to say of it, `at` and `cause`, is written down above it.
"""

from __future__ import annotations

import fnmatch
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch


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
        model, script: one of them; each takes whether the fixed version is wanted (and the script a dtype,
            which is float32 if left out).
    """

    name: str
    source: str
    what: str
    commit: str = ""
    at: tuple[str, ...] = ()
    cause: str = "unknown"
    innocent: bool = False
    model: Callable[[bool], Made] | None = None
    script: Callable[..., Scene] | None = None


def change(
    source: str, commit: str = "", of: Callable[[], Made] | None = None, **expected: Any
) -> Callable[[Callable[..., Any]], Change]:
    """Make a function a change in a model.

    Args:
        of: makes the fixed version, whose module the function turns into what it was before. Without it the function
            makes both: it takes whether the fixed one is wanted.
        expected: `at`, `cause`, `innocent`.
    """

    def row(function: Callable[..., Any]) -> Change:
        def model(fixed: bool) -> Made:
            if of is None:
                return function(fixed)
            made = of()
            if not fixed:
                function(made.module)
            return made

        name, what = function.__name__, said(function)
        return Change(name=name, source=source, commit=commit, what=what, model=model, **expected)

    return row


def scripted(source: str, commit: str = "", **expected: Any) -> Callable[[Callable[[bool], Any]], Change]:
    """Make a function a change in a loop: it takes whether the fixed version is wanted and returns a `Script`."""

    def row(function: Callable[[bool], Any]) -> Change:
        written = change(source, commit, **expected)(function)
        return replace(written, model=None, script=lambda fixed, *dtype: function(fixed).scene(*dtype))

    return row


def said(function: Callable[..., Any]) -> str:
    """Its docstring in one line."""
    return " ".join(str(function.__doc__).split())


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


class Around(torch.nn.Module):
    """The lines of a pipeline around a model, as a model: `lines(*parts, **inputs)`."""

    def __init__(self, lines: Callable[..., Any], **parts: torch.nn.Module) -> None:
        super().__init__()
        self.lines = lines
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, **inputs: Any) -> Any:
        return self.lines(*self.children(), **inputs)


def modules(model: torch.nn.Module, names: str) -> list[Any]:
    """Those of a name, a glob."""
    return [part for name, part in model.named_modules() if fnmatch.fnmatchcase(name, names)]


def wrapped(model: torch.nn.Module, names: str, change: Callable[..., Any]) -> None:
    """Have modules compute `change(their own forward, *arguments)`; class and weights stay."""
    for module in modules(model, names):
        own = module.forward
        module.forward = functools.wraps(own)(lambda *args, own=own, **kwargs: change(own, *args, **kwargs))


def masked(model: torch.nn.Module, names: str, change: Callable[..., Any], mask: str = "attention_mask") -> None:
    """Have the processors of attentions take `change(their mask, hidden states)` for their mask."""
    for attention in modules(model, names):
        attention.processor.__class__ = _changed(type(attention.processor), change, mask)


def _changed(own: Any, change: Callable[..., Any], mask: str) -> Any:
    class Changed(own):
        @functools.wraps(own.__call__)
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            bound = inspect.signature(own.__call__).bind(self, *args, **kwargs)
            bound.arguments[mask] = change(bound.arguments[mask], bound.arguments["hidden_states"])
            return own.__call__(*bound.args, **bound.kwargs)

    return Changed
