"""A CI machine: what parity itself needs and nothing else, no torch and no jax: goldens are diffed and read there."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import parity
from tests.support.made import CANDIDATE, REFERENCE, walk, write

ROOT = Path(parity.__file__).parents[1]
CORE = ("jinja2", "msgspec", "numpy", "packaging", "platformdirs", "rich", "safetensors", "typer")
HEAVY = {"torch", "torchax", "jax", "jaxlib", "diffusers", "transformers", "fsspec", "hypothesis", "scipy", "pandas"}
UNREACHABLE = ("No matching distribution", "Connection", "connection", "Temporary failure", "timed out", "SSLError")
COMMANDS = [
    ("--help", 0),
    ("diff --help", 0),
    ("diff reference candidate", 1),
    ("diff reference candidate --format json --junit x.xml --markdown x.md --map auto", 1),
    ("info reference --verify", 0),
    ("info parts", 0),
    ("explain reference candidate", 1),
    ("info settings", 0),
    ("bisect --help", 0),
    ("bisect HEAD~1 HEAD -- true", 2),  # no repository
    ("diff s3://bucket/a s3://bucket/b", 2),
]
PROGRAM = """
import contextlib, importlib.util, io, json, sys
from parity.__main__ import main

found, (commands, heavy) = [], map(json.loads, sys.argv[1:])
for command in commands:
    sys.argv, code, out, err = ["parity", *command.split()], 0, io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    found.append([command, code, out.getvalue(), err.getvalue()])
top = {name.partition(".")[0] for name in sys.modules}
spare = [name for name in heavy if importlib.util.find_spec(name)]
import parity
print(json.dumps({"ended": found, "imported": sorted(top), "installed": spare, "parity": parity.__file__}))
"""


def run(python: Path | str, folder: Path, commands: list[tuple[str, int]]) -> Any:
    """What commands came to, one after the other in one process, and what that imported."""
    for name in ("reference", "candidate"):
        provenance, side = (REFERENCE, 0) if name == "reference" else (CANDIDATE, 1)
        write(folder / name, provenance, [walk(step, 1e4).steps()[side] for step in (0, 1)])
    for shard in (0, 1):
        write(folder / f"parts/shard-{shard}", replace(REFERENCE, shard=(shard, 2)), [walk(0, 1e4).steps()[0]])
    words = [json.dumps([command for command, _ in commands]), json.dumps(sorted(HEAVY))]
    here = {} if python == sys.executable else {"PYTHONPATH": ""}  # which may name this folder
    command = [str(python), "-P", "-c", PROGRAM, *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env={**os.environ, **here})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [(command, code) for command, code, *_ in found["ended"]] == commands, found["ended"]
    return found


def test_commands_import_nothing_heavy(tmp_path: Path) -> None:
    found = run(sys.executable, tmp_path, COMMANDS[:-1])
    assert "parity" in found["imported"]
    assert HEAVY & set(found["imported"]) == set()


def test_requirements_are_those_of_the_lean_environment() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert sorted(name.split(">")[0] for name in project["dependencies"]) == sorted(CORE)


def test_nothing_is_skipped_for_want_of_a_package_where_the_test_extra_is_installed() -> None:
    named = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r'importorskip\("([\w.]+)"', file.read_text("utf-8"))
    }
    if importlib.util.find_spec("torchax") is None:
        pytest.skip("not the environment of `make install`")
    assert {"torchax", "fsspec", "yaml"} <= named
    assert sorted(name for name in named if importlib.util.find_spec(name) is None) == []


def pip(python: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode and any(word in done.stderr for word in UNREACHABLE):
        pytest.skip(f"no package index can be reached: {done.stderr.strip().splitlines()[-1][:200]}")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_lean_environment_does_the_same(tmp_path: Path) -> None:
    """Built from pip's cache if possible; skipped if no index can be reached."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    pip(python, *CORE)
    # A copy, because a build leaves its folders beside the sources.
    shutil.copytree(ROOT / "parity", tmp_path / "source" / "parity", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path / "source" / name)
    pip(python, "--no-deps", str(tmp_path / "source"))
    lean, full = run(python, tmp_path / "lean", COMMANDS), run(sys.executable, tmp_path / "full", COMMANDS[:-1])
    assert lean["installed"] == []
    assert "site-packages" in lean["parity"], "the installed parity is tested, not this folder"
    alike = [
        [(out, err) for command, _, out, err in found["ended"] if not command.startswith(("explain", COMMANDS[-1][0]))]
        for found in (lean, full)
    ]
    assert alike[0] == alike[1]
    assert "this command needs torch" in "".join(out for _, _, out, _ in lean["ended"])
    assert "pip install 'tpu-parity[remote]'" in lean["ended"][-1][3]
    script = [python.with_name("parity"), "diff", "reference", "candidate"]
    env = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run(script, capture_output=True, text=True, cwd=tmp_path / "lean", env=env)
    assert (done.returncode, "\nverdict: fail: tiny, 2 steps\n" in done.stdout) == (1, True)
