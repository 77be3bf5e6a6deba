"""Several processes that run the candidate together: one golden of them all, and none that waits for ever."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parity.compare.diff import diff
from parity.golden import Golden
from tests.conftest import TINY

PIPES: dict[str, Any] = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "golden" / TINY


def start(*programs: list[str]) -> list[tuple[int, str, str]]:
    """Run these side by side on one device each; (exit code, stdout, stderr) of each."""
    environment = {**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, *p], text=True, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for p in programs
    ]
    try:
        told = [p.communicate(timeout=300) for p in started]
    finally:
        for process in started:
            process.kill()
    return [(p.returncode, out, err) for p, (out, err) in zip(started, told, strict=True)]


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_two_processes_record_one_golden(tmp_path: Path) -> None:
    where, coordinator = tmp_path / "golden", free_port()

    def record(index: int) -> list[str]:
        options = f"--processes 2 --process {index} --coordinator {coordinator} --setting mesh=dp=1,sp=1,tp=2"
        stage1 = f"{GOLDEN}.embeddings.safetensors"
        return ["-m", "parity.cli", "record", str(where), "--side", "candidate", "--stage1", stage1, *options.split()]

    first, second = start(record(0), record(1))
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    assert "1 steps written" in first[2]
    assert "written" not in second[2]
    told = Golden.open(where).provenance
    assert (told.devices, told.shard) == (("cpu x 1", "cpu x 1"), (0, 1))
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
import os, sys, time
from parity.errors import UnjudgedError
from parity.paths.worker.processes import Processes, together

index, how = int(sys.argv[1]), sys.argv[2]
with together(Processes(2, index, sys.argv[3], 4.0)):
    if index == 1 and how == "raise":
        raise UnjudgedError("the site was not reached")
    if index == 1 and how == "unforeseen":
        raise ValueError("nobody thought of it")
    if index == 1 and how == "die":
        os.kill(os.getpid(), 9)
    time.sleep(200)
"""


@pytest.mark.parametrize(
    ("how", "codes", "message"),
    [
        ("raise", [125, 125], "parity: process 1 stopped: the site was not reached"),
        ("unforeseen", [125, 125], "parity: process 1 stopped: this is a defect of parity: ValueError"),
        ("die", [125, -9], "parity: process 1 has not been heard of for 4 s (--process-timeout)"),
        ("absent", [125], "parity: all 2 processes did not meet at"),
    ],
)
def test_a_process_that_stops_ends_the_others(how: str, codes: list[int], message: str) -> None:
    coordinator = free_port()
    done = start(*(["-c", FAILING, str(i), how, coordinator] for i in range(len(codes))))
    assert [code for code, _, _ in done] == codes
    assert message in done[0][2]
    assert "Traceback" not in done[0][2]
