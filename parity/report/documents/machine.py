"""What is here and what there is: the documents of `parity doctor`, `cache` and `models`."""

from __future__ import annotations

from typing import Literal, TypedDict


class Probe(TypedDict):
    """Whether a package imports, which devices it sees, and why it does not, in one line."""

    imports: bool
    devices: list[str]
    error: str


class Disagreement(TypedDict):
    """A package in another version than the one wanted."""

    package: str
    installed: str
    wanted: str


class Extra(TypedDict):
    """An extra of parity, what it lacks here, and the command that adds it."""

    extra: str
    lacks: list[str]
    disagrees: list[Disagreement]
    command: str
    complete: bool


class CacheFolder(TypedDict):
    """Where parity's cache is, and how large."""

    folder: str
    bytes: int


class Doctor(TypedDict):
    """`parity doctor --json`. versions: null where a package is not installed."""

    format: Literal[1]
    python: str
    versions: dict[str, str | None]
    cpus: int
    probes: dict[str, Probe]
    extras: list[Extra]
    cache: CacheFolder
    can_run: bool


class Cache(TypedDict):
    """`parity cache --json`: bytes of each part."""

    format: Literal[1]
    folder: str
    bytes: dict[str, int]


class Model(TypedDict):
    """A built-in model; `folder` in the cache, once a run has made it."""

    model: str
    family: str
    default: bool
    cached: bool
    folder: str | None


class Family(TypedDict):
    """A family of models, and the transformer class that it runs."""

    family: str
    transformer: str


class KnownSetting(TypedDict):
    """A setting. takes: by backend the values that it takes today, or in words what form a value has."""

    setting: str
    meaning: str
    values: list[str]
    takes: dict[str, list[str] | str]
    default: dict[str, str]


class Models(TypedDict):
    """`parity models --json`."""

    format: Literal[1]
    models: list[Model]
    families: list[Family]
    settings: list[KnownSetting]
