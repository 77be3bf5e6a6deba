"""Results that a page is rendered from: rows, and of what commit, with which versions, on which machine they are."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parity.golden.versions import versions

FOLDER = Path(__file__).parent / "results"


def stamped(rows: Mapping[str, Any], seconds: float, **more: Any) -> dict[str, Any]:
    """What is kept of rows.

    Args:
        seconds: that they took. more: of the program, as the seed that it drew from.
    """
    return {
        "commit": commit(),
        "versions": dict(versions()),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "seconds": round(seconds),
        **more,
        "rows": dict(rows),
    }


def commit() -> str:
    """The checkout's; with a + where files differ from it."""
    git = ["git", "-C", str(Path(__file__).parent)]
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True)
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


def line(kept: Mapping[str, Any]) -> str:
    """The stamp as a line of a page."""
    told = ", ".join(f"{name} {version}" for name, version in sorted(kept["versions"].items()))
    return f"Measured on commit {kept['commit']} ({kept['machine']}; {told}) in {kept['seconds']} s."


def load(name: str) -> dict[str, Any]:
    """Kept results; without rows where there are none yet."""
    path = FOLDER / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"rows": {}}
    return found


def save(name: str, kept: Mapping[str, Any]) -> None:
    """Keep results, one row a line."""
    head = {key: value for key, value in kept.items() if key != "rows"}
    rows = ",\n".join(f"  {json.dumps(key)}: {json.dumps(row)}" for key, row in kept["rows"].items())
    text = json.dumps(head, indent=1)[:-2] + f',\n "rows": {{\n{rows}\n }}\n}}\n'
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json").write_text(text)
