"""How small an error is always found: random weight errors at their use, against the local floors of their modules.

    python benchmarks/sensitivity.py

One weight of the candidate is moved by relative Gaussian noise after its checkpoint was compared, as a kernel or a
layout that handles it wrongly would: preflight sees nothing, the arithmetic of one module differs. Sizes are spaced
evenly on a logarithmic scale. The local error is that of the module that owns the weight, relative to its output and in
multiples of its local floor, measured on the reference's own path: what it gives with that weight, followed by itself
without. Whether the run finds it is `parity run`'s own verdict in float32. `port` is the reference's class as a port in
torch.

One line a fault; the page has, for each model and candidate, the largest local error that was missed (every larger one
was found) and the smallest that was found. In-process, the reference measured once, so that a fault costs seconds; rows
are kept in `.sensitivity.json` as they come, so that a stopped run goes on.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")

import numpy as np
import torch

from parity.paths.worker.extras import quieten, require_extras

quieten()
require_extras()

import stamp
from known_reference import Known
from tiny_families import CONFIGS, make

from parity.compare.followed import followed_errors
from parity.hooks.sites import OUTPUTS, SitePlan
from parity.paths.jax.candidate import to_jax
from parity.paths.live import LiveSide
from parity.paths.loaded import Loaded
from parity.paths.plan import Array, Plan, State, state_of
from parity.records import Key
from parity.runs.follow import without_held
from parity.runs.sides import spec_of

MODELS = ("tiny-flux2", "tiny-hunyuan-video-1.5", "tiny-wan")
"""Built-in ones, and such as `tiny_families` has a config of."""
CANDIDATES = ("jit", "port")
FAULTS = 18
"""Of each model and candidate."""
SIZES = [1e-7 * 1e5 ** (i / (FAULTS - 1)) for i in range(FAULTS)]
"""Of the noise, relative to the weight."""

HEAD = """# The smallest error that is found

`make sensitivity` moves one weight of the candidate by random noise after its checkpoint was compared, so that the
arithmetic of one module is wrong at its use and nothing before a forward shows it, runs `parity run`'s own comparison
in float32 with default options, and lists whether it failed. An error's size is that of the module that owns the
weight, on the values that it is given, in multiples of its local floor (2e-7 to 5e-7 of its output). Sizes are
spaced evenly on a logarithmic scale from 1e-7 to 1e-2 of the weight, one weight drawn for each. Limits are 3 floors:
errors below that are rounding by definition, and those just above it are found or not as the draw has it.
"""

PORT = """
from parity.models.folder import load_part
from parity.port import Port


def build(case):
    return Port(module=load_part(case.folder, "transformer").eval())
