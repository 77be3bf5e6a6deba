"""A worker's requests and answers, with a stand-in for the process that computes; and whose fault an error is."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

from parity.errors import InconclusiveError, UsageError
from parity.models.family import Family
from parity.models.folder import Case, GenerationSpec
from parity.paths.live import Host, checkpoint
from parity.paths.plan import Array, Plan, Source, Spec
from parity.paths.worker import process
from parity.paths.worker.process import ProcessSide, Worker
from parity.records import Key
from parity.settings import parse

CHILD = """
import os, sys
from multiprocessing.connection import Connection
import numpy as np
from parity.records import Key, Record, StepRecords
from parity.paths.worker import wire
from parity.signals import end_with
end_with(os.getppid())
requests, answers = Connection(int(sys.argv[1]), writable=False), Connection(int(sys.argv[2]), readable=False)
step = 0
while True:
    try:
        request = wire.receive(requests)
    except wire.BrokenWireError:
        os._exit(0)
    do, answer = request["do"], {"ok": None}
    if do == "next":
        value = np.zeros(250_000, np.float32)
        key = Key("transformer", step, "cond", "block:out")
        answer, step = {"ok": StepRecords(step, (Record(key, "tensor", (8,), "float32", value=value),))}, step + 1
    elif do == "open" and request["args"]["spec"].source.model == "gone":
        os._exit(3)
    elif do == "facts":
        answer = {"error": {"code": 0, "text": "KeyError: 1"}}
    wire.send(answers, answer)
"""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Worker]:
    def launch(read: int, write: int, out: int) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-c", CHILD, str(read), str(write)]
        return subprocess.Popen(words, pass_fds=(read, write), stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    monkeypatch.setitem(process.LAUNCHERS, "candidate", launch)
    return lambda: Worker("candidate")


@pytest.fixture
def worker(started: Callable[[], Worker]) -> Iterator[Worker]:
    with contextlib.closing(started()) as one:
        yield one


def test_a_worker_outlives_the_thread_that_started_it(started: Callable[[], Worker]) -> None:
    workers: list[Worker] = []

    def start() -> None:
        workers.append(started())
        workers[0].ask("ready")

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    time.sleep(0.2)
    with contextlib.closing(workers[0]) as worker:
        assert worker.ask("ready") is None


def opened(worker: Worker, model: str = "any") -> ProcessSide:
    return worker.open(Spec(role="candidate", source=Source(model=model), settings={}))


def test_large_request_while_a_large_answer_waits_is_answered(worker: Worker) -> None:
    side = opened(worker)
    stream = side.observe(Plan())
    next(stream)  # the next step is asked for already: the child writes 1 MB that nobody has asked to see
    key, given = Key("transformer", 0, "cond", "block:out"), Array(np.zeros(5_000_000, np.float32), "float32")
    answers: list[object] = []
    asking = threading.Thread(target=lambda: answers.append(side.observe(Plan(follow={key: given}))), daemon=True)
    asking.start()
    asking.join(30)
    assert len(answers) == 1
    assert next(stream).step == 1


def test_worker_that_ends_while_a_side_opens_is_an_error_of_its_side(worker: Worker) -> None:
    with pytest.raises(UsageError, match="the candidate's process ended with exit code 3"):
        opened(worker, "gone").facts()
    with pytest.raises(UsageError, match="exit code 3"):
        opened(worker).facts()


def test_port_that_ends_its_process_is_an_error_of_its_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ends.py"
    file.write_text("import os\nos.fork() or os._exit(0)\nprint('goes on', flush=True)\nos._exit(7)\n")
    with contextlib.closing(Worker("candidate")) as real, pytest.raises(UsageError, match=r"exit code 7 at ends\.py:4"):
        real.port("--port", f"{file}:build")
    assert capfd.readouterr().err.split("\n")[0] == "candidate: goes on"  # and none of the stack


# --- What libraries raise on a checkpoint of somebody's own is its fault; on parity's own model it is a defect


def test_a_failure_is_said_of_the_checkpoint_with_its_place() -> None:
    said = r"'mine' cannot be run: ZeroDivisionError: 0\.0 cannot be raised \(test_worker\.py:\d+\); is"
    with pytest.raises(UsageError, match=said), checkpoint(Source(model="mine")):
        raise ZeroDivisionError("0.0 cannot be raised\nto a negative power")


def test_errors_that_are_explained_and_defects_pass() -> None:
    with pytest.raises(InconclusiveError, match="explained"), checkpoint(Source(model="mine")):
        raise InconclusiveError("explained")
    with pytest.raises(ZeroDivisionError), checkpoint(Source(model="tiny-hunyuan-video-1.5")):
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), checkpoint(Source(model="port.py", alone=True)):
        raise ZeroDivisionError


# --- What several sides of one process share


def test_embeddings_are_those_of_the_inputs_that_a_side_names() -> None:
    host, case = Host(), Case("mine", Path(), {}, GenerationSpec(), ())

    def encoded(file: str, value: float) -> float:
        family = SimpleNamespace(conditions=lambda *_: {"cond": {"x": torch.tensor(value)}})
        spec = Spec(role="reference", source=Source(model="mine", inputs=file), settings={})
        return float(host.encoded(spec, cast(Family, family), case, parse("torch"))["cond"]["x"])

    assert [encoded("one", 1.0), encoded("two", 2.0), encoded("one", 3.0)] == [1.0, 2.0, 1.0]
