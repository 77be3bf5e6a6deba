"""The fault bench: does the verdict find what is wrong, where it is, and nothing where nothing is?

    python benchmarks/fault_bench.py [--only NAME]... [--innocents] [--state FILE] [--markdown FILE]

Every fault of `fault_catalogue` is run on tiny-hunyuan-video-1.5 through the tool's own rounds, in float32 (the
structure round, as `parity run` does it) and in bfloat16 (the precision round alone, as `--rounds precision --forcing
module` does it, so that what the structure round would find anyway does not count, with every module run alone, not
the blocks only), and every innocent variant with five seeds in both. Beside it the same outputs are judged by the
rules that others use. The reference and its floors are measured once for each dtype, number of steps and seed. Rows
are kept in the state file as they come, so that a stopped run goes on. Half a minute a row.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import gc
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

if __name__ == "__main__":  # before jax is imported
    os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")

import jax  # noqa: E402
import numpy as np  # noqa: E402

from parity.commands.run import quieten, require_extras  # noqa: E402

quieten()
require_extras()

from every_module import EveryModule, KnownPrograms, Program  # noqa: E402
from fault_catalogue import FAULTS, Fault  # noqa: E402
from innocents import INNOCENTS, Innocent  # noqa: E402

import parity.diagnose.run as runner  # noqa: E402
from parity.compare.result import Result  # noqa: E402
from parity.diagnose import local  # noqa: E402
from parity.diagnose import precision as rounds  # noqa: E402
from parity.diagnose.pairing import Pairing, Request  # noqa: E402
from parity.diagnose.precision import Truth, precision, truth_alone  # noqa: E402
from parity.diagnose.preflight import failed, preflight  # noqa: E402
from parity.diagnose.sink import NoSink  # noqa: E402
from parity.errors import ParityError  # noqa: E402
from parity.golden.records import Record, StepRecords  # noqa: E402
from parity.hooks.calls import Call  # noqa: E402
from parity.hooks.sites import SitePlan, plan_sites  # noqa: E402
from parity.models.family import family_of, make_case  # noqa: E402
from parity.models.folder import resolve_model  # noqa: E402
from parity.models.names import DEFAULT_MODEL  # noqa: E402
from parity.models.spec import GenerationSpec  # noqa: E402
from parity.paths import candidate_local  # noqa: E402
from parity.paths.candidate import load_candidate  # noqa: E402
from parity.paths.facts import gather  # noqa: E402
from parity.paths.floors import Variant, make_variants, with_floors  # noqa: E402
from parity.paths.inputs import make_inputs  # noqa: E402
from parity.paths.local import local_calls  # noqa: E402
from parity.paths.loop import denoise, prepare  # noqa: E402
from parity.paths.reference import load_reference  # noqa: E402
from parity.paths.side import Side  # noqa: E402
from parity.settings import differences, parse  # noqa: E402

DTYPES = ("float32", "bfloat16")
VALUES = {"float32": ("*:out",), "bfloat16": ("transformer_blocks.?:out", "x_embedder:out", "proj_out:out")}
"""Outputs that the rules of others judge; in bfloat16 those of the blocks, so that all fit beside the local floors."""
SEEDS = range(5)


PROGRAMS: dict[Any, Program] = {}
"""Of modules run alone, for all candidates."""


def quiet(text: str, done: int | None = None, total: int | None = None) -> None:
    del text, done, total


class Known:
    """A reference with its floors, measured once and judged against many times."""

    def __init__(
        self, dtype: str, steps: int, seed: int = 0, *, sites: str = "blocks", values: tuple[str, ...] | None = None
    ) -> None:
        values = VALUES[dtype] if values is None else values
        folder = resolve_model(DEFAULT_MODEL)
        self.case = make_case(DEFAULT_MODEL, folder, GenerationSpec.load(folder))
        self.family = family_of(folder)
        given = [f"dtype={dtype}"]
        self.settings, self.theirs = parse("torch", given), parse("torchax", given)
        forcing = "none" if dtype == "float32" else "module"
        self.request = Request(
            DEFAULT_MODEL,
            self.settings,
            self.theirs,
            steps,
            seed,
            sites=sites,
            values=values,
            forcing=forcing,
        )
        ours, _ = make_inputs(self.family, self.case, self.settings, self.theirs, steps=steps, seed=seed, stage1=None)
        self.inputs = ours
        self.side = load_reference(self.family, self.case, self.settings, ours)
        self.plan = plan_sites(["", *self.side.modules], sites, values)
        self.variants: list[Variant] = []
        self.calls: dict[Any, list[tuple[Call, StepRecords]]] = {}
        self.steps: Truth = ()
        self.given: Truth = ()
        if dtype == "float32":
            self.variants = make_variants(self.side)
            loop = prepare(self.side)
            self.steps = tuple(with_floors(denoise(loop, self.plan), self.variants, self.plan, None))
        else:
            self.steps = truth_alone(self.pairing(self.side), self.request, quiet)
            self.given = tuple(denoise(prepare(self.side), self.plan))

    def pairing(self, candidate: Side) -> Pairing:
        ours, theirs = prepare(self.side.with_fresh_sampler()), prepare(candidate)
        differing = differences(self.settings, candidate.settings) if candidate is not self.side else ()
        checks = preflight(gather(ours), gather(theirs), [d.setting for d in differing])
        return Pairing(ours, theirs, differing, checks)

    def candidate(self, *settings: str) -> Side:
        given = parse("torchax", [f"dtype={self.settings.text('dtype')}", *settings])
        return load_candidate(self.family, self.case, given, self.inputs)

    def _every_module(self, pairing: Pairing, plan: SitePlan, say: Any) -> EveryModule:
        return EveryModule(pairing, plan_sites(["", *self.side.modules], "all"), say)

    def _calls(self, side: Side, step: int, state: Any, targets: Any, take: Any, dtypes: Any) -> None:
        """The reference's calls and their floors, which are the same for every candidate."""
        key = (step, tuple(targets))
        if key not in self.calls:
            held: list[tuple[Call, StepRecords]] = []
            local_calls(side, step, state, targets, lambda call, truth: held.append((call, truth)), dtypes)
            self.calls[key] = held
        for call, truth in self.calls[key]:
            take(call, truth)

    def judge(self, candidate: Side) -> tuple[Result, list[Record]]:
        """The tool's result, and what the candidate computed."""
        pairing = self.pairing(candidate)
        problem = failed(pairing.checks)
        if problem is not None:
            return Result("fail", "preflight", f"{problem.check}: {problem.detail}"), []
        taken = _Taken()
        if self.settings.text("dtype") != "float32":
            with (
                mock.patch.object(rounds, "LocalPass", self._every_module),
                mock.patch.object(local, "local_calls", self._calls),
                mock.patch.object(candidate_local, "LocalModules", functools.partial(KnownPrograms, compiled=PROGRAMS)),
            ):
                return precision(pairing, self.request, self.steps, taken, quiet, [self.given]), taken.records
        known = self

        def walk(pair: Pairing, variants: Any, how: Any, say: Any) -> Iterator[tuple[StepRecords, StepRecords]]:
            candidates = denoise(pair.candidate, how.plan, None)
            for ours in known.steps:
                theirs = next(candidates)
                yield ours, theirs

        with (
            mock.patch.object(runner, "walk", walk),
            mock.patch.object(runner, "make_variants", return_value=[_restarted(v) for v in self.variants]),
        ):
            result, _ = runner._structure(pairing, self.request, taken, quiet)
        return result, taken.records


