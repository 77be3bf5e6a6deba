"""How a command ends: every exit code has one meaning, and an internal error is never taken for a divergence."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from parity.commands import info
from parity.errors import InconclusiveError, Terminated, UsageError
from parity.report.formats import Name
from tests.support.cli import Ran, cli
from tests.support.made import pair

FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
PARITY = f"exec '{sys.executable}' -m parity"


def raised_for(error: BaseException) -> RuntimeError:
    """A library that is interrupted while it is imported may raise an error of its own for it."""
    own = RuntimeError("Failed to import")
    own.__cause__ = error
    return own


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[BaseException], Ran]:
    """Runs `parity info models` with an error in its middle."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def run(error: BaseException) -> Ran:
        def raises() -> None:
            raise error

        monkeypatch.setattr(info, "_models", raises)
        return cli("info", "models")

    return run


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UsageError("no such file"), 2, "no such file"),
        (UsageError("a\x1b[2Jb"), 2, "a\\x1b[2Jb"),
        (InconclusiveError("nothing in common"), 125, "nothing in common"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (raised_for(KeyboardInterrupt()), 130, "interrupted"),
        (Terminated(), 143, "terminated"),
    ],
)
def test_error_is_one_line_and_its_exit_code(
    error: BaseException, code: int, line: str, ends: Callable[[BaseException], Ran]
) -> None:
    done = ends(error)
    assert (done.code, done.err) == (code, f"parity: {line}\n")


@pytest.mark.parametrize("error", [KeyError("x"), RuntimeError("two\nlines \udcff"), MemoryError(), BrokenPipeError()])
def test_internal_error_is_exit_125_with_its_traceback_in_a_file(
    error: Exception, ends: Callable[[BaseException], Ran]
) -> None:
    done = ends(error)
    told = re.fullmatch(r"parity: internal error: (\w+).*. Please report it with the traceback in (\S+)\n", done.err)
    assert told is not None, done.err
    assert (done.code, told[1]) == (125, type(error).__name__)
    assert "in raises" in Path(told[2]).read_text()


def test_sigterm_ends_a_command_with_143(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(info, "_models", lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert cli("info", "models", code=143).err == "parity: terminated\n"
    assert signal.getsignal(signal.SIGTERM) is handler


def test_signal_while_modules_are_imported_is_reported() -> None:
    """The first half second: no handler of a command is in place yet."""
    code = "import os, signal, sys, threading\n"
    code += "class Finder:\n    def find_spec(self, name, *rest):\n"
    code += "        if name == 'typer': os.kill(os.getpid(), int(sys.argv[1]))\n"
    code += "sys.meta_path.insert(0, Finder())\nfrom parity.__main__ import main\nmain()"
    for number, said, status in ((2, "interrupted", 130), (15, "terminated", 143), (1, "terminated", 129)):
        done = subprocess.run([sys.executable, "-c", code, str(number)], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (status, f"parity: {said}\n")


def shell(command: str, folder: Path, **pipes: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", command], text=True, timeout=300, cwd=folder,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **pipes},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "code", "out", "err"),
    [
        ("diff a b >&-", 2, "", "the result cannot be written"),
        ("diff a c 2>&-", 1, "verdict: fail", ""),
        ("diff a nowhere 2>&-", 2, "", ""),
        pytest.param("diff a b >/dev/full", 2, "", "No space left on device", marks=[pytest.mark.slow, FULL]),
        pytest.param("diff a b c 2>&-", 2, "", "", marks=pytest.mark.slow),
        pytest.param("diff a b <&- 2>&-", 0, "verdict: pass", "", marks=pytest.mark.slow),
        pytest.param("diff a b >&- 2>&-", 2, "", "", marks=pytest.mark.slow),
        pytest.param("record g --side reference <&-", 0, "", "step", marks=pytest.mark.slow),
        pytest.param("record g --side reference <&- 2>&-", 0, "", "", marks=pytest.mark.slow),
    ],
)
def test_closed_or_full_stream_is_no_result(words: str, code: int, out: str, err: str, tmp_path: Path) -> None:
    for name, fault in (("b", 0.0), ("c", 1e4)):
        ours, theirs = pair(tmp_path / f"{name}-pair", fault=fault)
        (tmp_path / "a").is_symlink() or (tmp_path / "a").symlink_to(ours)
        (tmp_path / name).symlink_to(theirs)
    done = shell(f"{PARITY} {words}", tmp_path)
    assert done.returncode == code, done.stderr
    assert (out in done.stdout, bool(done.stdout)) == (True, bool(out))
    assert (err in done.stderr, bool(done.stderr)) == (True, bool(err))
    assert err in ("", "step") or done.stderr.count("\n") == 1


def test_reader_that_has_gone_changes_no_exit_code(tmp_path: Path) -> None:
    pair(tmp_path, fault=1e4)
    reading, writing = os.pipe()
    os.close(reading)
    done = shell(f"{PARITY} diff reference candidate", tmp_path, stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_cache_in_nobodys_home_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARITY_CACHE", "~nosuchuser/x")
    assert "PARITY_CACHE: '~nosuchuser/x'" in cli("info", "cache", code=2).said


@pytest.mark.parametrize("command", ["run", "explain", "diff", "info"])
def test_command_takes_every_format_that_can_show_its_answer(command: str) -> None:
    formats = [name for name in get_args(Name) if command != "info" or name not in ("html", "junit")]  # of a comparison
    help_text = " ".join(cli(command, "-h", code=0).out.split())
    assert f"--format <{'|'.join(formats)}>" in help_text
    names = ["x", "y"] if command == "diff" else []
    assert f"'pdf' is not one of '{formats[0]}'" in cli(command, *names, "--format", "pdf", code=2).err


def test_version_is_printed() -> None:
    assert re.fullmatch(r"parity \d+\.\d+\S*\n", cli("--version", code=0).out)


def test_empty_name_is_no_golden(tmp_path: Path) -> None:
    reference, _ = pair(tmp_path / "pair")
    assert "the name given is empty" in cli("diff", "", reference, code=2, cwd=tmp_path).err
