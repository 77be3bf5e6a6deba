"""The two consoles: results on stdout, everything else on stderr.

rich decides by itself whether each is a terminal, and keeps NO_COLOR and TERM. Highlighting, markup and emoji are
off: a site's brackets and colons are part of its name.
"""

from __future__ import annotations

from rich.console import Console


def make_consoles() -> tuple[Console, Console]:
    """(stdout, stderr)."""
    return _console(stderr=False), _console(stderr=True)


def _console(stderr: bool) -> Console:
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)
