"""What the tests of the documents share: a working copy, and blocks of code by language."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
INSTALLS = re.compile(r"pip install (tpu-parity|'tpu-parity\[(\w+)\]')")


def blocks(document: str, language: str) -> list[str]:
    """The blocks of code of one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)


def working_copy(folder: Path) -> Path:
    """What the documents' commands use of a checkout, and the installed environment under the name they expect."""
    shutil.copytree(ROOT / "golden", folder / "golden")
    for file in ("Makefile", "pyproject.toml"):
        shutil.copy2(ROOT / file, folder / file)
    environment = folder / ".venv"
    (environment / "bin").mkdir(parents=True)
    for tool in ("python", "parity", "pytest"):
        (environment / "bin" / tool).symlink_to(Path(sys.executable).parent / tool)
    (environment / ".installed").touch()
    return folder


def shell(command: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a command as a person or a CI machine does."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=900,
    )


def extras() -> set[str]:
    """The extras that pyproject.toml offers."""
    import tomllib

    return set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
