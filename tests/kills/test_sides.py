"""Commands that run models, killed at moments between: each a minute, so that `make kills` alone runs them all."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("torchax")

from parity.golden import Golden, verify
from tests.kills.forked import CODES, KILLS, SIGNALS, left_of
from tests.recorder.test_script import SCRIPT, model
from tests.support.tiny_dit import PORT, write

pytestmark = pytest.mark.slow

WRONG = PORT.replace("1e-5)", "1e-1)")


def ports(folder: Path) -> None:
    write(folder, WRONG)


def script(folder: Path) -> None:
    (folder / "beside.py").write_text("size = {'height': 32, 'width': 32, 'num_frames': 9}\n")
    (folder / "script.py").write_text(SCRIPT.replace("END", ""))


def explained(folder: Path) -> None:
    ports(folder)
    assert ended(started(folder, [*RUN, "--out", "run"])) == 1


def started(folder: Path, words: Sequence[str]) -> subprocess.Popen[bytes]:
    """The command in a session of its own, whose output goes to a file."""
    with (folder / "said").open("wb") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "parity", *words], cwd=folder, stdout=said, stderr=said, start_new_session=True
        )


def ended(process: subprocess.Popen[bytes]) -> int:
    return process.wait(timeout=900)


def whole_json(*names: str) -> Callable[[Path], None]:
    """These files are JSON or not there."""

    def check(folder: Path) -> None:
        for name in names:
            if (folder / name).exists():
                json.loads((folder / name).read_text())

    return check


def kept_run(folder: Path) -> None:
    """What has a result is whole; else its goldens say that they are not finished, or are."""
    whole_json("run/request.json", "run/result.json")(folder)
    for role in ("reference", "candidate"):
        if (folder / "run" / "result.json").exists() or (folder / "run" / role / "golden.json").exists():
            found = Golden.open(folder / "run" / role)
            assert found.complete or not (folder / "run" / "result.json").exists()
            for step in found.steps:
                found.read_step(step)


def a_golden(folder: Path, name: str = "golden") -> None:
    if (folder / name / "golden.json").exists():
        found = Golden.open(folder / name)
        for step in found.steps:
            found.read_step(step)
        assert [problem.file for problem in verify(folder / name)] == ([] if found.complete else ["golden.json"])


def a_whole_golden(folder: Path) -> None:
    assert verify(folder / "golden") == []


def recorded(folder: Path) -> None:
    """A golden of the port's reference, with its modules' inputs."""
    ports(folder)
    assert ended(started(folder, RECORD_PORT)) == 0


def gated(folder: Path) -> None:
    """The golden that it was judged by is untouched, the port's own is whole or says that it is not."""
    a_whole_golden(folder)
    a_golden(folder, "kept")


def nothing(folder: Path) -> None:
    del folder


PATHS = ["--reference-path", "model.py:reference", "--candidate-path", "port.py:build"]
RUN = ["run", "--rounds", "structure", *PATHS]
RECORD = ["record", "golden", "--side", "candidate", "--model", "tiny-cogvideox-1.0", "--steps", "3"]
SETTINGS = ["bisect", "settings", "--rounds", "structure", "--candidate", "attention.mask=none", "--state", "s.json"]


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command, in a folder that `make` fills.

    Attributes:
        again: what is typed after a kill. code: of a run that ends by itself. check: holds after a kill, and `done`
            after the second run.
    """

    words: Sequence[str]
    again: Sequence[str]
    make: Callable[[Path], None]
    check: Callable[[Path], None]
    done: Callable[[Path], None]
    code: int = 0


RECORD_PORT = ["record", "golden", "--reference-path", "model.py:reference", "--values", "blocks.?:in"]
EXPLAIN = ["explain", "run", *PATHS]
GATE = ["gate", "port.py:build", "--golden", "golden", "--reference-path", "model.py:reference", "--out", "kept"]
RECORD_SCRIPT = ["record", "golden", "--script", "script.py", "--floors", "none"]
COMMANDS = {
    "run": Command(words=[*RUN, "--out", "run"], again=[*RUN, "--out", "run", "--overwrite"], make=ports,
                   check=kept_run, done=kept_run, code=1),
    "record": Command(words=RECORD, again=[*RECORD, "--resume"], make=nothing, check=a_golden, done=a_whole_golden),
    "record --script": Command(words=RECORD_SCRIPT, again=[*RECORD_SCRIPT, "--overwrite"], make=script,
                               check=a_golden, done=a_whole_golden),
    "explain": Command(words=EXPLAIN, again=EXPLAIN, make=explained,
                       check=whole_json("run/explain.json", "run/result.json"), done=kept_run, code=1),
    "bisect settings": Command(words=SETTINGS, again=SETTINGS, make=nothing, check=whole_json("s.json"),
                               done=whole_json("s.json")),
    "gate": Command(words=GATE, again=[*GATE, "--overwrite"], make=recorded, check=gated, done=gated, code=1),
}  # fmt: skip


@pytest.mark.skipif("KILLS" not in os.environ, reason="minutes: make kills")
@pytest.mark.parametrize("name", COMMANDS)
def test_killed_at_any_moment(name: str, tmp_path: Path) -> None:
    command, lot = COMMANDS[name], random.Random(name)
    own = [model()] if "script.py" in command.words else []
    behind = ["--", *own] if own else []
    (tmp_path / "whole").mkdir()
    command.make(tmp_path / "whole")
    began = time.monotonic()
    assert ended(started(tmp_path / "whole", [*command.words, *behind])) == command.code
    seconds = time.monotonic() - began
    for i in range(min(KILLS, 2)):
        for number in SIGNALS:
            folder = tmp_path / f"{i}-{number.name}"
            folder.mkdir()
            command.make(folder)
            process = started(folder, [*command.words, *behind])
            time.sleep(lot.uniform(0.0, seconds))
            process.send_signal(number)
            code, said = ended(process), (folder / "said").read_text(errors="replace")
            assert code in (*CODES[signal.Signals(number)], command.code), said
            assert "Traceback" not in said
            assert left_of(process.pid) == []
            command.check(folder)
            again = command.again if (folder / "run" / "request.json").exists() or name != "run" else command.words
            assert ended(started(folder, [*again, *behind])) == command.code, (folder / "said").read_text()
            command.done(folder)
