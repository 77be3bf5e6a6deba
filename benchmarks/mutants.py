"""A mutation holdout: does the verdict find faults that nobody chose, and pass what computes the same?

    python benchmarks/mutants.py [--count N] [--seed N] [--model NAME]... [--state FILE]

Six tiny transformers of diffusers, two blocks each. Every one is compared with copies of its class in which one syntax
node of a `forward` is changed (`mutations.py`); a seed draws the changes, of lines that run. What a change does is
measured apart from parity, in float64 on the same inputs: `equivalent` below 1e-12 of the output, `below
rounding` up to twice what float32 loses, else `fault`. A change that does not run, or gives another shape or NaN, is
`broken` and not judged. Rows are kept in the state file as they come, so that a stopped run goes on; a whole run
in `benchmarks/results`. Half a second a row.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import inspect
import math
import os
import random
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

if __name__ == "__main__":  # before torch is imported
    os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")
sys.path.insert(0, str(Path(__file__).parent / "history"))

import diffusers

from parity.paths.worker.extras import quieten

quieten()
diffusers.utils.logging.set_verbosity_error()

import stamp
import tiny
import torch
from change import Made
from judge import quiet
from mutations import OPERATORS, ROUNDED, Site, mutated, sites
from torch.overrides import TorchFunctionMode

from parity.compare.result import Origin, Result
from parity.errors import ParityError
from parity.paths.live import Host
from parity.paths.port.load import Entry
from parity.port import Case, Port
from parity.runs import compare
from parity.runs.request import Request, load_ports

COUNT = 50
"""Mutants of a model."""

MODELS: Mapping[str, Callable[[], Made]] = {
    "flux": tiny.flux,
    "hunyuan": lambda: Made(module=tiny.hunyuan(), inputs=tiny.hunyuan_inputs()),
    "ltx": tiny.ltx,
    "mochi": tiny.mochi,
    "qwen": tiny.qwen,
    "wan": tiny.wan,
}
EQUIVALENT = 1e-12
STATUSES = ("broken", "fault", "below rounding", "equivalent")
FORWARD_SECONDS, JUDGE_SECONDS = 20.0, 120.0


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model and what is known of it.

    Attributes:
        made: the original. tree: source of its class's module. sites: all that run. truth: the output in float64.
        rounding: relative L2 of the output in float32 from it.
    """

    made: Made
    tree: ast.Module
    sites: list[Site]
    truth: torch.Tensor
    rounding: float


