"""How small an error is always found: random weight errors at their use, against the local floors of their modules.

    python benchmarks/sensitivity.py [--model NAME]... [--candidate jit|eager|port]...
                                     [--faults N] [--seed N] [--state FILE]

One weight of the candidate is moved by relative Gaussian noise after its checkpoint was compared, as a kernel or a
layout that handles it wrongly would: preflight sees nothing, the arithmetic of one module differs. Sizes are spaced
evenly on a logarithmic scale. The local error is that of the module that owns the weight, run alone on the reference's
own inputs, relative to its output and in multiples of its local floor; whether the run finds it is `parity run`'s own
verdict in float32. `port` is the reference's class as a port in torch.

One line a fault; at the end, for each model and candidate, the largest local error that was missed (every larger one
was found) and the smallest that was found. In-process, the reference measured once, so that a fault costs seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")

import torch

from parity.paths.worker.extras import quieten, require_extras

quieten()
require_extras()

import stamp
from known_reference import Known
from tiny_families import CONFIGS, make

from parity.compare.local import local_errors
from parity.golden.records import StepRecords
from parity.paths.jax.candidate import to_jax
from parity.paths.live import LiveSide
from parity.paths.loaded import Loaded
from parity.paths.plan import CallRecords, Plan, State
from parity.runs.sides import reference_spec
from parity.runs.stream import state_of

MODELS = ("tiny-flux2", "tiny-hunyuan-video-1.5", "tiny-wan")
"""Built-in ones, and such as `tiny_families` has a config of."""
CANDIDATES = ("jit", "port")
SMALLEST, LARGEST = 1e-7, 1e-2
"""Sizes of the noise, relative to the weight."""

FAULTS = 18
PAGE = Path(__file__).parents[1] / "docs" / "sensitivity.md"
HEAD = """# The smallest error that is found

`make sensitivity` moves one weight of the candidate by random noise after its checkpoint was compared, so that the
arithmetic of one module is wrong at its use and nothing before a forward shows it, runs `parity run`'s own comparison
in float32 with default options, and lists whether it failed. An error's size is that of the module that owns the
weight, run alone on the reference's inputs, in multiples of its local floor (2e-7 to 5e-7 of its output). Sizes are
spaced evenly on a logarithmic scale from 1e-7 to 1e-2 of the weight, one weight drawn for each. Limits are 3 floors:
errors below that are rounding by definition, and those just above it are found or not as the draw has it.
"""

PORT = """
from parity.models.folder import load_part
from parity.port import Port


def build(case):
    return Port(module=load_part(case.folder, "transformer").eval())
"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What came of one fault.

    Attributes:
        weight: its name. size: of the noise, relative to it. error: relative L2 of its module's output, run alone.
        floors: that error in multiples of the module's local floor. found: whether the run failed. at: its origin.
    """

    model: str
    candidate: str
    weight: str
    size: float
    error: float
    floors: float
    found: bool
    at: str
    seconds: float

    def line(self) -> str:
        """One line of the table."""
        what = f"found at {self.at}" if self.found else "not found"
        where = f"{self.model} {self.candidate} {self.weight}"
        return f"{self.floors:11.1f} floors  {self.error:.1e}  {where}: {what} ({self.seconds:.0f} s)"


class Bench:
    """One model and one kind of candidate, measured once and made wrong many times."""

    def __init__(self, model: str, candidate: str, folder: Path) -> None:
        self.model, self.kind = model, candidate
        where = _checkpoint(model, folder)
        port = None
        if candidate == "port":
            (folder / "port.py").write_text(PORT)
            port = f"{folder / 'port.py'}:build"
        self.known = Known("float32", 1, model=where, port=port)
        self.side = self.known.candidate(*(["jit=false"] if candidate == "eager" else []))
        self.reference = LiveSide(self.known.openers.inner.host, reference_spec(self.known.request))  # type: ignore[attr-defined]
        first = next(self.reference.observe(Plan()))
        self.state: State = state_of(first, "before")
        self._calls: dict[str, list[CallRecords]] = {}

    def weights(self) -> list[str]:
        """The weights whose owner is called."""
        return [n for n, _ in self.reference.loaded.backend.module().named_parameters() if self.calls(_owner(n))]

    def calls(self, module: str) -> list[CallRecords]:
        """The reference's calls of a module, with what they give and their local floors."""
        if module not in self._calls:
            plan = Plan(calls=(module,))
            found = self.reference.observe(plan, start=self.state, steps=(0, 1)) if module else ()
            self._calls[module] = [c for c in found if isinstance(c, CallRecords)]
        return self._calls[module]

    def local(self, weight: str, delta: torch.Tensor) -> tuple[float, float]:
        """The largest local error that a change of a weight makes: relative, and in local floors."""
        parameter = self.reference.loaded.backend.module().get_parameter(weight)
        before = parameter.data.clone()
        parameter.data += delta
        try:
            found = [self._error(c, self.reference.call(c.call, Plan())) for c in self.calls(_owner(weight))]
        finally:
            parameter.data.copy_(before)
        return max((f for f in found), key=lambda pair: pair[1], default=(0.0, 0.0))

    def _error(self, truth: CallRecords, given: StepRecords) -> tuple[float, float]:
        local = local_errors(truth, given.records).values()
        worst = max(local, key=lambda x: x.distance.ratio, default=None)
        return (0.0, 0.0) if worst is None else (worst.distance.rel_l2, worst.distance.ratio)

    def row(self, weight: str, size: float, seed: int) -> Row:
        """Make one weight wrong, run, and put it back."""
        began = time.perf_counter()
        x = self.reference.loaded.backend.module().get_parameter(weight).data
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
        delta = size * noise * x.square().mean().sqrt()
        error, floors = self.local(weight, delta)
        with wrong(self.side, weight, delta):
            result = self.known.judge(self.side)
        at = result.origin.key.site if result.origin is not None else result.failed or ""
        return Row(
            model=self.model,
            candidate=self.kind,
            weight=weight,
            size=size,
            error=error,
            floors=floors,
            found=result.verdict == "fail",
            at=at,
            seconds=time.perf_counter() - began,
        )


