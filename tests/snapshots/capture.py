"""Running one frozen command and keeping all that it printed, before anything is masked or left out.

The program is a checkout's, given by its root, in a process of its own: what is frozen is the command line, not the
functions behind it. Captures are kept as files, so that a stopped recording is resumed and a change of what a snapshot
keeps needs no run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.snapshots.catalogue import JSON, Command

COLUMNS = "120"
LIMIT_S = 1800.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Captured:
    """What one command printed.

    Attributes:
        code: exit code. stdout, stderr: as printed, piped.
        document: text of the JSON document; empty where there is none. document_code: exit code of the run with
            `--json`, None where the document came from a file.
    """

    code: int
    stdout: str
    stderr: str
    document: str = ""
    document_code: int | None = None


def environment(root: Path) -> dict[str, str]:
    """The environment that every command has: no colours, a fixed width, one thread, the package of `root`."""
    return {
        **os.environ,
        "PYTHONPATH": str(root),
        "NO_COLOR": "1",
        "COLUMNS": COLUMNS,
        "OMP_NUM_THREADS": "1",
        "TERM": "dumb",
    }


def capture(command: Command, folder: Path, root: Path, kept: Path) -> Captured:
    """Run a command in `folder`, or read what an earlier call kept of it."""
    file = kept / f"{command.name}.json"
    if file.exists():
        return Captured(**json.loads(file.read_text()))
    first = _call(command.argv, folder, root)
    document, code = "", None
    if command.document == JSON:
        second = _call([*command.argv, JSON], folder, root)
        document, code = second.stdout, second.returncode
    elif command.document and (folder / command.document).exists():
        document = (folder / command.document).read_text()
    captured = Captured(
        code=first.returncode, stdout=first.stdout, stderr=first.stderr, document=document, document_code=code
    )
    kept.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(asdict(captured), indent=1))
    return captured


def _call(argv: list[str], folder: Path, root: Path) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "parity.cli", *argv]
    try:
        return subprocess.run(
            call,
            cwd=folder,
            env=environment(root),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(call, 124, "", f"parity: no end within {LIMIT_S:g} s")
