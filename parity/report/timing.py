"""How long a command will still take, from how long its stages took the last time it ran as it is run now.

Durations are kept in the cache, a small file a command line: a stage is named by its text, its seconds are those of all
its parts together, since a run turns from one side to the other at each step. A first run has no plan and claims none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from parity.cache import cache_dir
from parity.errors import UsageError
from parity.files import read_text
from parity.report.output import write

MOST_BYTES = 1 << 16
MOST_STAGES = 200


@dataclass
class Stage:
    """Seconds of a stage, and how often it began: a loop turns from one side to the other."""

    seconds: float = 0.0
    times: int = 0


class Timing:
    """The stages of a running command, and those of the last such run.

    Attributes:
        stages: stage -> what it took so far, in the order in which they began. earlier: of the last run.
    """

    def __init__(self, command: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Args: command: what is run, options included; empty for one that is not remembered."""
        self._clock = clock
        self._file = _file(command) if command else None
        self.began = self._since = clock()
        self.stages: dict[str, Stage] = {}
        self.earlier = {} if self._file is None else _read(self._file)
        self._now = ""
        self._farthest = 0

    def begin(self, stage: str) -> None:
        """A stage begins, or goes on; the one before it ends."""
        now = self._clock()
        if self._now:
            self.stages[self._now].seconds += now - self._since
        found = self.stages.setdefault(stage, Stage())
        found.times += stage != self._now
        self._now, self._since = stage, now
        if stage in self.earlier:
            self._farthest = max(self._farthest, list(self.earlier).index(stage) + 1)

    @property
    def place(self) -> str:
        """`3 of 7`: how far along the last run's stages this one is; empty where there was none."""
        return f"{self._farthest} of {len(self.earlier)}" if self._farthest else ""

    @property
    def left(self) -> float:
        """Seconds that the last run took for what is still to be done; NaN where there was none."""
        if not self._farthest:
            return math.nan
        running = self._clock() - self._since
        total = 0.0
        for i, (name, last) in enumerate(self.earlier.items()):
            now = self.stages.get(name, Stage())
            if i + 1 < self._farthest and name != self._now and now.times >= last.times:
                continue  # over, however long it took
            total += max(0.0, last.seconds - now.seconds - (running if name == self._now else 0.0))
        return total

    @property
    def total(self) -> float:
        """Seconds since it began."""
        return self._clock() - self.began

    def finish(self) -> None:
        """Keep the durations for the next run; a cache that cannot be written is no error."""
        self.begin("")
        self.stages.pop("", None)
        if self._file is not None and 0 < len(self.stages) <= MOST_STAGES:
            rows = [[name, round(stage.seconds, 3), stage.times] for name, stage in self.stages.items()]
            with contextlib.suppress(UsageError):
                write(self._file, json.dumps({"format": 1, "stages": rows}) + "\n", "PARITY_CACHE")


def clock(seconds: float) -> str:
    """`0:07`, `12:30`, `1:02:03`."""
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _file(command: str) -> Path | None:
    try:
        return cache_dir() / "timings" / f"{hashlib.sha256(command.encode()).hexdigest()[:32]}.json"
    except UsageError:
        return None


def _read(file: Path) -> Mapping[str, Stage]:
    """What is kept; nothing where there is no such file, or one that is damaged."""
    try:
        rows = json.loads(read_text(file, MOST_BYTES))["stages"]
        found = {str(name): Stage(float(seconds), int(times)) for name, seconds, times in rows}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return {}
    return found if all(0 <= stage.seconds < 1e7 for stage in found.values()) else {}
