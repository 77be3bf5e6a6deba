"""What values a setting can have: listed ones, a flag, an integer, or a text of a form."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Backend = Literal["torch", "torchax"]
Value = str | int | bool


@dataclass(frozen=True, slots=True)
class Enumerated:
    """One of a list.

    Attributes:
        values: all of them, for either backend.
    """

    values: tuple[str, ...] = ()

    @property
    def form(self) -> str:
        """What a value looks like, for messages."""
        return ", ".join(self.values)

    def read(self, text: str) -> Value | None:
        """The typed value of a text; None where it is not a value."""
        return text if text in self.values else None


@dataclass(frozen=True, slots=True)
class Flag(Enumerated):
    """Off or on."""

    values: tuple[str, ...] = ("false", "true")

    def read(self, text: str) -> Value | None:
        return text == "true" if text in self.values else None


MOST = 2**31
"""What every integer setting is below."""


@dataclass(frozen=True, slots=True)
class Integer(Enumerated):
    """An integer that is not negative.

    Attributes:
        most: the largest.
    """

    most: int = MOST - 1

    @property
    def form(self) -> str:
        return "an integer of at least 0" + (f" and at most {self.most}" if self.most < MOST - 1 else "")

    def read(self, text: str) -> Value | None:
        value = int(text) if text.isdecimal() and len(text) <= 10 else MOST
        return value if value <= self.most else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Structured(Enumerated):
    """A text of a form, which may have commas.

    Attributes:
        pattern: that a whole value matches. shape: how a value is written, for messages.
    """

    pattern: re.Pattern[str]
    shape: str

    @property
    def form(self) -> str:
        return self.shape

    def read(self, text: str) -> Value | None:
        return text if self.pattern.fullmatch(text) else None


DEVICE = re.compile(r"[a-z][a-z0-9_]{0,30}(:\d{1,4})?")
MESH = re.compile(r"dp=([1-9]\d*),sp=([1-9]\d*),tp=([1-9]\d*)")
CACHE = re.compile(r"off|deepcache:(\d{1,9}),(\d{1,9}),(\d{1,9})")


@dataclass(frozen=True, slots=True)
class DeepCache:
    """The setting `cache=deepcache:start,end,interval`.

    Attributes:
        start, end: the blocks that are skipped, end excluded. interval: they run at its multiples.
    """

    start: int
    end: int
    interval: int

    def full(self, step: int) -> bool:
        """Whether all blocks run at this step."""
        return step % self.interval == 0


def deep_cache(text: str) -> DeepCache | None:
    """The cache that a value of `cache` names; None for `off`."""
    match = CACHE.fullmatch(text)
    return DeepCache(*map(int, match.groups())) if match is not None and match[1] is not None else None


def mesh_shape(text: str) -> tuple[int, int, int]:
    """(dp, sp, tp) of a value of `mesh`."""
    match = MESH.fullmatch(text)
    assert match is not None, f"'{text}' is no mesh"
    dp, sp, tp = (int(n) for n in match.groups())
    return dp, sp, tp


def render(value: Value) -> str:
    """A value as written on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)
