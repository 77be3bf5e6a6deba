"""Where parity keeps what it makes once and uses again: tiny checkpoints, compiled programs.

One folder for all of it, so that a user can look at it, move it (`PARITY_CACHE`) or delete it at any time: everything
in it is made anew when it is missing. Standard library only; nothing is created here.
"""

from __future__ import annotations

import os
import pathlib


def cache_dir() -> pathlib.Path:
    """Return the cache folder: `$PARITY_CACHE` where that is set and not empty, else `~/.cache/parity`.

    The folder may not exist yet; who writes into it creates what it needs.
    """
    chosen = os.environ.get("PARITY_CACHE")
    if chosen:
        return pathlib.Path(chosen).expanduser()
    return pathlib.Path("~/.cache/parity").expanduser()
