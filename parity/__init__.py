"""Whether a candidate path of a diffusion video model computes what its reference does: where, why and since when not.

    import parity

    with parity.record("gpu", pipe):        # in the script that has the pipeline
        video = pipe(prompt)

From the top: `cli` and `commands` (command line), `pytest_plugin`; `causes`, `bisect` and `report`; `runs` (run,
record, replay, sweep); `paths` (the sides) beside `compare` (the verdict); `recorder` (in somebody's own script);
`models`; `hooks`; `golden`; `settings`. A room imports only what is below it (`tests/test_layers.py`), and importing
`parity` itself imports none of them.
"""

from __future__ import annotations

import importlib
from typing import Any

_FACE = {
    "record": "parity.recorder.record",
    "tap": "parity.port",
    "diff": "parity.compare.diff",
}
"""Name -> the module that has it, imported when it is first asked for."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib import metadata

        return metadata.version("tpu-parity")
    if name not in _FACE:
        raise AttributeError(f"module 'parity' has no attribute '{name}'")
    return getattr(importlib.import_module(_FACE[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_FACE, "__version__"])
