"""The documents of `parity bisect`, one a kind of search."""

from __future__ import annotations

from typing import Literal, TypedDict

from parity.golden.strict import Number

Outcome = Literal["good", "bad", "skipped"]


class Judged(TypedDict):
    """What came of a probe. evidence: why, in one line."""

    outcome: Outcome
    evidence: str
    seconds: Number


class CommitProbe(Judged):
    """A commit, judged."""

    commit: str


class Commits(TypedDict):
    """`parity bisect commits --json`: the first bad commit, or where skipped ones hide it the candidates for it."""

    format: Literal[1]
    bisected: Literal["commits"]
    first_bad: str | None
    subject: str | None
    candidates: list[str]
    searched: int
    probes: list[CommitProbe]
    good: list[str]
    bad: list[str]
    skipped: list[str]
    state: str


class Swap(TypedDict):
    """A differing setting: the candidate's value, and the one in its place where the setting is left out."""

    setting: str
    without: str
    candidate: str


class SettingsProbe(Judged):
    """A run with these of the candidate's settings, judged."""

    settings: list[str]


class Settings(TypedDict):
    """`parity bisect settings --json`: the least set that makes a run fail."""

    format: Literal[1]
    bisected: Literal["settings"]
    culprits: list[Swap]
    searched: list[Swap]
    kept: list[str]
    probes: list[SettingsProbe]
    good: list[list[str]]
    bad: list[list[str]]
    skipped: list[list[str]]
    state: str


class LeftOut(TypedDict):
    """A module that cannot be replaced, and why."""

    module: str
    why: str


class ModulesProbe(Judged):
    """A run with the reference's results in place of these modules, judged."""

    replaced: list[str]


class Modules(TypedDict):
    """`parity bisect modules --json`: the modules whose replacement restores parity."""

    format: Literal[1]
    bisected: Literal["modules"]
    culprits: list[str]
    searched: list[str]
    aligned: list[str]
    left_out: list[LeftOut]
    probes: list[ModulesProbe]
    good: list[list[str]]
    bad: list[list[str]]
    skipped: list[list[str]]
    state: str


class StepProbe(Judged):
    """A step, judged: alone from the reference's latents, or in the free run."""

    how: str
    step: int


class ByOutcome(TypedDict):
    """Steps by outcome."""

    good: list[int]
    bad: list[int]
    skipped: list[int]


class Steps(TypedDict):
    """`parity bisect steps --json`: the first step that differs, alone and in the free run."""

    format: Literal[1]
    bisected: Literal["steps"]
    steps: int
    first_alone: int | None
    first_free: int | None
    alone: ByOutcome
    free: ByOutcome
    probes: list[StepProbe]
    state: str
