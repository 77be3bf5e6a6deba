"""Several processes that run the candidate together: one golden of them all, and none that waits for ever."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parity.compare.diff import diff
from parity.golden import Golden
from tests.conftest import TINY

pytestmark = pytest.mark.slow

PIPES: dict[str, Any] = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "golden" / TINY


def start(*programs: list[str], devices: int = 1) -> list[tuple[int, str, str]]:
    """Run these side by side with so many devices each; (exit code, stdout, stderr) of each."""
    flags = f"--xla_force_host_platform_device_count={devices}" if devices > 1 else ""
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, *p], text=True, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for p in programs
    ]
    try:
        told = [p.communicate(timeout=800) for p in started]
    finally:
        for process in started:
            process.kill()
    return [(p.returncode, out, err) for p, (out, err) in zip(started, told, strict=True)]


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.parametrize(
    ("count", "mesh"),
    [
        (2, "dp=1,sp=2,tp=2"),
        pytest.param(4, "dp=2,sp=2,tp=2", marks=pytest.mark.skipif("KILLS" not in os.environ, reason="make kills")),
    ],
)
def test_several_processes_of_two_devices_record_one_golden(tmp_path: Path, count: int, mesh: str) -> None:
    where, coordinator = tmp_path / "golden", free_port()

    def record(index: int) -> list[str]:
        options = f"--processes {count} --process {index} --coordinator {coordinator} --setting mesh={mesh}"
        stage1 = f"{GOLDEN}.embeddings.safetensors"
        return ["-m", "parity.cli", "record", str(where), "--side", "candidate", "--stage1", stage1, *options.split()]

    done = start(*map(record, range(count)), devices=2)
    assert [code for code, _, _ in done] == [0] * count, [err for _, _, err in done]
    assert ["1 step written" in err for _, _, err in done] == [True] + [False] * (count - 1)
    told = Golden.open(where).provenance
    assert (told.devices, told.shard) == (("cpu x 2",) * count, (0, 1))
    result = diff(str(GOLDEN), str(where))
    assert result.verdict == "pass", result.reason
    assert len(result.sites) > 150
    # Not one process's share: tensors that are split over both are whole in it, their sketches those of the whole.
    ours, theirs = (Golden.open(w).read_step(0) for w in (GOLDEN, where))
    sketches = {r.key: r.sketch for r in ours.records if r.sketch is not None}
    for r in theirs.records:
        if r.key.site == "transformer_blocks.1.attention:in.query" and r.sketch is not None:
            np.testing.assert_allclose(r.sketch, sketches[r.key], atol=1e-4 * np.linalg.norm(r.sketch))


FAILING = """
import os, signal, subprocess, sys, time
from parity.errors import UnjudgedError
from parity.paths.worker.supervise import supervised
if "supervised" in sys.argv:
    supervised()
from parity.paths.worker.processes import Processes, together

index, how = int(sys.argv[1]), sys.argv[2]
with together(Processes(3 if index and how == "miscounted" else 2, index, sys.argv[3], 4.0)):
    if how == "first dies":  # once both are within: one that still joins fails in JAX's own words
        from jax._src import distributed
        distributed.global_state.client.wait_at_barrier("within", 60_000)
    if index == 0 and how == "first dies":
        os.kill(os.getpid(), 9)
    if index == 1 and how == "stands still":
        subprocess.Popen(["sh", "-c", f"sleep 8; kill -KILL {os.getpid()}"], stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL)
        os.kill(os.getpid(), signal.SIGSTOP)
    if index == 1 and how == "interrupted":
        os.kill(os.getpid(), signal.SIGINT)
    if index == 1 and how == "slow":
        time.sleep(8)
    if index == 1 and how == "raise":
        raise UnjudgedError("the site was not reached")
    if index == 1 and how == "unforeseen":
        raise ValueError("nobody thought of it")
    if index == 1 and how == "die":
        os.kill(os.getpid(), 9)
    if how != "slow":
        time.sleep(200)
"""


@pytest.mark.parametrize(
    ("how", "codes", "message"),
    [
        ("raise", [125, 125], "parity: process 1 stopped: the site was not reached"),
        ("unforeseen", [125, 125], "parity: process 1 stopped: this is a defect of parity: ValueError"),
        ("die", [125, -9], "parity: process 1 has not been heard of for 4 s (--process-timeout)"),
        ("stands still", [125, -9], "parity: process 1 has not been heard of for 4 s (--process-timeout)"),
        ("interrupted", [130, 130], "parity: process 1 stopped: interrupted"),
        ("miscounted", [2, 2], "parity: process 1 stopped: --processes 3 here, and 2 in process 0: give all the same"),
        ("absent", [125], "parity: all 2 processes did not meet at"),
    ],
)
def test_a_process_that_stops_ends_the_others(how: str, codes: list[int], message: str) -> None:
    coordinator = free_port()
    done = start(*(["-c", FAILING, str(i), how, coordinator] for i in range(len(codes))))
    assert [code for code, _, _ in done] == codes
    assert message in done[0][2]
    assert "Traceback" not in done[0][2]


def test_a_first_process_that_is_killed_ends_the_others() -> None:
    """JAX aborts them, which cannot be caught; the process that watches over each says so."""
    coordinator = free_port()
    began = time.monotonic()
    first, second = start(*(["-c", FAILING, str(i), "first dies", coordinator, "supervised"] for i in range(2)))
    assert time.monotonic() - began < 60, "in bounded time"
    assert (first[0], second[0]) == (125, 125)
    assert first[2].endswith(
        "parity: this process was ended by SIGKILL, which is not parity's doing: memory that ran out ends a process "
        "like that\n"
    )
    assert "parity: this process was ended by SIGABRT, as JAX does where process 0" in second[2]
    assert "Traceback" not in second[2]


def test_a_process_that_is_slow_is_waited_for() -> None:
    """Longer than the time limit, since it says that it is alive."""
    coordinator = free_port()
    assert [code for code, _, _ in start(*(["-c", FAILING, str(i), "slow", coordinator] for i in range(2)))] == [0, 0]
