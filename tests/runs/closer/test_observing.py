"""What observing changes in a TPU's program is told; here of a CPU's, which is taken for one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from parity.cli import app
from parity.compare.result import Result
from parity.errors import UsageError
from parity.paths.side import Pair
from parity.paths.worker.process import RemoteError
from parity.runs.closer import observing as module
from parity.runs.closer.observing import observing, on_tpu
from parity.runs.request import Request
from parity.settings import parse
from tests.ports import write
from tests.support.made import because

PASSED = Result("pass", None, because(""))
REQUEST = Request("tiny", parse("torch"), parse("torchax"))
NOTE = re.compile(
    r"observing, in the candidate's program: (\d+) of (\d+) units that multiply as without, (\d+) cut, (\d+) others"
    r".*; bytes accessed ([\d.]+) x; temporaries ([\d.]+) x"
)


def facts(*devices: str, compiled: bool = True) -> Any:
    return SimpleNamespace(provenance=SimpleNamespace(devices=devices), compiled=compiled)


def test_what_a_tpu_is() -> None:
    assert on_tpu(facts("TPU v6 lite x 8"))
    assert not on_tpu(facts("cpu x 8"))
    assert not on_tpu(facts())


@pytest.mark.parametrize("candidate", [facts("cpu"), facts("TPU v4", compiled=False)], ids=["cpu", "eager"])
def test_nothing_is_compiled_without_need(candidate: Any) -> None:
    pair: Any = SimpleNamespace(facts=Pair(None, candidate))
    assert observing(PASSED, pair, REQUEST, lambda *_: None) is PASSED


@pytest.mark.parametrize("error", [UsageError("the candidate's process ended"), RemoteError("no memory")])
def test_a_verdict_is_not_lost_to_what_cannot_be_told(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def observe(*_: object, **__: object) -> Iterator[None]:
        raise error

    monkeypatch.setattr(module, "holding", lambda *_: None)
    sides = Pair(None, SimpleNamespace(observe=observe))
    pair: Any = SimpleNamespace(facts=Pair(None, facts("TPU v4")), sides=sides, plan=lambda request: None)
    found = observing(PASSED, pair, REQUEST, lambda *_: None)
    assert found.verdict == "pass"
    assert str(error) in found.notes[-1].text


@pytest.mark.parametrize("own", [True, False], ids=["parity's own", "a port in JAX"])
def test_a_run_tells_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool) -> None:
    pytest.importorskip("torchax")
    monkeypatch.setattr(module, "on_tpu", lambda facts: True)
    reference, candidate = write(tmp_path)
    ports = ["--reference-path", reference, "--candidate-path", candidate]
    done = CliRunner().invoke(app, ["run", "--json", *([] if own else ports)])
    assert done.exit_code == 0, done.output
    (found,) = filter(None, map(NOTE.match, json.loads(done.stdout)["notes"]))
    same, before, cut, others = map(int, found.groups()[:4])
    assert 0 < same + cut + others == before
    assert min(map(float, found.groups()[4:])) > 1.0
