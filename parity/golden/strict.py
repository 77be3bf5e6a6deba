"""JSON from strangers: parsed and typed without trusting a byte of it.

Problem. A golden comes from another machine, months old, through other people's hands; `json.loads` accepts duplicate
keys, NaN literals and numbers that overflow to infinity, and says `KeyError` where a user needs a sentence.

How. `parse` closes those doors, and the `as_*` functions check one value each. A `Schema` declares how a type stands in
JSON, once for both directions; larger ones are put together of smaller. All raise `MalformedError` with what is
wrong; whoever knows the file's name turns that into a `UsageError` (`parity.golden.disk.format.damaged`). Numbers that
JSON has no literal for are the strings "nan", "inf" and "-inf".

Cost. One Python call a value: some 20 ms for the 2,000 records of a step.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

T = TypeVar("T")

Number = float | Literal["nan", "inf", "-inf"]
"""A double as it stands in JSON."""

MAX_NAME = 4096
"""Characters of a name, a setting's value or a fingerprint, at most."""
MAX_VALUES = 4_500_000
"""Commas and brackets of a document at most, some 100,000 records: each may be Python objects of 70 to 190 bytes."""
MAX_INT = 2**63 - 1
_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class MalformedError(ValueError):
    """A value is not what the format allows; the message says which and why, without the file's name."""


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise MalformedError(f"the name {shown(twice)} stands twice in one object")
    return found


def _no_literal(name: str) -> float:
    raise MalformedError(f"the literal {name} is not JSON (it should be a string)")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise MalformedError(f"the number {digits[:32]} does not fit a double")
    return number


def parse(data: bytes) -> dict[str, Any]:
    """The JSON object in `data` (UTF-8).

    Raises:
        MalformedError: not JSON, not an object, too many values, duplicate names, NaN literals, numbers too large, or
            nested too deeply.
    """
    if has_too_many(data):
        raise MalformedError(f"it has more than {MAX_VALUES} values")
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_no_duplicates,
            parse_constant=_no_literal,
            parse_float=_finite,
        )
    except MalformedError:
        raise
    except RecursionError:
        raise MalformedError("it is nested too deeply") from None
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError among them, and integers of > 4300 digits
        raise MalformedError(f"it is not JSON ({str(error)[:120]})") from None
    if not isinstance(value, dict):
        raise MalformedError("it is not a JSON object")
    return value


def has_too_many(data: bytes) -> bool:
    """Whether a document has more values than `parse` takes; who writes one asks too."""
    return sum(map(data.count, (b",", b"[", b"{"))) > MAX_VALUES


def shown(value: object) -> str:
    """A value for an error message: short, on one line, whatever it is, at no cost."""
    if isinstance(value, (dict, list)) and len(value) > 8:
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)} entries"
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    text = ascii(value[:80] if isinstance(value, str) else value)
    return text if len(text) <= 80 else text[:77] + "..."


