"""Both versions of every model as ports.

parity run --reference-port benchmarks/history/ports.py:NAME_after \\
           --port benchmarks/history/ports.py:NAME_before
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import diffusers
from every_change import CHANGES

from parity.port import Case, Port

warnings.filterwarnings("ignore")
diffusers.utils.logging.set_verbosity_error()


def __getattr__(name: str) -> Callable[[Case], Port]:
    change, _, version = name.rpartition("_")
    model = CHANGES[change].model if change in CHANGES and version in ("before", "after") else None
    if model is None:
        raise AttributeError(name)

    def build(case: Case) -> Port:
        made = model(version == "after")
        module = made.module
        return Port(
            module=module, call=lambda inputs: module(**inputs, **made.static), inputs=made.inputs, runs="torch"
        )

    return build
