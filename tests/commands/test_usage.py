"""Help, completion, and what no command takes: exit code 2, one line that says why, nothing on stdout."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from parity.cli import COMMANDS
from tests.support.cli import cli
from tests.support.made import pair

REFUSED = [
    ("run --inputs nowhere", "no such file or golden: 'nowhere'"),
    ("run --candidate scheduler.warmup_steps=1000000000", "at most 10000"),
    ("run --candidate attention.maks=none", "did you mean 'attention.mask'"),
    ("run --model=", "--model is empty"),
    ("run --model tiny-hunyuan", "unknown model 'tiny-hunyuan'"),
    (f"run --steps {'9' * 40}", "--steps must be from 1 to 100000, found"),
    (f"run --candidate attention.block_q={'9' * 5000}", "attention.block_q"),
    (f"run --candidate cache=deepcache:{'9' * 5000},1,1", "cache"),
    ("run --prompt a\udcffb", "is not valid UTF-8"),
    ("run --stages text,tail", "--stages takes text, transformer, vae"),
    ("diff nowhere b", "there is no golden here"),
    ("diff nowhere/golden.json b", "a golden is a folder; name the one that this file lies in"),
    ("diff a port.py", "'port.py' is a file; name its function that makes the port, as in port.py:build"),
    ("diff a b --format pdf", "Invalid value for '--format': 'pdf' is not one of 'html', 'json'"),
    ("diff a b --map-out x", "--map-out saves what --map auto proposes"),
    ("explain nowhere", "is not a run folder. Create one with `parity run --out DIR`, or name two goldens"),
    ("explain nowhere --prompt x", "a kept run holds its own model and prompt: leave them out"),
    ("report nowhere", "is not a run folder. Create one with `parity run --out DIR`, or name a file that `parity diff"),
    ("init port.py --torchax --jax", "--torchax and --jax exclude each other"),
    ("record g --floors fp32", "Invalid value for '--floors': 'fp32' is not one of 'measured', 'none'"),
    ("record g --stages vae", "must name the transformer"),
    ("record g --resume --overwrite", "exclude each other"),
    ("record g --port port.py:build", "--side candidate"),
    ("bisect HEAD", "give two commits and a command"),
    ("bisect HEAD~1 HEAD --steps 2 -- true", "the options of a run are for --settings"),
    ("nosuch", "parity: No such command 'nosuch'. See parity --help"),
    ("explian", "parity: No such command 'explian'. Did you mean 'explain'? See parity --help"),
    ("run --bogus", "parity: No such option: --bogus (Possible options: --out). See parity run --help"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_is_refused(words: str, said: str, tmp_path: Path) -> None:
    ran = cli(*words.split(), cwd=tmp_path, code=2)
    assert said in ran.err
    assert (ran.out, list(tmp_path.iterdir())) == ("", [])


@pytest.mark.parametrize("name", [name for group in COMMANDS.values() for name in group])
def test_help_begins_with_the_line_that_the_list_of_commands_has(name: str) -> None:
    line = next(group[name] for group in COMMANDS.values() if name in group)
    assert f"\n\n{line}\n\n" in cli(name, "--help", code=0).out.replace("\n  ", "\n")
    assert f"\n  {name} " in cli("--help", code=0).out


def test_help_imports_no_numpy() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "parity", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not re.findall(r"\| +(numpy|rich)\b", done.stderr)


def test_modules_of_the_current_folder_stand_for_nobody_else(tmp_path: Path) -> None:
    for name in ("random.py", "json.py", "signal.py", "typer.py"):
        (tmp_path / name).write_text("raise RuntimeError('mine')\n")
    done = subprocess.run(
        [sys.executable, "-m", "parity", "diff", "a", "b"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, "there is no golden here" in done.stderr) == (2, True), done.stderr


def test_a_current_folder_that_is_gone_is_said(tmp_path: Path) -> None:
    sides = " ".join(pair(tmp_path / "goldens"))
    words = f"mkdir gone && cd gone && rmdir ../gone && exec {sys.executable} -m parity diff {sides} --junit x"
    done = subprocess.run(["sh", "-c", words], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, "the current folder is no longer there" in done.stderr) == (2, True), done.stderr
