"""The commands as functions: what `parity run`, `diff` and `explain` do, their answer as a value that prints itself.

Each side runs in a process of its own, as on the command line. Progress is not shown.
"""

from __future__ import annotations

import functools
import html
import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from itertools import chain
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from parity.compare import result as compared
from parity.compare.diff import Auto, diff as diff_goldens
from parity.compare.sites import how_many
from parity.errors import UsageError, shown
from parity.golden.rename import NONE, load_rename
from parity.paths.plan import Role
from parity.paths.worker.extras import check_extras
from parity.paths.worker.process import Workers
from parity.report.comparison import Comparison, card, context
from parity.report.document import Facts, finite, lines
from parity.report.formats import render as rendered
from parity.report.output import silent
from parity.runs.request import Checks, Isolation
from parity.settings import Value, render

if TYPE_CHECKING:
    Where = str | os.PathLike[str]
else:
    Where = str  # what a path comes to
Settings = Mapping[str, Value]
"""Values by name: `{"attention.mask": "none", "jit": False}`."""

P = ParamSpec("P")
T = TypeVar("T")


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """A function whose arguments are what its annotations say, paths and numpy's numbers as Python's.

    Raises:
        UsageError: one is not.
    """

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True
        given, kinds = inspect.signature(function).bind(*args, **kwargs), get_type_hints(function)
        for name, value in given.arguments.items():
            given.arguments[name] = _taken(f"parity.{function.__name__}: {name}", value, kinds[name])
        return function(*given.args, **given.kwargs)

    return called


def _taken(named: str, value: Any, kind: Any) -> Any:
    if kind is object:
        return value
    plain = os.fspath(value) if isinstance(value, os.PathLike) else value
    try:
        return msgspec.convert(plain.item() if isinstance(plain, np.generic) else plain, kind)
    except msgspec.ValidationError:
        kinds = [x for x in get_args(kind) if x is not NoneType] if NoneType in get_args(kind) else [kind]
        words = [get_args(x) if get_origin(x) is Literal else [inspect.formatannotation(x)] for x in kinds]
        takes = ", ".join(chain(*words)).replace("collections.abc.", "")
        raise UsageError(f"{named} takes {takes}, found {shown(value)}") from None


class Result(compared.Result):
    """`parity.compare.result.Result`, which prints as its card and shows itself in a notebook."""

    __slots__ = ()

    @classmethod
    def of(cls, found: compared.Result) -> Self:
        """A result, shown."""
        return cls(**{f.name: getattr(found, f.name) for f in fields(found)})

    @property
    def passed(self) -> bool:
        """Whether the verdict is `pass`: what cannot be judged has not passed."""
        return self.verdict == "pass"

    @property
    def card(self) -> str:
        """The verdict, the first divergence, the causes and what they rest on, one fact a line."""
        told = context(self)
        labels = {label for label, _ in told.rows}  # of a cause it says all that the card says
        first = Facts(tuple(row for row in card(self).rows if row[0] not in labels))
        return "\n".join(line for section in (first, told) for line in lines(section))

    def metrics(self) -> dict[str, float]:
        """Numbers for an experiment tracker, `wandb.log(result.metrics())`; what was not measured is left out,
        and an infinity, which JSON has no number for, is the largest double.

        Returns:
            `passed`: 1 or 0. `failed_tensors`: how many are beyond their floors. `worst_ratio`: the largest difference,
            in floors. Of `noise_pred` and `latents` at each step, `step_0/noise_pred/rel_l2`, `.../floor` and
            `.../ratio`; and `step_0/bits`, the leading bits in which noise_pred agrees.
        """
        ratios = [site.distance.ratio for site in self.sites if not math.isnan(site.distance.ratio)]
        found = {
            "passed": float(self.passed),
            "failed_tensors": float(how_many(self.sites, "fail")),
            "worst_ratio": max(ratios, default=math.nan),
        }
        for step in self.steps:
            at = f"step_{step.step}"
            found[f"{at}/bits"] = step.bits
            for name, distance in (("noise_pred", step.noise_pred), ("latents", step.latents)):
                found |= {f"{at}/{name}/{measure}": x for measure, x in asdict(distance).items()}
        return {name: number for name, value in found.items() if (number := finite(value)) is not None}

    def __str__(self) -> str:
        return self.card

    def _repr_html_(self) -> str:
        """The page of `parity report` in a frame of its own: its own script runs there alone, by the page's policy, and
        reaches nothing of the notebook."""
        page = rendered(Comparison(self, explained=bool(self.causes)), "html")
        style = "width: 100%; height: 32em; border: 0"
        return f'<iframe sandbox="allow-scripts" srcdoc="{html.escape(page)}" style="{style}"></iframe>'


