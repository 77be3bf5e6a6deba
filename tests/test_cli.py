"""How a command ends: every exit code has one meaning, and a defect of parity is never taken for a divergence."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from parity.cli import main
from parity.commands import models
from parity.errors import Terminated, UnjudgedError, UsageError
from parity.report.formats import NAMES
from tests.support.cli import cli
from tests.support.made import pair

PRINT_A_RESULT = ["run", "explain", "diff", "inspect", "models", "doctor"]


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):  # type: ignore[no-untyped-def]
    """Runs `parity models` with an error in its middle; returns (exit code, stderr)."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def run(error: BaseException) -> tuple[int, str]:
        def raises() -> None:
            raise error

        monkeypatch.setattr(models, "document", raises)
        done = cli("models")
        return done.code, done.err

    return run


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UsageError("no such file"), 2, "parity: no such file\n"),
        (UnjudgedError("nothing in common"), 125, "parity: nothing in common\n"),
        (UsageError("a\x1b[2Jb"), 2, "parity: a\\x1b[2Jb\n"),
        (KeyboardInterrupt(), 130, "parity: interrupted\n"),
        (Terminated(), 143, "parity: terminated\n"),
    ],
)
def test_an_error_is_one_line_and_its_exit_code(error, code, line, ends) -> None:  # type: ignore[no-untyped-def]
    assert ends(error) == (code, line)


@pytest.mark.parametrize("error", [KeyError("x"), RuntimeError("two\nlines \udcff"), MemoryError(), BrokenPipeError()])
def test_a_defect_is_exit_125_with_its_traceback_in_a_file(error, ends) -> None:  # type: ignore[no-untyped-def]
    code, text = ends(error)
    assert code == 125
    told = re.fullmatch(r"parity: this is a defect of parity: (\w+).*; the traceback is in (\S+)\n", text)
    assert told is not None, text
    assert told[1] == type(error).__name__
    assert "in raises" in Path(told[2]).read_text()


def test_sigterm_ends_a_command_with_143(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(models, "document", lambda: os.kill(os.getpid(), signal.SIGTERM))
    monkeypatch.setattr(sys, "argv", ["parity", "models"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, capsys.readouterr().err) == (143, "parity: terminated\n")
    assert signal.getsignal(signal.SIGTERM) is handler


def test_a_reader_that_has_gone_changes_no_exit_code(tmp_path: Path) -> None:
    for fault, code in ((0.0, 0), (1e4, 1)):
        sides = pair(tmp_path / str(code), fault=fault)
        reading, writing = os.pipe()
        os.close(reading)
        command = [sys.executable, "-m", "parity", "diff", *map(str, sides)]
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, timeout=120)
        os.close(writing)
        assert (done.returncode, done.stderr) == (code, "")


_FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")


@pytest.mark.parametrize(
    ("to", "said"),
    [pytest.param(">/dev/full", "No space left on device", marks=_FULL), (">&-", "stdout is closed")],
)
def test_a_result_that_cannot_be_written_is_said(to: str, said: str) -> None:
    command = f"'{sys.executable}' -m parity models {to}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "the result cannot be written" in done.stderr
    assert said in done.stderr
    assert subprocess.run(["sh", "-c", f"{command} 2>&-"], check=False, timeout=60).returncode == 2


def test_a_cache_in_nobodys_home_is_said() -> None:
    environment = {**os.environ, "PARITY_CACHE": "~nosuchuser/x"}
    command = [sys.executable, "-m", "parity", "run", "--steps", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert done.returncode == 2
    assert "PARITY_CACHE: '~nosuchuser/x'" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("command", PRINT_A_RESULT)
def test_every_command_that_prints_a_result_takes_every_format(command: str) -> None:
    help_text = " ".join(cli(command, "-h", code=0).out.split())
    assert "--format html|json|junit|markdown|text" in help_text
    assert "--json" in help_text
    names = ["x"] * (command in ("explain", "diff", "inspect"))
    assert f"--format takes {', '.join(NAMES)}" in cli(command, *names, "--format", "pdf", code=2).err


def test_the_version_is_printed() -> None:
    assert re.fullmatch(r"parity \d+\.\d+\S*\n", cli("--version", code=0).out)


def test_an_interrupt_while_modules_are_imported_is_said() -> None:
    """The first half second: no handler of a command is in place yet."""
    code = "import os, signal, sys, threading\n"
    code += "class Finder:\n    def find_spec(self, name, *rest):\n"
    code += "        if name == 'typer': os.kill(os.getpid(), int(sys.argv[1]))\n"
    code += "sys.meta_path.insert(0, Finder())\nfrom parity.__main__ import main\nmain()"
    for number, said, status in ((2, "interrupted", 130), (15, "terminated", 143), (1, "terminated", 129)):
        call = [sys.executable, "-c", code, str(number)]
        done = subprocess.run(
            call, capture_output=True, text=True, check=False, timeout=60, preexec_fn=_default_signals
        )
        assert (done.returncode, done.stderr) == (status, f"parity: {said}\n")


def _default_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- 2>&-"])
def test_a_closed_stream_is_nobodys_pipe(closed: str, tmp_path: Path) -> None:
    command = f"exec '{sys.executable}' -m parity record '{tmp_path}/golden' --side reference {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "golden" / "golden.json").exists()


@pytest.mark.parametrize("closed", ["2>&-", "<&- 2>&-"])
def test_without_a_stderr_a_verdict_is_the_same_and_an_error_is_no_result(closed: str, tmp_path: Path) -> None:
    sides = " ".join(f"'{side}'" for side in pair(tmp_path))
    for words, code, printed in ((f"diff {sides}", 0, True), ("diff a b c", 2, False), ("diff nowhere b", 2, False)):
        command = f"exec '{sys.executable}' -m parity {words} {closed}"
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, bool(done.stdout)) == (code, printed), words


def test_an_empty_name_is_no_place_for_a_golden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    reference, _ = pair(tmp_path / "pair")
    assert "the name given is empty" in cli("merge", "", reference, code=2).err
    assert list(tmp_path.iterdir()) == [tmp_path / "pair"]
