"""The second look: a module compiled alone is not believed where the run and the module run eagerly agree."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from parity.compare.local import Local
from parity.compare.result import Distance, SiteDiff
from parity.golden.records import Key, StepRecords
from parity.hooks.sites import SitePlan
from parity.paths.plan import CallRecords, ModuleCall, Plan
from parity.paths.side import Pair
from parity.runs.closer.suspects import LocalPass
from tests.support.made import FLOOR, floor_of, moved, noise, tensor

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
