"""The second look: which module is suspected, what is observed of it, and a fault found where it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from parity.compare.local import Local
from parity.compare.result import Distance, Failed, Origin, Result, SiteDiff
from parity.golden.records import Key, StepRecords
from parity.hooks.sites import SitePlan
from parity.paths.plan import CallRecords, ModuleCall, Plan
from parity.paths.side import Pair
from parity.runs.closer.suspects import LocalPass, block_of_origin, children_plan
from tests.support.made import FLOOR, because, floor_of, moved, noise, tensor

MODULES = ("", "proj", "blocks.0", "blocks.0.attn", "blocks.0.attn.to_q", "blocks.1", "blocks.10", "blocks.10.ff")


def failing(site: str, failed: Failed = "structure") -> Result:
    return Result("fail", failed, because(""), origin=Origin(Key("transformer", 0, "cond", site), "module"))


@pytest.mark.parametrize(
    ("site", "suspect"),
    [
        ("blocks.0.attn.attention:out@image", "blocks.0"),
        ("blocks.10:out.0", "blocks.10"),
        ("proj:out", "proj"),
        ("loop:latents.after", None),
        (":out", None),
    ],
)
def test_the_suspect_is_the_block_or_the_child(site: str, suspect: str | None) -> None:
    assert block_of_origin(failing(site)) == suspect


def test_a_preflight_failure_has_no_suspect() -> None:
    assert block_of_origin(failing("blocks.0:out", "preflight")) is None


def test_only_the_suspect_is_observed() -> None:
    plan = children_plan("blocks.1", MODULES)
    assert plan is None  # nothing below it, and blocks.10 is another block
    plan = children_plan("blocks.0", MODULES)
    assert plan is not None
    assert plan.modules == {"blocks.0", "blocks.0.attn", "blocks.0.attn.to_q"}
    assert plan.wants_module("blocks.0.attn.attention")
    assert not plan.wants_module("blocks.10.attn.attention")
    assert not plan.wants_module("proj")


OUT = Key("transformer", 0, "cond", "blocks.1:out")
HERE = noise(1)


@dataclass
class Alone:
    """A pair of one module. Compiled alone it is far off; run eagerly it is as near as `eagerly` says."""

    eagerly: float
    asked: list[bool] = field(default_factory=list)

    def look(self, seen: SiteDiff) -> Local:
        made = tensor("blocks.1:out", HERE)
        truth = CallRecords(
            0, (made,), {OUT: floor_of(made)}, call=ModuleCall(module="blocks.1", step=0, number=0, branches=("cond",))
        )

        def call(again: ModuleCall, plan: Plan) -> StepRecords:
            self.asked.append(plan.eager)
            x = moved(HERE, self.eagerly if plan.eager else 30.0)
            return StepRecords(0, (tensor("blocks.1:out", x.astype(np.float32)),))

        pair: Any = SimpleNamespace(
            facts=Pair(*[SimpleNamespace(provenance=SimpleNamespace(modules={"blocks.1": ""}))] * 2),
            sides=Pair(SimpleNamespace(observe=lambda *a, **k: iter([truth])), SimpleNamespace(call=call)),
        )
        passed = LocalPass(pair, SitePlan("none", (), frozenset()), lambda *_: None)
        return passed.look(0, {}, ("blocks.1",), {}, [seen])[OUT]


def test_a_program_compiled_alone_is_not_believed_against_the_run_and_the_module_run_eagerly() -> None:
    near, far = (SiteDiff(OUT, Distance(x * FLOOR, FLOOR, x)) for x in (1.0, 29.0))
    only_compiled = Alone(eagerly=1.0)
    assert not only_compiled.look(near).beyond
    assert only_compiled.asked == [False, True]
    in_its_code = Alone(eagerly=30.0)
    assert in_its_code.look(near).beyond
    in_the_run = Alone(eagerly=1.0)
    assert in_the_run.look(far).beyond, "where the run is as far, it is the run's own"
    assert in_the_run.asked == [False]
