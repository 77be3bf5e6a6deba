"""A candidate's modules run alone, with programs that are compiled once for all candidates that compute the same.

A patched candidate has one or two modules that compute otherwise, and two hundred that do not. Each module is traced
on the candidate that it is of; where the trace is, operation by operation and constant by constant, one that was
compiled before, that program is run, on this candidate's own weights: nothing is taken from another candidate's run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from parity.hooks.batch_jax import array_of
from parity.hooks.calls import Call, mapped
from parity.hooks.tap import Entry
from parity.paths.candidate import signature_of
from parity.paths.candidate_local import LocalModules

Program = tuple[Callable[..., Any], tuple[Entry, ...]]


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
        where = (call.module, call.number, names, str(self.backend.reached.settings), signature_of(arguments))
        key = (*where, str(traced), constants)
        if key not in self.compiled:
            self.compiled[key] = super()._program(call, names, leaves, structure, arguments)
        return self.compiled[key]
