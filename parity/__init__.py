"""Whether a candidate path of a diffusion video model computes what its reference does: where, why and since when not.

    import parity

    result = parity.compare(torch_block, jax_block, {"x": x})       # two functions or modules, here and now
    parity.assert_parity(torch_block, jax_block, {"x": x})          # in a test
    with parity.record("gpu", pipe):                                # in the script that has the pipeline
        video = pipe(prompt)
    result = parity.diff("gpu", "tpu")                              # `run`, `explain`: as the commands

From the top: `cli` and `commands` (command line), `face` (these functions); `causes`, `bisect` and
`report`; `runs` (run, record); `paths` (the sides) beside `compare` (the verdict); `recorder` (in
somebody's own script); `models`; `hooks`; `golden`; `settings`. A room imports only what is below it
(`tests/test_layers.py`), and importing `parity` itself imports none of them.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from parity import compare as _room

if TYPE_CHECKING:
    from parity.face.compare import assert_parity as assert_parity, compare as compare
    from parity.face.verbs import Result as Result, diff as diff, explain as explain, run as run
    from parity.port import tap as tap
    from parity.recorder.record import record as record

    __version__: str

_FACE = {
    "Result": "parity.face.verbs",
    "assert_parity": "parity.face.compare",
    "diff": "parity.face.verbs",
    "explain": "parity.face.verbs",
    "record": "parity.recorder.record",
    "run": "parity.face.verbs",
    "tap": "parity.port",
}
"""Name -> the module that has it, imported when it is first asked for."""


class _Room(ModuleType):
    """`parity.compare` is the room of the verdict, and the function of that name when it is called."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return importlib.import_module("parity.face.compare").compare(*args, **kwargs)


_room.__class__ = _Room


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib import metadata

        return metadata.version("tpu-parity")
    if name not in _FACE:
        raise AttributeError(f"module 'parity' has no attribute '{name}'")
    return getattr(importlib.import_module(_FACE[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_FACE, "__version__"])
