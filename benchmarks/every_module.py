"""Every module of a pair run alone on the reference's inputs, whatever the free run observes; affordably.

`EveryModule` is `--forcing module` with more targets: beside the sites that the free run observes, each other module is
run alone too, and its outputs stand among the judged sites where they are in execution order. `--sites all` judges the
same and observes the free run everywhere too, which for each patched candidate costs its compilation twice over.

A patched candidate has one or two modules that compute otherwise, and two hundred that do not. `KnownPrograms` traces
each module on the candidate that it is of; where the trace is, operation by operation and constant by constant, one
that was compiled before, that program is run, on this candidate's own weights: nothing is taken from another's run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from parity.compare.judge import excuses
from parity.compare.local import Local, with_local
from parity.compare.result import NAN, Distance, SiteDiff
from parity.golden.records import Key, StepRecords
from parity.hooks.batch_jax import array_of
from parity.hooks.calls import Call, mapped
from parity.hooks.tap import Entry
from parity.paths.candidate import signature_of
from parity.paths.candidate_local import LocalModules
from parity.paths.loop import State
from parity.runs.local import LocalPass

Program = tuple[Callable[..., Any], tuple[Entry, ...]]


class EveryModule(LocalPass):
    """See the module's docstring; its plan is of all modules."""

    def step(self, step: int, state: State, sites: Sequence[SiteDiff], candidate: StepRecords) -> tuple[SiteDiff, ...]:
        targets = tuple(m for m in self.pairing.reference.side.modules if m)
        found = self.look(step, state, targets, self._dtypes(candidate))
        self.found.update(found)
        return with_local(merged(sites, found), found, excuses(self.pairing.differing))


def merged(sites: Sequence[SiteDiff], found: Mapping[Key, Local]) -> list[SiteDiff]:
    """The sites with the outputs that were only run alone, each before the next that the free run observed too."""
    observed = {d.key for d in sites}
    before: dict[Key, list[SiteDiff]] = {}
    pending: list[SiteDiff] = []
    for key in found:
        if key in observed:
            before[key], pending = pending, []
        else:
            pending.append(SiteDiff(key, Distance(NAN, NAN, NAN)))
    return [*(x for d in sites for x in (*before.get(d.key, ()), d)), *pending]


@dataclass
class KnownPrograms(LocalModules):
    """See the module's docstring.

    Attributes:
        compiled: the programs of all candidates so far, by what they compute.
    """

    compiled: dict[Any, Program] = field(default_factory=dict)

    def _program(
        self, call: Call, names: tuple[str, ...], leaves: list[Any], structure: Any, arguments: tuple[Any, Any, Any]
    ) -> Program:
        def bare(params: Any, tensors: Any) -> Any:
            with self._calling(call, leaves, structure, params, tensors) as output:
                return mapped(array_of, output)

        traced = jax.make_jaxpr(bare)(*arguments[:2])
        constants = hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in traced.consts)).hexdigest()
        settings = self.backend.reached.settings
        where = (call.module, call.number, names, settings["mesh"], settings["sharding"], signature_of(arguments))
        key = (*where, str(traced), constants)
        if key not in self.compiled:
            self.compiled[key] = super()._program(call, names, leaves, structure, arguments)
        return self.compiled[key]
