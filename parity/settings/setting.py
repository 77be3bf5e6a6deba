"""One setting, with all that parity knows of it: whatever depends on which setting it is reads a field of this."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from parity.errors import UsageError

Backend = Literal["torch", "torchax"]
Value = str | int | bool

Place = Literal["text", "text.byt5", "transformer", "vae"]
"""A part of a generation: a stage, or one encoder of the text stage."""

Input = Literal["weights", "embeddings", "masks", "image embeddings", "noise", "schedule", "rotary tables"]
"""What both sides' networks start from, compared before any forward."""

Capability = Literal[
    "attention", "text mask", "text refiner", "ByT5", "vision states", "guidance", "rotary tables", "step counter",
    "mesh", "blocks",
]  # fmt: skip
"""What a model must have for a setting to mean anything."""


# --- what values look like


@dataclass(frozen=True, slots=True)
class Kind:
    """What the values of a setting look like.

    Attributes:
        form: for messages. read: the typed value of a text; None where it is not one. values: all texts, for either
            backend; empty where there is no list.
    """

    form: str
    read: Callable[[str], Value | None]
    values: tuple[str, ...] = ()


def one_of(*values: str) -> Kind:
    """One of a list."""
    return Kind(", ".join(values), lambda text: text if text in values else None, values)


FLAG = Kind("false, true", {"false": False, "true": True}.get, ("false", "true"))
_MOST = 2**31 - 1


def integer(most: int = _MOST) -> Kind:
    """An integer that is not negative."""

    def read(text: str) -> Value | None:
        return int(text) if text.isdecimal() and len(text) <= 10 and int(text) <= most else None

    return Kind("an integer of at least 0" + (f" and at most {most}" if most < _MOST else ""), read)


def written(pattern: re.Pattern[str], form: str) -> Kind:
    """A text that a pattern matches whole; it may have commas."""
    return Kind(form, lambda text: text if pattern.fullmatch(text) else None)


def render(value: Value) -> str:
    """A value as written on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- what is known of a setting


@dataclass(frozen=True, slots=True)
class Advice:
    """What a setting's fault is in words, and what to change.

    Attributes:
        sentence: with `{value}` for the candidate's value. remedy: an imperative.
    """

    sentence: str
    remedy: str


PLAIN = Advice("{setting} is {value}", "give it the reference's value")
"""For a setting that changes nothing in exact arithmetic: nobody needs advice about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting.

    Attributes:
        name: as written on the command line; a contract, as its values are.
        meaning: one line for the help.
        kind: what its values look like.
        default: the model's own meaning; by backend where the two run different programs by nature.
        advice: for who finds it at fault.
        takes: by backend, the values that it can take today; a missing backend takes all of them.
        neutral: of a setting that only rounds, the value that rounds least: both sides have it in the logic check.
        places: where it applies. requires: what a model must have for it to mean anything.
        changes: the inputs whose values it may change.
        expected_at: globs over `module` or `module:port`: the sites that it changes by design.
        expected_within: relative L2 distance up to which it does so; a table or a norm that is rounded is near.
        layout: whether it changes which tokens there are, or their order, so that activations do not align by row.
        examples: values that stand for all where `kind` lists none; `{last}` is the index of the last block.
        needs: settings without which it does nothing, as `NAME=VALUE`.
        innocent: whether it is no known fault: it changes nothing in exact arithmetic, or preflight sees it.
        around_ports: whether parity applies it outside a port: in the loop, or in what compiles it.
    """

    name: str
    meaning: str
    kind: Kind
    default: Value | Mapping[Backend, Value]
    advice: Advice
    takes: Mapping[Backend, tuple[str, ...]] = field(default_factory=dict)
    neutral: Value | None = None
    places: tuple[Place, ...] = ("transformer",)
    requires: tuple[Capability, ...] = ()
    changes: tuple[Input, ...] = ()
    expected_at: tuple[str, ...] = ()
    expected_within: float = math.inf
    layout: bool = False
    examples: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    innocent: bool = False
    around_ports: bool = False

    def default_for(self, backend: Backend) -> Value:
        return self.default[backend] if isinstance(self.default, Mapping) else self.default

    def allowed(self, backend: Backend) -> str:
        """What a backend takes, for messages."""
        return ", ".join(self.takes.get(backend, ())) or self.kind.form

    def applies_in(self, place: str) -> bool:
        """Whether a part of a generation has code for it: `text.byt5` has what `text` has."""
        return any(place == own or place.startswith(f"{own}.") for own in self.places)

    def read(self, text: str) -> Value:
        """The typed value of a text, whether or not parity's own paths take it.

        Raises:
            UsageError: it is not a value of this setting.
        """
        value = self.kind.read(text)
        if value is None:
            hint = difflib.get_close_matches(text, self.kind.values, n=1)
            also = f"; did you mean '{hint[0]}'?" if hint else ""
            raise UsageError(f"setting '{self.name}' has no value '{text}'{also} (values: {self.kind.form})")
        return value

    def parse(self, text: str, backend: Backend) -> Value:
        """The typed value of a text for one of parity's own paths.

        Raises:
            UsageError: it is not a value of this setting, or one that the backend cannot take yet.
        """
        value, takes = self.read(text), self.takes.get(backend)
        if takes is not None and text not in takes:
            raise UsageError(
                f"the {backend} path cannot take '{self.name}={text}' yet; it takes: {self.allowed(backend)}"
            )
        return value