def texts(settings: Settings | None) -> list[str]:
    """`NAME=VALUE` of each, as the command line takes it."""
    return [f"{name}={render(value)}" for name, value in (settings or {}).items()]


@checked
def run(
    model: str | None = None,
    *,
    reference: Settings | None = None,
    candidate: Settings | None = None,
    port: str | None = None,
    reference_port: str | None = None,
    steps: int | None = None,
    seed: int | None = None,
    prompt: str | None = None,
    inputs: Where | None = None,
    sites: str = "blocks",
    values: Sequence[str] = (),
    checks: Checks = "both",
    isolate: Isolation = "none",
    stages: Sequence[str] | None = None,
    out: Where | None = None,
) -> Result:
    """Run the reference and the candidate side by side: `parity run`.

    Args:
        model: built-in model, folder in diffusers layout or hub name; None for the default, or for a reference port
            with inputs of its own. reference, candidate: settings by name, `{"attention.mask": "none"}`.
        port, reference_port: `FILE.py:FUNCTION`. steps, seed: None for one step from seed 0, or the golden's. inputs:
            what both sides start from: a golden, a port's embeddings or latents, or tensors by argument name. The
            others: as the options of `parity run`.

    Raises:
        UsageError: bad input. InconclusiveError: a chosen site never fired, or a setting was ignored.
    """
    from parity.commands.keep import KeepRun
    from parity.commands.options import Generation, Sides
    from parity.runs.compare import run as run_both

    generation = Generation(
        model=model, steps=steps, seed=seed, prompt=prompt, inputs=None if inputs is None else os.fspath(inputs)
    )
    sides = Sides(reference=texts(reference), candidate=texts(candidate), port=port, reference_port=reference_port)
    check_extras(torchax=sides.torchax)
    with Workers() as openers:
        named = None if stages is None else ",".join(stages)
        request = generation.request(
            sides, named, sites=sites, values=values, isolate=isolate, checks=checks, openers=openers
        )
        kept = None if out is None else KeepRun(Path(out), request)
        result = run_both(request, silent, kept)
        if kept is not None:
            kept.result(result)
            result = result.noted(*kept.problems)
        return Result.of(result)


@checked
def diff(
    reference: Where, candidate: Where, *, rename: Where | Literal["auto"] | None = None, steps: int | None = None
) -> Result:
    """Compare two goldens: `parity diff`.

    Args:
        reference, candidate: folders or URLs. rename: file of rename rules, or `auto` to propose them. steps: how many
            are compared; None for all, which an unfinished golden has not.

    Raises:
        UsageError: a golden is missing or damaged.
    """
    rules = NONE if rename is None else Auto() if rename == "auto" else load_rename(str(rename))
    return Result.of(diff_goldens(reference, candidate, rename=rules, steps=steps))


@checked
def explain(
    run_or_reference: Where,
    candidate: Where | None = None,
    *,
    model: str | None = None,
    prompt: str | None = None,
    port: str | None = None,
    reference_port: str | None = None,
) -> Result:
    """The causes of a difference, as `result.causes`: `parity explain`.

    Args:
        run_or_reference: a run that was kept (`run(..., out=DIR)`), or the reference golden with `candidate` beside it.
        model: of two goldens, None for theirs. prompt: of goldens that carry no embeddings, where it was not the
            model's own. port, reference_port: of a kept run, named again.

    Raises:
        UsageError: no such run or golden.
    """
    from parity.commands.explain import explained

    where, beside = str(run_or_reference), None if candidate is None else str(candidate)
    ports: dict[Role, str | None] = {"reference": reference_port, "candidate": port}
    return Result.of(explained(where, beside, model, prompt, ports, silent))
