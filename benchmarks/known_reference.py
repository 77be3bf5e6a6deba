"""What the fault bench judges candidates against: a reference with its floors, measured once, and others' rules."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
from every_module import EveryModule, KnownPrograms, Program

import parity.runs.run as runner
from parity.compare.preflight import failed, preflight
from parity.compare.reason import Reason
from parity.compare.result import Result
from parity.golden.records import Record, StepRecords
from parity.hooks.calls import Call
from parity.hooks.sites import SitePlan, plan_sites
from parity.models.registry import DEFAULT_MODEL, family_of, make_case, resolve_model
from parity.models.spec import GenerationSpec
from parity.paths import candidate_local
from parity.paths.candidate import load_candidate
from parity.paths.facts import gather
from parity.paths.floors import Variant, make_variants, with_floors
from parity.paths.inputs import make_inputs
from parity.paths.loaded import Loaded
from parity.paths.local import local_calls
from parity.paths.loop import denoise, prepare
from parity.paths.reference import load_reference
from parity.runs import local
from parity.runs import precision as rounds
from parity.runs.pairing import Pairing, Request
from parity.runs.precision import Truth, precision, truth_alone
from parity.runs.sink import NoSink
from parity.settings import differences, parse

VALUES = {"float32": ("*:out",), "bfloat16": ("transformer_blocks.?:out", "x_embedder:out", "proj_out:out")}
"""Outputs that the rules of others judge; in bfloat16 those of the blocks, so that all fit beside the local floors."""


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

    def pairing(self, candidate: Loaded) -> Pairing:
        ours, theirs = prepare(self.side.with_fresh_sampler()), prepare(candidate)
        differing = differences(self.settings, candidate.settings) if candidate is not self.side else ()
        checks = preflight(gather(ours), gather(theirs), [d.setting for d in differing])
        return Pairing(ours, theirs, differing, checks)

    def candidate(self, *settings: str) -> Loaded:
        given = parse("torchax", [f"dtype={self.settings.text('dtype')}", *settings])
        return load_candidate(self.family, self.case, given, self.inputs)

    def _every_module(self, pairing: Pairing, plan: SitePlan, say: Any) -> EveryModule:
        return EveryModule(pairing, plan_sites(["", *self.side.modules], "all"), say)

    def _calls(self, side: Loaded, step: int, state: Any, targets: Any, take: Any, dtypes: Any) -> None:
        """The reference's calls and their floors, which are the same for every candidate."""
        key = (step, tuple(targets))
        if key not in self.calls:
            held: list[tuple[Call, StepRecords]] = []
            local_calls(side, step, state, targets, lambda call, truth: held.append((call, truth)), dtypes)
            self.calls[key] = held
        for call, truth in self.calls[key]:
            take(call, truth)

    def judge(self, candidate: Loaded) -> tuple[Result, list[Record]]:
        """The tool's result, and what the candidate computed."""
        pairing = self.pairing(candidate)
        problem = failed(pairing.checks)
        if problem is not None:
            why = Reason(kind="preflight", check=problem.check, detail=problem.detail)
            return Result("fail", "preflight", why), []
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
