"""What the searches of `parity bisect` share: options, where a state file lies, how probes are told."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parity.cache import cache_dir
from parity.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from parity.bisect.ddmin import Outcome
    from parity.paths.port_settings import PortInfo
    from parity.settings import Settings

FORMAT = 1
"""Version of the JSON documents; raised when a key changes its meaning or goes."""

StateOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="State file; by default one of this question in parity's cache.")
]
RestartOption = Annotated[bool, typer.Option("--restart", help="Forget what the state file knows.")]


def default_state(what: str, question: Mapping[str, str]) -> Path:
    """Where the state of a question lies that was given no file: the same question finds it again."""
    name = hashlib.sha256(json.dumps(dict(question), sort_keys=True).encode()).hexdigest()[:16]
    return cache_dir() / "bisect" / f"{what}-{name}.json"


def inputs_by_content(stage1: Path | None, prompt: str | None) -> str:
    """What a run is given, for the question of a state file.

    Raises:
        UsageError: the file cannot be read.
    """
    if stage1 is None:
        return "the model's own prompt" if prompt is None else f"prompt {prompt}"
    try:
        with stage1.open("rb") as opened:
            return f"stage1 {hashlib.file_digest(opened, 'sha256').hexdigest()[:16]}"
    except OSError as error:
        raise UsageError(f"--stage1: cannot read '{stage1}': {error.strerror}") from None


def ports_by_content(*entries: PortInfo | None) -> str:
    """The ports of a run, for the question of a state file: their functions and what their files hold now."""
    told = []
    for entry in entries:
        if entry is not None:
            told.append(f"{entry.option} {entry.text.rpartition(':')[2]} {entry.digest}")
    return "; ".join(told)


def settings_in_words(chosen: Settings) -> str:
    """What differs from the defaults, as on the command line."""
    return " ".join(f"{name}={value}" for name, value in chosen.as_text().items() if chosen.changed(name))


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
