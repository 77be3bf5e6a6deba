"""Recording: what may be written where, resuming after a kill or a full disk, stable bytes, bounded memory."""

from __future__ import annotations

import dataclasses
import pickle
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from parity.errors import UsageError
from parity.golden import Golden, GoldenWriter, verify
from tests.support.made import PROVENANCE, assert_same, mixed_step, write

STEPS = (-1, 0, 1)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def record(folder: Path, steps: tuple[int, ...] = STEPS) -> dict[str, bytes]:
    write(folder, PROVENANCE, [mixed_step(step) for step in steps])
    return contents(folder)


def test_an_existing_golden_is_refused_and_left_alone(tmp_path: Path) -> None:
    before = record(tmp_path)
    with pytest.raises(UsageError, match=r"there is a golden here already.*--resume.*--overwrite"):
        GoldenWriter(tmp_path, PROVENANCE)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["inputs.safetensors", "step-0000.safetensors"])
def test_a_file_of_somebody_s_own_is_never_replaced(name: str, overwrite: bool, tmp_path: Path) -> None:
    (tmp_path / name).write_text("the user's own")
    with pytest.raises(UsageError, match=f"{name}: it is there without a golden"):
        GoldenWriter(tmp_path, PROVENANCE, overwrite=overwrite)
    assert contents(tmp_path) == {name: b"the user's own"}


def test_overwriting_removes_the_old_golden_and_nothing_else(tmp_path: Path) -> None:
    record(tmp_path, (-1, 0, 1, 12345))
    (tmp_path / "notes.txt").write_text("the user's own")
    (tmp_path / ".step-0003.safetensors.0123456789abcdef").write_text("of a killed run")
    with GoldenWriter(tmp_path, PROVENANCE, overwrite=True) as writer:
        assert writer.steps_done == ()
        writer.write_step(mixed_step(0))
    assert contents(tmp_path).keys() == {"golden.json", "step-0000.safetensors", "notes.txt"}
    assert Golden.open(tmp_path).steps == (0,)
    (tmp_path / "golden.json").write_text("{")  # a damaged one can be overwritten too
    with GoldenWriter(tmp_path, PROVENANCE, overwrite=True) as writer:
        writer.write_step(mixed_step(0))
    assert verify(tmp_path) == []


def test_overwriting_touches_nothing_before_the_first_step(tmp_path: Path) -> None:
    before = record(tmp_path)
    with pytest.raises(RuntimeError), GoldenWriter(tmp_path, PROVENANCE, overwrite=True):
        raise RuntimeError("the model does not load")
    assert contents(tmp_path) == before


def test_a_finished_golden_is_complete_until_a_step_is_added(tmp_path: Path) -> None:
    with GoldenWriter(tmp_path, PROVENANCE, resume=True) as writer:  # nothing to resume: a new recording
        writer.write_step(mixed_step(0))
    writer = GoldenWriter(tmp_path, PROVENANCE, resume=True)
    assert Golden.open(tmp_path).complete
    writer.write_step(mixed_step(2))
    assert not Golden.open(tmp_path).complete


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"settings": {"dtype": "bfloat16", "attention.mask": "exact"}}, r"settings\[dtype\].*float32.*bfloat16"),
        ({"seed": 8}, "seed: 7 and 8"),
        ({"shard": (1, 2)}, "shard"),
    ],
)
def test_a_different_run_cannot_resume(tmp_path: Path, change: dict[str, Any], word: str) -> None:
    GoldenWriter(tmp_path, PROVENANCE)
    with pytest.raises(UsageError, match=f"another run.*{word}"):
        GoldenWriter(tmp_path, dataclasses.replace(PROVENANCE, **change), resume=True)


def test_resuming_a_damaged_part_is_refused(tmp_path: Path) -> None:
    record(tmp_path)
    part = tmp_path / "step-0000.safetensors"
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    with pytest.raises(UsageError, match=r"step-0000.safetensors.*checksum"):
        GoldenWriter(tmp_path, PROVENANCE, resume=True)


