"""Where parity keeps what it makes once and uses again: tiny checkpoints, compiled programs.

One folder for all of it, so that a user can look at it (`parity info cache`), move it (`PARITY_CACHE`) or delete it at
any time: everything in it is made anew when it is missing. Nothing is created here.
"""

from __future__ import annotations

import os
import pathlib

from parity.errors import UsageError


def cache_dir() -> pathlib.Path:
    """Return the cache folder: `$PARITY_CACHE` where that is set and not empty, else `parity` in the user's own, as
    `platformdirs` knows it: in `$XDG_CACHE_HOME`, or `~/.cache`, on macOS `~/Library/Caches`.

    The folder may not exist yet; who writes into it creates what it needs.

    Raises:
        UsageError: the path names a home folder that nobody has.
    """
    chosen = os.environ.get("PARITY_CACHE")
    if not chosen:
        import platformdirs

        chosen = platformdirs.user_cache_dir("parity", appauthor=False)
    try:
        return pathlib.Path(chosen).expanduser()
    except RuntimeError as error:
        raise UsageError(f"PARITY_CACHE: '{chosen}': {error} Set PARITY_CACHE to a folder that exists") from None