class Float64(TorchFunctionMode):
    """Within it, code that asks for float32 gets float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def wide(x: Any) -> Any:
            return torch.float64 if x is torch.float32 else x

        if func is torch.Tensor.float:
            func = torch.Tensor.double
        return func(*map(wide, args), **{name: wide(x) for name, x in (kwargs or {}).items()})


# --- models


def subject(model: str) -> Subject:
    """A model, measured in both dtypes. Compared with itself it has to pass."""
    made = MODELS[model]()
    result = compared(made, made)
    assert result.verdict == "pass", f"{model} differs from itself: {result.reason}"
    with traced(file_of(made)) as lines:
        small = output(made)
    tree, truth = ast.parse(Path(file_of(made)).read_text()), output_in_float64(made)
    found = sites(tree, lines)
    return Subject(made=made, tree=tree, sites=found, truth=truth, rounding=distance(small, truth))


def file_of(made: Made) -> str:
    return inspect.getfile(type(made.module))


@contextlib.contextmanager
def traced(file: str) -> Iterator[set[int]]:
    """Gives the lines of a file that run within it."""
    lines = set[int]()

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != file:
            return None
        if event == "line":
            lines.add(frame.f_lineno)
        return trace

    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(None)


def changed(made: Made, tree: ast.Module) -> Made:
    """The model with the classes of another tree, and with its weights."""
    original = sys.modules[type(made.module).__module__]
    module = ModuleType(original.__name__)
    vars(module).update(__package__=original.__package__, __file__=original.__file__)
    vars(module)[ROUNDED] = lambda x: x.to(torch.bfloat16).to(x.dtype)
    exec(compile(tree, file_of(made), "exec"), vars(module))
    candidate: Any = vars(module)[type(made.module).__name__].from_config(made.module.config)
    candidate.load_state_dict(made.module.state_dict())
    return Made(module=candidate.eval(), inputs=made.inputs, static=made.static)


def output(made: Made) -> torch.Tensor:
    torch.use_deterministic_algorithms(True, warn_only=True)  # what `torch.empty` leaves is NaN
    try:
        with torch.no_grad():
            found: Any = made.module(**made.inputs, **made.static)[0]
    finally:
        torch.use_deterministic_algorithms(False)
    assert isinstance(found, torch.Tensor), f"returned {type(found).__name__}"
    return found


def output_in_float64(made: Made) -> torch.Tensor:
    inputs = {name: x.double() if x.is_floating_point() else x for name, x in made.inputs.items()}
    with Float64():
        return output(Made(module=copy.deepcopy(made.module).double(), inputs=inputs, static=made.static))


def distance(found: torch.Tensor, truth: torch.Tensor) -> float:
    """Relative L2.

    Raises:
        AssertionError: of another shape, or not finite.
    """
    assert found.shape == truth.shape, f"shape {tuple(found.shape)}"
    far = float((found.double() - truth).norm() / truth.norm())
    assert math.isfinite(far), "not finite"
    return far


# --- mutants


def row(model: str, of: Subject, site: Site) -> dict[str, Any]:
    """Everything that is reported of one mutant."""
    tree, change = mutated(of.tree, site)
    return {"model": model, **asdict(site), "change": change, **effect_and_verdict(of, site, tree)}


def effect_and_verdict(of: Subject, site: Site, tree: ast.Module) -> dict[str, Any]:
    try:
        with limited(FORWARD_SECONDS):
            candidate = changed(of.made, tree)
            effect = distance(output_in_float64(candidate), of.truth)
            distance(output(candidate), of.truth)  # raises if broken in float32
    except Exception as error:  # of the mutant's
        return {"status": "broken", "reason": f"{type(error).__name__}: {error}"[:200]}
    status = "equivalent" if effect < EQUIVALENT else "below rounding" if effect <= 2 * of.rounding else "fault"
    measured = {"status": status, "effect": effect, "rounding": of.rounding}
    return {**measured, **judged(of, site, candidate)}


def judged(of: Subject, site: Site, candidate: Made) -> dict[str, Any]:
    """What parity says of a mutant."""
    try:
        with limited(JUDGE_SECONDS):
            result = compared(of.made, candidate)
    except Exception as error:
        verdict = "refused" if isinstance(error, ParityError) else "crashed"
        return {"verdict": verdict, "reason": f"{type(error).__name__}: {error}"}
    origin = result.origin
    return {
        "verdict": result.verdict,
        "failed": result.failed,
        "reason": result.reason,
        "origin": "" if origin is None else origin.key.site,
        "birth": "" if origin is None else origin.birth,
        "placed": origin is not None and placed(of.made.module, site.kind, origin),
    }


def compared(reference: Made, candidate: Made) -> Result:
    """Two models as `parity run` compares ports, in this process."""
    first, second = entry("--reference-port", reference), entry("--port", candidate)
    openers = Host(first, second)
    ports = load_ports(first.text, second.text, None, openers)
    request = Request(first.text, *ports.settings([], []), ports=ports)
    return compare.run(request, quiet, openers=openers)


def entry(option: str, made: Made) -> Entry:
    def build(case: Case) -> Port:
        module = copy.deepcopy(made.module)  # parity builds the reference again, in float64, for its floors
        return Port(
            module=module, call=lambda inputs: module(**inputs, **made.static), inputs=made.inputs, runs="torch"
        )

    text = f"{__file__}:{option.strip('-')}"
    return Entry(option=option, text=text, file=__file__, settings={}, digest="", said=(), function=build)


def placed(model: torch.nn.Module, kind: str, origin: Origin) -> bool:
    """Whether the first divergence is at the class that was changed.

    Right are its instances, or the attentions of such a processor, with their attention call; the module that calls
    them; and an input of what they call.
    """
    modules = dict(model.named_modules())
    right = {p for p, m in modules.items() if kind in (type(m).__name__, type(getattr(m, "processor", None)).__name__)}
    module = origin.key.site.partition(":")[0]
    if origin.birth == "input" and caller(modules, module) in right:
        return True
    return module.removesuffix(".attention") in right | {caller(modules, path) for path in right}


def caller(modules: Mapping[str, torch.nn.Module], path: str) -> str:
    """The nearest module above that is no list of modules."""
    above = path.rpartition(".")[0]
    while isinstance(modules.get(above), torch.nn.ModuleList):
        above = above.rpartition(".")[0]
    return above


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Within it, code that takes longer raises a TimeoutError."""

    def late(number: int, frame: Any) -> None:
        raise TimeoutError(f"took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)  # again: the code may catch the first
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# --- report


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """What was detected of faults, how often at the right place, and what alarmed of the rest, by operator."""
    heads = ("broken", "faults", "detected", "placed", "below rounding", "alarms", "equivalents", "alarms")
    lines = [f"{'operator':18}" + "".join(f"{head:>{len(head) + 2}}" for head in heads)]
    for name in (*OPERATORS, "all"):
        some = [r for r in rows if name in (r["operator"], "all")]
        broken, faults, below, same = ([r for r in some if r["status"] == status] for status in STATUSES)
        detected = [r for r in faults if r["verdict"] == "fail"]
        right = [r for r in detected if r["placed"]]
        alarms = [[r for r in rest if r["verdict"] != "pass"] for rest in (below, same)]
        groups = (broken, faults, detected, right, below, alarms[0], same, alarms[1])
        lines.append(f"{name:18}" + "".join(f"{len(g):{len(h) + 2}}" for g, h in zip(groups, heads, strict=True)))
    return "\n".join(lines)


def line(found: Mapping[str, Any]) -> str:
    """One mutant, for people."""
    where = f"{found['model']:8} {found['kind']}:{found['line']} {found['operator']}: {found['change'][:90]}"
    if found["status"] == "broken":
        return f"{where} | broken: {found['reason'][:60]}"
    place = f" at {found['origin']}" + ("" if found["placed"] else " (WRONG)") if found.get("origin") else ""
    return f"{where} | {found['status']} {found['effect']:.1e} | {found['verdict']}{place}"


def drawn(of: Subject, model: str, count: int, seed: int) -> list[Site]:
    """The changes of a model that a seed draws."""
    return random.Random(f"{seed} {model}").sample(of.sites, min(count, len(of.sites)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=COUNT, help="mutants of each model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", action="append", choices=tuple(MODELS))
    parser.add_argument("--state", type=Path, default=Path(".mutants.json"))
    options = parser.parse_args()
    state, rows = stamp.State(options.state), dict[str, stamp.Row]()
    for model in options.model or MODELS:
        of = subject(model)
        for site in drawn(of, model, options.count, options.seed):
            name = f"{model} {site.name}"
            rows[name] = state.row(name, row, model, of, site)
            print(line(rows[name]), flush=True)
    print("\n" + table(list(rows.values())))
    if options.count == COUNT and not options.model:
        stamp.save("mutants", stamp.stamped(rows, stamp.spent(rows), seed=options.seed))


if __name__ == "__main__":
    main()