# --- killed and out of space -----------------------------------------------------------------------------------

# The recording is killed before each call that changes the disk, and in the middle of writes. A child a kill.
KILLED = """
import os, pickle, signal, sys
import parity.golden
from pathlib import Path
write_bytes, sync, rename = Path.write_bytes, os.fsync, os.replace
folder, (provenance, steps) = sys.argv[1], pickle.loads(sys.stdin.buffer.read())

def record(where, killed_at):
    calls = 0
    def counted(function, partial=None):
        def call(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls == killed_at:
                if partial:
                    partial(*args, **kwargs)
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)
        return call
    done = os.open(where + ".done", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    write = os.write
    Path.write_bytes = counted(write_bytes, lambda path, data: write_bytes(path, data[: len(data) // 2]))
    os.fsync, os.replace = counted(sync), counted(rename)
    writer = parity.golden.GoldenWriter(where, provenance)
    for step in steps:
        writer.write_step(step)
        write(done, b"s")
    writer.finish()
    write(done, b"f")

killed_at = 0
while True:
    killed_at += 1
    child = os.fork()
    if not child:
        record(f"{folder}/{killed_at:04d}", killed_at)
        os._exit(0)
    if os.WIFEXITED(os.waitpid(child, 0)[1]):
        break
print(killed_at)
"""


def test_a_recording_killed_at_any_moment_keeps_whole_steps_and_resumes(tmp_path: Path) -> None:
    steps = [mixed_step(step, sites=2) for step in STEPS]
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    ran = subprocess.run(command, input=pickle.dumps((PROVENANCE, steps)), capture_output=True, check=True, timeout=100)
    points = int(ran.stdout)
    assert points > 25
    whole = contents(tmp_path / f"{points:04d}")
    assert len(whole) == 4
    for point in range(1, points):
        folder, done = tmp_path / f"{point:04d}", (tmp_path / f"{point:04d}.done").read_text()
        if not (folder / "golden.json").exists():
            assert done == ""
            with pytest.raises(UsageError, match="no golden here"):
                Golden.open(folder)
        else:
            golden = Golden.open(folder)
            assert golden.steps == STEPS[: len(golden.steps)]
            assert len(golden.steps) - done.count("s") in (0, 1)  # killed after the rename, before it returned
            assert not golden.complete or done.count("s") == len(STEPS)
            assert golden.complete >= ("f" in done)
            for index in golden.steps:
                assert_same(steps[index + 1], golden.read_step(index))
            assert [problem.file for problem in verify(folder)] == ([] if golden.complete else ["golden.json"])
        with GoldenWriter(folder, PROVENANCE, resume=True) as writer:
            for step in steps:
                if step.step not in writer.steps_done:
                    writer.write_step(step)
        assert contents(folder) == whole  # and nothing half written is left


def test_a_disk_full_at_any_byte_keeps_whole_steps(tmp_path: Path) -> None:
    steps = [mixed_step(step, sites=1) for step in STEPS]
    before, refusals = resource.getrlimit(resource.RLIMIT_FSIZE), 0
    for most in range(0, 1 << 20, 199):
        folder, done = tmp_path / str(most), 0
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
        try:
            with GoldenWriter(folder, PROVENANCE) as writer:
                for step in steps:
                    writer.write_step(step)
                    done += 1
        except UsageError as error:
            refusal, refusals = str(error), refusals + 1
        else:
            break
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert refusal.startswith(f"{folder}/")
        assert "no space left" in refusal
        assert "--resume" in refusal
        assert not list(folder.glob(".*"))  # nothing half written takes up space
        if (folder / "golden.json").exists():
            golden = Golden.open(folder)
            assert (golden.steps, golden.complete) == (STEPS[:done], False)
            for index in golden.steps:
                golden.read_step(index)
    assert refusals > 20