def _owner(weight: str) -> str:
    return weight.rpartition(".")[0]


def _checkpoint(model: str, folder: Path) -> str:
    """A folder with the model's config, where it is none of the built-in ones; parity draws its weights."""
    family = model.removeprefix("tiny-")
    return str(make(folder / model, family)) if family in CONFIGS else model


@contextlib.contextmanager
def wrong(side: Loaded, weight: str, delta: torch.Tensor) -> Iterator[None]:
    """Within it a side computes with a wrong weight, and says that it has the right one."""
    backend: Any = side.backend
    told = [(name, dtype, values.copy()) for name, dtype, values in backend.weights()]
    with mock.patch.object(backend, "weights", return_value=told):
        if hasattr(backend, "params"):
            before = backend.params[weight]
            backend.params[weight] = before + to_jax(delta)
            try:
                yield
            finally:
                backend.params[weight] = before
        else:
            parameter = backend.module().get_parameter(weight)
            kept = parameter.data.clone()
            parameter.data += delta
            try:
                yield
            finally:
                parameter.data.copy_(kept)


def sizes(count: int) -> list[float]:
    """Evenly spaced on a logarithmic scale."""
    step = math.log(LARGEST / SMALLEST) / max(count - 1, 1)
    return [SMALLEST * math.exp(step * i) for i in range(count)]


def faults(bench: Bench, count: int, seed: int, known: Sequence[Row] = ()) -> Iterator[Row]:
    """One row for each size, a weight drawn for it; those already known are handed out again."""
    names = bench.weights()
    draw = torch.Generator().manual_seed(seed)
    for i, size in enumerate(sizes(count)):
        weight = names[int(torch.randint(len(names), (), generator=draw))]
        same = (r for r in known if (r.weight, round(r.size, 12)) == (weight, round(size, 12)))
        yield next(same, None) or bench.row(weight, size, seed + i)


@dataclass(frozen=True)
class Summary:
    """What a set of rows comes to, in local floors: the largest error missed (every larger one was found), the smallest
    found, and how many of those above 20 were found."""

    missed: float
    found: float
    above: tuple[int, int]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Summary:
        """Of rows of one model and candidate."""
        missed = max((r.floors for r in rows if not r.found), default=0.0)
        found = min((r.floors for r in rows if r.found), default=math.inf)
        large = [r.found for r in rows if r.floors > 20.0]
        return cls(missed, found, (sum(large), len(large)))

    def line(self) -> str:
        """For people."""
        least = "none was found" if math.isinf(self.found) else f"smallest found {self.found:.1f}"
        of = f"{self.above[0]} of {self.above[1]} above 20 floors found"
        return f"every error above {self.missed:.1f} local floors was found; {least}; {of}"


def markdown(kept: Mapping[str, Any]) -> str:
    """The page."""
    rows = [Row(**row) for row in kept["rows"].values()]
    out = [HEAD, stamp.line(kept), ""]
    out += [
        "| model | candidate | faults | always found above | smallest found | above 20 floors |",
        "|---|---|---|---|---|---|",
    ]
    for model, kind in dict.fromkeys((r.model, r.candidate) for r in rows):
        mine = [r for r in rows if (r.model, r.candidate) == (model, kind)]
        s = Summary.of(mine)
        least, found = "none" if math.isinf(s.found) else f"{s.found:.1f}", f"{s.above[0]} of {s.above[1]}"
        out.append(f"| {model} | {kind} | {len(mine)} | {s.missed:.1f} | {least} | {found} |")
    return "\n".join(out) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--candidate", action="append", choices=("jit", "eager", "port"))
    parser.add_argument("--faults", type=int, default=FAULTS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--state", type=Path, default=Path(".sensitivity.json"))
    given = parser.parse_args()
    known: dict[str, dict[str, Any]] = json.loads(given.state.read_text()) if given.state.exists() else {}
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for model in given.model or MODELS:
            for kind in given.candidate or CANDIDATES:
                bench = Bench(model, kind, Path(folder))
                mine = [Row(**row) for name, row in known.items() if name.startswith(f"{model} {kind} ")]
                found = []
                for number, row in enumerate(faults(bench, given.faults, given.seed, mine)):
                    print(row.line(), flush=True)
                    found.append(row)
                    rows[f"{model} {kind} {number}"] = asdict(row)
                    given.state.write_text(json.dumps({**known, **rows}))
                print(f"{model} {kind}: {Summary.of(found).line()}", flush=True)
    if not (given.model or given.candidate) and given.faults == FAULTS:
        stamp.save("sensitivity", stamp.stamped(rows, sum(row["seconds"] for row in rows.values()), seed=given.seed))
        PAGE.write_text(markdown(stamp.load("sensitivity")))


if __name__ == "__main__":
    main()
