"""`golden.json`, the document of `parity inspect`, and a file of renames (`--map`)."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from parity.golden.records import Kind, Provenance
from parity.golden.strict import Number


class Part(TypedDict):
    """A file of a golden: one step's records (-1: before the loop). sha256: of the file."""

    step: int
    file: str
    bytes: int
    sha256: str
    records: int


class Golden(TypedDict):
    """`golden.json`. complete: whether the recording ended by itself. sha256: of this document without that entry, as
    JSON without spaces."""

    kind: Literal["parity-golden"]
    format: Literal[1]
    complete: bool
    parts: list[Part]
    provenance: Provenance
    sha256: str


class Problem(TypedDict):
    """What is wrong with a file of a golden."""

    file: str
    message: str


class Moments(TypedDict):
    """Statistics over the finite elements of a tensor; how many elements, NaN and Inf it has."""

    count: int
    nan: int
    inf: int
    min: Number
    max: Number
    mean: Number
    l2: Number


class Floor(TypedDict):
    """The difference that rounding alone explains, as an absolute norm; `local_l2`: fed identical inputs."""

    l2: Number
    local_l2: Number


class Record(TypedDict):
    """What was observed at a site once. frame: the (rows, channels) of the sketch, in the row frame `rows`. sketch,
    value: whether the golden holds them."""

    stage: str
    step: int
    branch: str
    site: str
    call: int
    kind: Kind
    shape: list[int]
    dtype: str
    rows: str
    frame: list[int]
    moments: Moments | None
    scalar: bool | int | float | str | None
    sketch: bool
    value: bool
    floor: Floor | None


class Inspected(TypedDict):
    """`parity inspect --json`. problems: of `--verify`. records: of `--step`."""

    format: Literal[1]
    golden: str
    complete: bool
    bytes: int
    steps: list[int]
    provenance: Provenance
    parts: list[Part]
    problems: list[Problem] | None
    records: NotRequired[list[Record]]


Renaming = TypedDict("Renaming", {"from": str, "to": str})
"""A regular expression over a module or port of the candidate, and the reference's name for it."""


class Rename(TypedDict):
    """A file of `--map`: the first rule that matches renames."""

    format: Literal[1]
    rules: list[Renaming]
    ports: NotRequired[list[Renaming]]
