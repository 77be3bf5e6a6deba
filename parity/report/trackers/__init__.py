"""Experiment trackers, one module each, named as `parity log --to` names it.

A module registers one function that writes what is logged, and returns where it is to be seen:

    @tracker("aim")
    def aim(run: Tracked, to: Target) -> str: ...

Its library is imported when it is called, and by nothing else of parity.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

from parity.errors import UsageError
from parity.report.tracked import Tracked

NAMES: tuple[str, ...] = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))
"""The trackers there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a run is logged.

    Attributes:
        project: wandb's project, mlflow's experiment, a folder of tensorboard's.
        into: a folder, or mlflow's tracking URI; None for the tracker's own default.
        offline: whether nothing is sent (wandb).
    """

    project: str
    into: str | None = None
    offline: bool = False


Tracker = Callable[[Tracked, Target], str]

_TRACKERS: dict[str, Tracker] = {}


def tracker(name: str) -> Callable[[Tracker], Tracker]:
    """Register a tracker under the name of its module."""

    def register(function: Tracker) -> Tracker:
        _TRACKERS[name] = function
        return function

    return register


def log(run: Tracked, name: str, to: Target) -> str:
    """Write what is logged of a run; returns where it is to be seen.

    Raises:
        UsageError: no such tracker, its library is not installed, or it refuses.
    """
    if name not in NAMES:
        raise UsageError(f"--to takes {', '.join(NAMES)}; found '{name}'")
    importlib.import_module(f"{__name__}.{name}")
    try:
        return _TRACKERS[name](run, to)
    except ImportError as error:
        raise UsageError(
            f"--to {name} needs {error.name or error}, which is not installed: pip install 'tpu-parity[{name}]'"
        ) from None
    except UsageError:
        raise
    except Exception as error:  # each library has exceptions of its own
        said = " ".join(str(error).split())[:300]
        raise UsageError(f"--to {name}: {type(error).__name__}: {said}") from error
