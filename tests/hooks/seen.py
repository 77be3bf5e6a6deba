"""Small modules observed by a tap, for the tests of tap and attach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from parity.hooks.attach import attached
from parity.hooks.reduce import on_torch as reduce_torch
from parity.hooks.reduce.on_torch import torch_records
from parity.hooks.rows import NoRows, RowRule
from parity.hooks.sites import plan_sites
from parity.hooks.tap import Item, Tap
from parity.hooks.torchtools import callable_modules
from parity.records import Record


@dataclass
class CountingReducer:
    """Torch's reductions, counted."""

    reduced: int = 0

    def reduce(self, x: torch.Tensor, item: Item | None = None) -> Any:
        self.reduced += 1
        return reduce_torch.reduce(x)

    def value(self, x: torch.Tensor) -> torch.Tensor:
        return x.detach().clone()


@dataclass
class Seen:
    """What one or more calls of a model left behind.

    Attributes:
        records: by (branch, site, call). order: their keys as they came. reductions: how many were made.
    """

    records: dict[tuple[str, str, int], Record] = field(default_factory=dict)
    order: list[tuple[str, str, int]] = field(default_factory=list)
    reductions: int = 0

    def sites(self) -> list[str]:
        """Site names in order, each once."""
        return list(dict.fromkeys(site for _, site, _ in self.order))

    def at(self, site: str, branch: str = "cond", call: int = 0) -> Record:
        return self.records[branch, site, call]


def make_tap(
    model: torch.nn.Module,
    sites: str = "all",
    *,
    values: Sequence[str] = (),
    branches: Sequence[str] = ("cond",),
    rule: RowRule | None = None,
    frames: Mapping[str, Mapping[str, tuple[torch.Tensor, torch.Tensor]]] | None = None,
) -> Tap:
    plan = plan_sites(callable_modules(model), sites, tuple(values))
    return Tap(plan, CountingReducer(), rule or NoRows(), tuple(branches), frames or {b: {} for b in branches})


def gathered(tap: Tap) -> Seen:
    """The tap's records; a key that comes twice is an error."""
    records = torch_records(tap.settled(), "transformer", 0)
    order = [(r.key.branch, r.key.site, r.key.call) for r in records]
    assert len(set(order)) == len(order)
    assert isinstance(tap.reducer, CountingReducer)
    return Seen(dict(zip(order, records, strict=True)), order, tap.reducer.reduced)


def observe(model: torch.nn.Module, *args: Any, tap_options: Mapping[str, Any] | None = None, **kwargs: Any) -> Seen:
    """Call the model once under a tap."""
    tap = make_tap(model, **(tap_options or {}))
    with attached(model, tap):
        model(*args, **kwargs)
    return gathered(tap)
