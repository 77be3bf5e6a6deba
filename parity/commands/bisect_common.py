"""What the searches of `parity bisect` share: options, where a state file lies, how probes are told."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parity.cache import cache_dir

if TYPE_CHECKING:
    from rich.console import Console

    from parity.diagnose.ddmin import Outcome

FORMAT = 1
"""Version of the JSON documents; raised when a key changes its meaning or goes."""

StateOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="State file; by default one of this question in parity's cache.")
]
RestartOption = Annotated[bool, typer.Option("--restart", help="Forget what the state file knows.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else.")]


def default_state(what: str, question: Mapping[str, str]) -> Path:
    """Where the state of a question lies that was given no file: the same question finds it again."""
    name = hashlib.sha256(json.dumps(dict(question), sort_keys=True).encode()).hexdigest()[:16]
    return cache_dir() / "bisect" / f"{what}-{name}.json"


def say_state(errors: Console, path: Path, known: int) -> None:
    """Say where the state is, and that probes are not repeated, if there are any."""
    kept = f"; {plural(known, 'probe')} known from before (--restart forgets them)" if known else ""
    errors.print(f"state: {path}{kept}", soft_wrap=True)


def word(outcome: Outcome) -> str:
    """As git calls it."""
    return "skipped" if outcome == "unresolved" else outcome


def plural(count: int, noun: str) -> str:
    """`1 probe`, `2 probes`."""
    return f"{count} {noun}{'s' * (count != 1)}"