"""


class Bench:
    """One model and one kind of candidate, measured once and made wrong many times."""

    def __init__(self, model: str, candidate: str, folder: Path) -> None:
        self.model, self.kind = model, candidate
        family = model.removeprefix("tiny-")
        where = str(make(folder / model, family)) if family in CONFIGS else model
        (folder / "port.py").write_text(PORT)
        self.known = Known(
            "float32", 1, model=where, port=f"{folder / 'port.py'}:build" if candidate == "port" else None
        )
        self.side = self.known.candidate()
        self.reference = LiveSide(self.known.openers.inner.host, spec_of(self.known.request, "reference"))  # type: ignore[attr-defined]
        self.module = self.reference.loaded.backend.model
        self.state: State = state_of(next(self.reference.observe(Plan())), "before")

    def drawn(self) -> list[str]:
        """A weight for each size, of those whose owner is called."""
        called = {key.module for key in self.held()}
        names = [name for name, _ in self.module.named_parameters() if _owner(name) in called]
        draw = torch.Generator().manual_seed(0)
        return [names[int(torch.randint(len(names), (), generator=draw))] for _ in SIZES]

    def held(self) -> dict[Key, Array]:
        """What the reference's modules give, with its weights as they are now."""
        plan = Plan(sites=SitePlan("none", (), frozenset(), OUTPUTS))
        return without_held(next(self.reference.observe(plan, start=self.state, steps=(0, 1))))[1]

    def error(self, module: str, held: dict[Key, Array]) -> tuple[float, float]:
        """The largest of a module's outputs against what the reference makes of the values before it: relative L2, and
        in local floors."""
        plan = Plan(follow=held, far=True, floors=True)
        found = followed_errors(next(self.reference.observe(plan, start=self.state, steps=(0, 1))))
        own = (local.distance for key, local in found.items() if key.module == module)
        return max(((d.rel_l2, d.ratio) for d in own), key=lambda pair: pair[1], default=(0.0, 0.0))

    def row(self, weight: str, number: int) -> stamp.Row:
        """Make one weight wrong, run, and put it back.

        Returns:
            the weight; the noise's size relative to it; the largest error of its module's output (`error`); whether the
            run failed, and its origin.
        """
        parameter = self.module.get_parameter(weight)
        noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
        delta = SIZES[number] * noise * parameter.data.square().mean().sqrt()
        with moved(parameter, delta):
            held = self.held()
        error, floors = self.error(_owner(weight), held)
        with wrong(self.side, weight, delta):
            result = self.known.judge(self.side)
        row = {"model": self.model, "candidate": self.kind, "weight": weight, "size": SIZES[number], "error": error}
        at = result.origin.key.site if result.origin is not None else result.failed or ""
        return {**row, "floors": floors, "found": result.verdict == "fail", "at": at}


def _owner(weight: str) -> str:
    return weight.rpartition(".")[0]


@contextlib.contextmanager
def moved(parameter: torch.nn.Parameter, delta: torch.Tensor) -> Iterator[None]:
    """Within it a parameter is off by `delta`."""
    before = parameter.data.clone()
    parameter.data += delta
    try:
        yield
    finally:
        parameter.data.copy_(before)


@contextlib.contextmanager
def wrong(side: Loaded, weight: str, delta: torch.Tensor) -> Iterator[None]:
    """Within it a side computes with a wrong weight, and says that it has the right one."""
    backend: Any = side.backend
    told = [(name, dtype, functools.partial(np.asarray, values().copy())) for name, dtype, values in backend.weights()]
    if hasattr(backend, "params"):
        off: Any = mock.patch.dict(backend.params, {weight: backend.params[weight] + to_jax(delta)})
    else:
        off = moved(backend.model.get_parameter(weight), delta)
    with mock.patch.object(backend, "weights", return_value=told), off:
        yield


def markdown(kept: Mapping[str, Any]) -> str:
    """The page."""
    titles = ("model", "candidate", "faults", "always found above", "smallest found", "above 20 floors")
    out = [HEAD, stamp.line(kept), "", f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    rows = kept["rows"].values()
    for model, kind in product(MODELS, CANDIDATES):
        mine = [r for r in rows if (r["model"], r["candidate"]) == (model, kind)]
        missed = max((r["floors"] for r in mine if not r["found"]), default=0.0)
        smallest = min((r["floors"] for r in mine if r["found"]), default=math.inf)
        least = "none" if math.isinf(smallest) else f"{smallest:.1f}"
        large = [r["found"] for r in mine if r["floors"] > 20.0]
        out.append(f"| {model} | {kind} | {len(mine)} | {missed:.1f} | {least} | {sum(large)} of {len(large)} |")
    return "\n".join(out) + "\n"


def main() -> None:
    state = stamp.State(Path(".sensitivity.json"))
    with tempfile.TemporaryDirectory() as folder:
        for model, kind in product(MODELS, CANDIDATES):
            bench = Bench(model, kind, Path(folder))
            for number, weight in enumerate(bench.drawn()):
                row = state.row(f"{model} {kind} {number}", bench.row, weight, number)
                what = f"found at {row['at']}" if row["found"] else "not found"
                print(f"{row['floors']:11.1f} floors  {row['error']:.1e}  {model} {kind} {weight}: {what}", flush=True)
    stamp.publish("sensitivity", state.rows, markdown)


if __name__ == "__main__":
    main()
