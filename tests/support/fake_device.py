"""A device of torch's, `fake`, that computes on the CPU and has no float64, as TPUs and MPS have none.

torch loads it where a package announces it (`torch.backends`), as it loads those of real accelerators; `announce` makes
such a package.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "fake"
_LIBRARIES: list[torch.library.Library] = []
WRONG_AT = "FAKE_DEVICE_WRONG_AT"
"""Names an operation that the device computes 0.1 % too large, `aten::gelu`: a fault of its own."""


def announce(folder: Path) -> Path:
    """A folder for `PYTHONPATH` with a package that brings the device."""
    package = folder / "fake_device-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-device\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[torch.backends]\n{NAME} = tests.support.fake_device:install\n")
    return folder


class FakeTensor(torch.Tensor):
    """A tensor of the device; `held` has its values, on the CPU."""

    held: torch.Tensor

    @staticmethod
    def of(held: torch.Tensor) -> FakeTensor:
        if held.dtype == torch.float64:
            raise TypeError(f"{NAME} has no float64")
        base: Any = torch.Tensor
        made: FakeTensor = base._make_wrapper_subclass(
            FakeTensor, held.size(), held.stride(), held.storage_offset(), dtype=held.dtype, device=NAME
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given: dict[int, FakeTensor] = {}

        def inside(x: FakeTensor) -> torch.Tensor:
            given[id(x.held)] = x
            return x.held

        def outside(x: torch.Tensor) -> torch.Tensor:
            own = given.get(id(x))
            return own if own is not None else FakeTensor.of(x) if to_here else x

        kwargs = dict(kwargs or {})
        target = kwargs.get("device")
        to_here = target is None or torch.device(target).type == NAME
        if target is not None:
            kwargs["device"] = "cpu"
        args, kwargs = tree_map_only(FakeTensor, inside, (args, kwargs))
        out = func(*args, **kwargs)
        if func._schema.name == os.environ.get(WRONG_AT):
            out = out * 1.001
        return tree_map_only(torch.Tensor, outside, out)


def install() -> None:
    """Register the device."""
    _setup_privateuseone_for_python_backend(NAME)
    library = torch.library.Library("aten", "IMPL")
    library.impl("empty.memory_format", _empty, "PrivateUse1")
    library.impl("empty_strided", _empty_strided, "PrivateUse1")
    library.impl("_copy_from", _copied, "PrivateUse1")
    for made in ("arange", "arange.start", "arange.start_step", "linspace"):
        library.impl(made, _made(made.partition(".")[0]), "PrivateUse1")
    _LIBRARIES.append(library)


def _empty(size: Sequence[int], *, dtype: torch.dtype | None = None, **rest: Any) -> torch.Tensor:
    return FakeTensor.of(torch.empty(size, dtype=dtype))


def _empty_strided(
    size: Sequence[int], stride: Sequence[int], *, dtype: torch.dtype | None = None, **rest: Any
) -> torch.Tensor:
    return FakeTensor.of(torch.empty_strided(size, stride, dtype=dtype))


def _made(name: str) -> Callable[..., torch.Tensor]:
    return lambda *args, device=None, **rest: FakeTensor.of(getattr(torch, name)(*args, **rest))


def _copied(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    held, into = (x.held if isinstance(x, FakeTensor) else x for x in (source, target))
    into.copy_(held)
    return target
