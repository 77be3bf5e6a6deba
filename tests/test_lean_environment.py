"""A CI machine: what parity itself needs and nothing else, no torch and no jax: goldens are diffed and merged there.

The environment is built once a session, from pip's cache where it can be; where no index can be reached the tests of
it are skipped by that name. That start-up stays short is tested by what is imported, in the full environment too: times
differ from machine to machine.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from dataclasses import replace
from pathlib import Path

import pytest

import parity
from tests.support.made import CANDIDATE, REFERENCE, walk, write

pytestmark = pytest.mark.slow

ROOT = Path(parity.__file__).parents[1]
CORE = ("numpy", "platformdirs", "rich", "safetensors", "typer")
HEAVY = ("torch", "torchax", "jax", "jaxlib", "diffusers", "transformers", "fsspec", "hypothesis", "scipy", "pandas")
UNREACHABLE = ("No matching distribution", "Connection", "connection", "Temporary failure", "timed out", "SSLError")

PROGRAM = """
import sys
from parity.cli import main
sys.argv = ["parity", *sys.argv[1:]]
code = 0
try:
    main()
except SystemExit as exit:
    code = exit.code or 0
print("imported:", *sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
sys.exit(code)
"""


def pip(python: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode and any(word in done.stderr for word in UNREACHABLE):
        pytest.skip(f"no package index can be reached: {done.stderr.strip().splitlines()[-1][:200]}")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def lean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with parity's own requirements alone."""
    folder = tmp_path_factory.mktemp("lean")
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    python = folder / "venv" / "bin" / "python"
    pip(python, *CORE)
    # A copy, because a build leaves its folders beside the sources.
    shutil.copytree(ROOT / "parity", folder / "source" / "parity", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder / "source" / name)
    pip(python, "--no-deps", str(folder / "source"))
    return python


@pytest.fixture(scope="session")
def goldens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`reference` and `candidate`, 1e4 floors apart in step 1, and step 0 and 1 of the reference apart."""
    folder = tmp_path_factory.mktemp("goldens")
    steps = [walk(step, 1e4).steps() for step in (0, 1)]
    write(folder / "reference", REFERENCE, [a for a, _ in steps])
    write(folder / "candidate", CANDIDATE, [b for _, b in steps])
    for step in (0, 1):
        write(folder / f"part{step}", replace(REFERENCE, devices=(f"host {step}",)), [steps[step][0]])
    return folder


def run(python: Path, cwd: Path, *arguments: str) -> tuple[int, str, set[str]]:
    """(exit code, stdout, top-level modules that were imported)."""
    command = [str(python), "-P", "-c", PROGRAM, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, timeout=120)
    assert "Traceback" not in done.stderr, done.stderr
    *_, last = done.stderr.strip().splitlines()
    assert last.startswith("imported: ")
    return done.returncode, done.stdout, set(last.split()[1:])


COMMANDS = [
    (["--help"], 0),
    (["diff", "--help"], 0),
    (["diff", "reference", "candidate"], 1),
    (["diff", "reference", "candidate", "--json", "--junit", "x.xml", "--markdown", "x.md", "--map", "auto"], 1),
    (["inspect", "reference", "--verify", "--step", "0"], 0),
    (["merge", "merged", "part0", "part1"], 0),
    (["help", "words"], 0),
    (["bisect", "--help"], 0),
    (["bisect", "commits", "HEAD~1", "HEAD", "--", "true"], 2),  # no repository
]


@pytest.mark.parametrize(
    ("arguments", "code"), COMMANDS, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_a_command_imports_nothing_heavy(arguments: list[str], code: int, goldens: Path, tmp_path: Path) -> None:
    shutil.copytree(goldens, tmp_path / "goldens")
    found, _, imported = run(Path(sys.executable), tmp_path / "goldens", *arguments)
    assert found == code
    assert "parity" in imported
    assert imported & set(HEAVY) == set()


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


def test_the_requirements_are_those_that_the_lean_environment_has() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert sorted(name.split(">")[0] for name in project["dependencies"]) == sorted(CORE)


def test_the_lean_environment_has_neither_torch_nor_jax(lean: Path, tmp_path: Path) -> None:
    program = f"import importlib.util as u, json; print(json.dumps([n for n in {HEAVY!r} if u.find_spec(n)]))"
    done = subprocess.run([lean, "-P", "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert json.loads(done.stdout) == []
    program = "import parity; print(parity.__file__)"
    done = subprocess.run([lean, "-P", "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "site-packages" in done.stdout, "the installed parity is tested, not this folder"


@pytest.mark.parametrize(
    ("arguments", "code"), COMMANDS, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_the_lean_environment_does_the_same(
    arguments: list[str], code: int, lean: Path, goldens: Path, tmp_path: Path
) -> None:
    outputs = []
    for name, python in (("lean", lean), ("full", Path(sys.executable))):
        shutil.copytree(goldens, tmp_path / name)
        found, out, _ = run(python, tmp_path / name, *arguments)
        assert found == code
        outputs.append(out)
    assert outputs[0] == outputs[1]


def test_the_script_is_installed_and_a_url_names_what_is_missing(lean: Path, goldens: Path) -> None:
    script = lean.with_name("parity")
    done = subprocess.run(
        [script, "diff", "reference", "candidate"], capture_output=True, text=True, check=False, cwd=goldens
    )
    assert done.returncode == 1
    assert "\nverdict: fail (structure): tiny\n" in done.stdout
    done = subprocess.run(
        [script, "diff", "s3://bucket/a", "s3://bucket/b"], capture_output=True, text=True, check=False, cwd=goldens
    )
    assert done.returncode == 2
    assert "pip install 'tpu-parity[remote]'" in done.stderr
    assert "Traceback" not in done.stderr
