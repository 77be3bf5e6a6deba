"""What a search was asked, in words: everything that an outcome depends on, so that a state file is never mixed up.

Files are named by their content: the same path with other content is another question.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from parity.errors import UsageError
from parity.settings import Settings

if TYPE_CHECKING:
    from parity.paths.port.settings import PortInfo


def inputs_by_content(stage1: Path | None, prompt: str | None) -> str:
    """What the model is called with.

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
    """The ports: their functions and what their files hold now."""
    return "; ".join(f"{e.option} {e.text.rpartition(':')[2]} {e.digest}" for e in entries if e is not None)


def settings_in_words(chosen: Settings) -> str:
    """What differs from the defaults, as on the command line."""
    return " ".join(f"{name}={value}" for name, value in chosen.as_text().items() if chosen.changed(name))
