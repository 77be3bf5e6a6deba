"""A recording that is killed, or that fills the disk, leaves its whole steps, marked incomplete, at every moment."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from parity.errors import UsageError
from parity.golden import Golden, GoldenWriter, Provenance, StepRecords, verify

pytestmark = pytest.mark.slow

Make = Callable[..., StepRecords]
STEPS = (-1, 0, 1)

# Calls of the system that change the disk. The recording is killed before each of them, and in the middle of writes.
KILLED = """
import os, pickle, signal, sys
import parity.golden
folder, arguments = sys.argv[1], pickle.loads(sys.stdin.buffer.read())

def record(where, killed_at):
    calls = 0
    def counted(function, partial=None):
        def call(*args):
            nonlocal calls
            calls += 1
            if calls == killed_at:
                if partial:
                    partial(*args)
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args)
        return call
    write, sync, rename = os.write, os.fsync, os.replace
    done = os.open(where + ".done", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write = counted(write, lambda file, data: write(file, data[: len(data) // 2]))
    os.fsync, os.replace = counted(sync), counted(rename)
    writer = parity.golden.GoldenWriter(where, arguments["provenance"])
    for step in arguments["steps"]:
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


def test_killed_before_and_within_every_write_sync_and_rename(
    tmp_path: Path, provenance: Provenance, make_step: Make, assert_same: Callable[..., None]
) -> None:
    import pickle

    steps = [make_step(step, sites=2) for step in STEPS]
    # Fixed number of blocks: dozens of writes would only repeat each other.
    ran = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        input=pickle.dumps({"provenance": provenance, "steps": steps}),
        capture_output=True,
        check=True,
        timeout=300,
    )
    points = int(ran.stdout)
    assert points > 40
    whole = {file.name: file.read_bytes() for file in (tmp_path / f"{points:04d}").iterdir()}
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
        with GoldenWriter(folder, provenance, resume=True) as writer:
            for step in steps:
                if step.step not in writer.steps_done:
                    writer.write_step(step)
        assert {f.name: f.read_bytes() for f in folder.iterdir() if not f.name.startswith(".")} == whole


ENDLESS = """
import pickle, sys
import parity.golden
from dataclasses import replace
arguments = pickle.loads(sys.stdin.buffer.read())
writer = parity.golden.GoldenWriter(sys.argv[1], arguments["provenance"])
print("begun", flush=True)
for index in range(10**5):
    records = tuple(replace(r, key=replace(r.key, step=index)) for r in arguments["step"].records)
    writer.write_step(parity.golden.StepRecords(index, records))
"""


@pytest.mark.parametrize("delay", [0.0, 0.003, 0.011, 0.05, 0.2])
def test_killed_from_outside_at_any_time(tmp_path: Path, provenance: Provenance, make_step: Make, delay: float) -> None:
    import pickle

    child = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child:
        child.stdin.write(pickle.dumps({"provenance": provenance, "step": make_step(0)}))
        child.stdin.close()
        assert child.stdout.readline() == b"begun\n"
        time.sleep(delay)
        child.send_signal(signal.SIGKILL)
    golden = Golden.open(tmp_path)
    assert not golden.complete
    assert golden.steps == tuple(range(len(golden.steps)))
    for step in golden.steps:
        golden.read_step(step)


def test_a_full_disk_at_every_write(
    tmp_path: Path, provenance: Provenance, make_step: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [make_step(step, sites=1) for step in STEPS]
    write = os.write
    left = 0

    def failing(descriptor: int, data: bytes) -> int:
        nonlocal left
        if left == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        left -= 1
        return write(descriptor, data)

    for writes in range(1000):
        left, done = writes, 0
        folder = tmp_path / str(writes)
        monkeypatch.setattr(os, "write", failing)
        try:
            with GoldenWriter(folder, provenance) as writer:
                for step in steps:
                    writer.write_step(step)
                    done += 1
        except UsageError as error:
            said = str(error)
        else:
            break
        finally:
            monkeypatch.undo()
        assert said.startswith(f"{folder}/")
        assert "no space left" in said
        assert "--resume" in said
        assert not list(folder.glob(".*"))  # nothing half written takes up space
        if writes == 0:
            continue
        golden = Golden.open(folder)
        assert golden.steps == STEPS[:done]
        assert not golden.complete
        for index in golden.steps:
            golden.read_step(index)
    assert writes > 20


LIMITED = """
import pickle, resource, sys
import parity.golden
from parity.errors import UsageError
arguments = pickle.loads(sys.stdin.buffer.read())
writer = parity.golden.GoldenWriter(sys.argv[1], arguments["provenance"])
writer.write_step(arguments["steps"][0])
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    writer.write_step(arguments["steps"][1])
except UsageError as error:
    print(error)
"""


def test_a_limit_that_the_system_itself_enforces(tmp_path: Path, provenance: Provenance, make_step: Make) -> None:
    import pickle

    ran = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)],
        input=pickle.dumps({"provenance": provenance, "steps": [make_step(-1), make_step(0)]}),
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert ran.stdout.decode().startswith(f"{tmp_path}/step-0000.safetensors: no space left (File too large)")
    assert Golden.open(tmp_path).steps == (-1,)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["before.safetensors", "golden.json"]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_small_file_system_that_is_really_full(tmp_path: Path, provenance: Provenance, make_step: Make) -> None:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=192k", "tmpfs", str(tmp_path)], capture_output=True)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        writer = GoldenWriter(tmp_path / "g", provenance)
        with pytest.raises(UsageError, match="no space left"):  # noqa: PT012 (which step fills it depends)
            for step in range(100):
                writer.write_step(make_step(step))
        golden = Golden.open(tmp_path / "g")
        assert 0 < len(golden.steps) < 100
        assert golden.read_step(golden.steps[-1]).records
        assert [problem.file for problem in verify(tmp_path / "g")] == ["golden.json"]
        del golden
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)
