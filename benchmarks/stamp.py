"""Results that a page is rendered from: rows, and of what commit, with which versions, on which machine they are."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from parity.versions import versions

FOLDER = Path(__file__).parent / "results"

Row = dict[str, Any]


class State:
    """Rows by name, kept in a file as they come: the same command goes on where it was stopped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, Row] = json.loads(path.read_text()) if path.exists() else {}

    def row(self, name: str, make: Callable[..., Row], *args: Any) -> Row:
        """What `make` gives for these arguments, and the seconds that it took; made where there is none yet."""
        if name not in self.rows:
            began = time.perf_counter()
            self.rows[name] = {**make(*args), "seconds": round(time.perf_counter() - began, 2)}
            self.path.write_text(json.dumps(self.rows, indent=1))
        return self.rows[name]


def publish(name: str, rows: Mapping[str, Row], render: Callable[[Mapping[str, Any]], str]) -> None:
    """Keep the rows of a whole run, and render the page of that name from them."""
    save(name, stamped(rows, spent(rows)))
    page(name).write_text(render(load(name)))


def page(name: str) -> Path:
    """Where the page of that name lies: beside its rows."""
    return FOLDER / f"{name}.md"


def spent(rows: Mapping[str, Row]) -> float:
    """Seconds of all rows, however often the run was stopped."""
    return float(sum(row.get("seconds", 0.0) for row in rows.values()))


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
    """The stamp as a line of a page; without a commit for rows that are older than stamps."""
    told = ", ".join(f"{name} {version}" for name, version in sorted(kept["versions"].items()))
    if kept["commit"] is None:
        return f"Measured on a commit that was not noted ({kept['machine']}; {told})."
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