def _restarted(variant: Variant) -> Variant:
    return dataclasses.replace(variant, loop=prepare(variant.loop.side.with_fresh_sampler()))


class _Taken(NoSink):
    """Keeps the candidate's outputs, for the rules that others use."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def step(self, reference: StepRecords, candidate: StepRecords) -> None:
        self.records += [r for r in candidate.records if isinstance(r.value, np.ndarray) and r.shape]


# --- the rules that others use -----------------------------------------------------------------------------------


def rivals(known: Known, theirs: list[Record]) -> dict[str, bool]:
    """Whether each rule raises an alarm at any output, on the same values."""
    ours = {r.key: r for step in known.steps for r in step.records}
    floors = {key: floor for step in known.steps for key, floor in step.floors.items()}
    raised = dict.fromkeys(("allclose 1e-2", "PCC 0.99", "cosine 0.99", "1.5 x noise"), False)
    for record in theirs:
        other = ours.get(record.key)
        if other is None or not isinstance(other.value, np.ndarray) or other.value.shape != record.value.shape:
            continue
        a, b = (np.asarray(x, np.float64).ravel() for x in (other.value, record.value))
        if not a.any():
            continue
        raised["allclose 1e-2"] |= not np.allclose(b, a, rtol=1e-2, atol=1e-5)
        raised["cosine 0.99"] |= not a @ b / (np.linalg.norm(a) * np.linalg.norm(b)) >= 0.99
        if a.size > 1:
            raised["PCC 0.99"] |= not np.corrcoef(a, b)[0, 1] >= 0.99
        floor = floors.get(record.key)
        if floor is not None:
            raised["1.5 x noise"] |= not np.linalg.norm(b - a) <= 1.5 * floor.l2
    return raised


# --- rows --------------------------------------------------------------------------------------------------------


def fault_row(known: Known, fault: Fault) -> dict[str, Any]:
    began = time.perf_counter()
    side = known.candidate()
    with fault.apply(side):
        try:
            result, theirs = known.judge(side)
        except ParityError as error:
            return {"verdict": "unjudged", "reason": str(error)}
        except Exception as error:  # a patch that does not run is no fault
            return {"verdict": "broken", "reason": f"{type(error).__name__}: {error}"}
    origin = result.origin.key.site if result.origin is not None else result.failed or ""
    noise = max((s.noise_pred.rel_l2 for s in result.steps), default=float("nan"))
    return {
        "verdict": result.verdict,
        "origin": origin,
        "birth": result.origin.birth if result.origin is not None else "",
        "noise_pred": noise,
        **_local(result),
        "reason": result.reason,
        "rivals": rivals(known, theirs),
        "seconds": round(time.perf_counter() - began, 1),
    }


def _local(result: Result) -> dict[str, Any]:
    """The largest local error over its floor of any module, where it is, and whether any is beyond the limits."""
    run = [d for d in result.sites if not np.isnan(d.local.floor) or d.local.ratio == float("inf")]
    worst = max(run, key=lambda d: float("inf") if np.isnan(d.local.ratio) else d.local.ratio, default=None)
    if worst is None:
        return {"local": None, "local_at": "", "beyond": False}
    beyond = any(d.birth == "module" for d in run)
    return {"local": worst.local.ratio, "local_at": worst.key.site, "beyond": beyond}


def right(fault: Fault, row: dict[str, Any]) -> bool:
    """Whether a row's origin is the exact module, its attention call or its direct parent.

    Where a module's own code gives a child the wrong input, that input is the exact place; rotary tables are compared
    by preflight.
    """
    found = row.get("origin", "").partition(":")[0]
    if row["verdict"] != "fail":
        return False
    if fault.at in ("preflight", "loop"):
        return bool(found == fault.at)
    if found == "preflight":
        return fault.at == "rope" and row["reason"].startswith("rotary tables")
    above = parent(found) if row.get("birth") == "input" else None
    return found in {fault.at, f"{fault.at}.attention", parent(fault.at)} or above == fault.at


def parent(module: str) -> str:
    """The callable module above; a list of modules is none."""
    above = module.rpartition(".")[0]
    return parent(above) if above.rpartition(".")[2] in LISTS else above


LISTS = ("net", "transformer_blocks", "to_out", "refiner_blocks")


def innocent_row(known: Known, side: Side) -> dict[str, Any]:
    try:
        result, theirs = known.judge(side)
    except ParityError as error:
        return {"verdict": "error", "reason": str(error)}
    ratios = (d.distance.ratio for d in result.sites if d.verdict != "apart")
    worst = max((r for r in ratios if not np.isnan(r)), default=0.0)
    return {
        "verdict": result.verdict,
        "worst": worst,
        "origin": result.origin.key.site if result.origin else "",
        **_local(result),
        "reason": result.reason,
        "rivals": rivals(known, theirs),
    }


class State:
    """Rows by name, kept as they come."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}

    def row(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if name not in self.rows:
            self.rows[name] = make()
            self.path.write_text(json.dumps(self.rows, indent=1))
        return self.rows[name]


def let_go(most: int) -> None:
    """Forget compiled programs where there are more: each takes a hundred mappings of memory, of 65,530 a process."""
    if len(PROGRAMS) > most:
        PROGRAMS.clear()
        jax.clear_caches()
        gc.collect()


def run_faults(state: State, only: list[str]) -> None:
    known: dict[tuple[str, int], Known] = {}
    for dtype in DTYPES:
        for fault in FAULTS:
            if only and fault.name not in only:
                continue

            def make(fault: Fault = fault, dtype: str = dtype) -> dict[str, Any]:
                key = (dtype, fault.steps)
                if key not in known:
                    known[key] = Known(dtype, fault.steps)
                return fault_row(known[key], fault)

            row = state.row(f"{dtype}/{fault.name}", make)
            where = "right" if right(fault, row) else f"ORIGIN {row.get('origin')}"
            print(dtype, fault.name, row["verdict"], where, row.get("noise_pred"), row["reason"][:90], flush=True)
            let_go(most=250)


def run_innocents(state: State, only: list[str]) -> None:
    """Variant by variant, so that what was compiled for one can be let go."""
    for dtype in DTYPES:
        known: dict[int, Known] = {}
        for innocent in INNOCENTS:
            if only and innocent.name not in only:
                continue
            sides: list[Side] = []
            for seed in SEEDS:

                def make(
                    seed: int = seed,
                    innocent: Innocent = innocent,
                    sides: list[Side] = sides,
                    known: dict[int, Known] = known,
                    dtype: str = dtype,
                ) -> dict[str, Any]:
                    if seed not in known:
                        known[seed] = Known(dtype, 1, seed)
                    if not sides:
                        sides.append(known[seed].candidate(*innocent.settings))
                    side = dataclasses.replace(sides[0], inputs=known[seed].inputs)
                    with innocent.apply(side):
                        return innocent_row(known[seed], side)

                row = state.row(f"{dtype}/{seed}/{innocent.name}", make)
                said = row.get("reason", "")[:90]
                print(dtype, seed, innocent.name, row["verdict"], row.get("worst"), said, flush=True)
            let_go(most=0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--skip-faults", action="store_true")
    parser.add_argument("--innocents", action="store_true")
    parser.add_argument("--state", type=Path, default=Path("fault_bench.json"))
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    state = State(options.state)
    if not options.skip_faults:
        run_faults(state, options.only)
    if options.innocents:
        run_innocents(state, options.only)
    if options.markdown is not None:
        from fault_table import markdown

        options.markdown.write_text(markdown(state.rows))


if __name__ == "__main__":
    main()