def as_object(
    value: Any, what: str, required: frozenset[str], optional: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """`value` as an object with all `required` names and no others than those and `optional`."""
    if not isinstance(value, dict):
        raise MalformedError(f"{what} should be an object, not {shown(value)}")
    names = value.keys()
    if names == required:
        return value
    if missing := sorted(required - names):
        raise MalformedError(f"{what} has no {shown(missing[0])}")
    if unknown := sorted(names - required - optional):
        raise MalformedError(f"{what} has {shown(unknown[0])}, which this version of parity does not know")
    return value


def as_mapping(value: Any, what: str) -> dict[str, Any]:
    """`value` as an object with any names of bounded length."""
    if not isinstance(value, dict):
        raise MalformedError(f"{what} should be an object, not {shown(value)}")
    for name in value:
        as_text(name, f"a name in {what}")
    return value


def as_list(value: Any, what: str, most: int) -> list[Any]:
    if not isinstance(value, list):
        raise MalformedError(f"{what} should be a list, not {shown(value)}")
    if len(value) > most:
        raise MalformedError(f"{what} has {len(value)} entries, more than {most}")
    return value


def as_text(value: Any, what: str, most: int = MAX_NAME) -> str:
    if not isinstance(value, str):
        raise MalformedError(f"{what} should be a string, not {shown(value)}")
    if len(value) > most:
        raise MalformedError(f"{what} has {len(value)} characters, more than {most}")
    return value


def as_int(value: Any, what: str, least: int = 0, most: int = MAX_INT) -> int:
    if type(value) is not int:  # a bool is an int to isinstance
        raise MalformedError(f"{what} should be an integer, not {shown(value)}")
    if not least <= value <= most:
        raise MalformedError(f"{what} is {shown(value)}, outside {least} to {most}")
    return value


def as_bool(value: Any, what: str) -> bool:
    if not isinstance(value, bool):
        raise MalformedError(f"{what} should be true or false, not {shown(value)}")
    return value


def as_number(value: Any, what: str) -> float:
    """A double: a JSON number, or "nan", "inf", "-inf"."""
    if isinstance(value, str) and value in _SPECIAL:
        return _SPECIAL[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MalformedError(f"{what} should be a number, not {shown(value)}")
    try:
        return float(value)
    except OverflowError:
        raise MalformedError(f"{what} does not fit a double") from None


def number(value: float) -> Number:
    """The inverse of `as_number`; exact for every finite double."""
    value = float(value)
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


@dataclass(frozen=True, slots=True)
class Schema(Generic[T]):
    """How values of a type stand in JSON.

        PART = members({"step": integer(), "sha256": TEXT})
        PART.read({"step": 3, "sha256": "0f"}, "parts[0]")

    Attributes:
        read: (JSON, where it stands, for messages) -> value; raises MalformedError. write: value -> JSON.
    """

    read: Callable[[Any, str], T]
    write: Callable[[T], Any]


def _same(value: Any) -> Any:
    """Written as it is: what is none of the type fails where it is read again, and is not bent to it."""
    return value


def integer(least: int = 0, most: int = MAX_INT) -> Schema[int]:
    """Integers from `least` to `most`."""
    return Schema(lambda value, what: as_int(value, what, least, most), _same)


TEXT: Schema[str] = Schema(as_text, _same)
COUNT = integer()
BOOL: Schema[bool] = Schema(as_bool, _same)
NUMBER: Schema[float] = Schema(as_number, number)


def choice(*values: str | None) -> Schema[Any]:
    """One of these."""

    def read(value: Any, what: str) -> Any:
        if not isinstance(value, str | None) or value not in values:
            raise MalformedError(f"{what} is {shown(value)}, none of {', '.join(map(str, values))}")
        return value

    return Schema(read, lambda value: value)


def optional(item: Schema[T]) -> Schema[T | None]:
    """An item, or null for None."""
    return Schema(
        lambda value, what: None if value is None else item.read(value, what),
        lambda value: None if value is None else item.write(value),
    )


def listed(item: Schema[T], most: int) -> Schema[tuple[T, ...]]:
    """A list of at most so many items."""

    def read(value: Any, what: str) -> tuple[T, ...]:
        return tuple(item.read(entry, f"{what}[{i}]") for i, entry in enumerate(as_list(value, what, most)))

    return Schema(read, lambda items: [item.write(entry) for entry in items])


def row(*items: Schema[Any]) -> Schema[tuple[Any, ...]]:
    """A list of exactly these items."""

    def read(value: Any, what: str) -> tuple[Any, ...]:
        entries = as_list(value, what, len(items))
        if len(entries) != len(items):
            raise MalformedError(f"{what} has {len(entries)} entries, not {len(items)}")
        return tuple(item.read(entry, what) for item, entry in zip(items, entries, strict=True))

    return Schema(read, lambda values: [item.write(value) for item, value in zip(items, values, strict=True)])


def mapping(item: Schema[T]) -> Schema[Mapping[str, T]]:
    """An object with any names."""

    def read(value: Any, what: str) -> Mapping[str, T]:
        return {name: item.read(x, f"{what}[{shown(name)}]") for name, x in as_mapping(value, what).items()}

    return Schema(read, lambda values: {name: item.write(x) for name, x in values.items()})


def members(
    required: Mapping[str, Schema[Any]], beside: Mapping[str, Schema[Any]] | None = None
) -> Schema[dict[str, Any]]:
    """An object with these names and no others; of those `beside`, None is left out."""
    every, names, rest = {**required, **(beside or {})}, frozenset(required), frozenset(beside or ())

    def read(value: Any, what: str) -> dict[str, Any]:
        entry = as_object(value, what or "the document", names, rest)
        return {name: every[name].read(x, f"{what}.{name}" if what else name) for name, x in entry.items()}

    def write(values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: x.write(values[name]) for name, x in every.items() if name in names or values[name] is not None}

    return Schema(read, write)


def record(make: Callable[..., T], **items: Schema[Any]) -> Schema[T]:
    """An object of the members of a dataclass."""
    inner = members(items)
    return Schema(
        lambda value, what: make(**inner.read(value, what)),
        lambda value: inner.write({name: getattr(value, name) for name in items}),
    )
