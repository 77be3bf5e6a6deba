"""`parity bisect steps` as a command: what is printed, resumed and refused; the judge is fake."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from parity import cli
from parity.bisect.strategy import Outcome
from parity.golden import GoldenWriter, Provenance, StepRecords

pytest.importorskip("torchax")

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """`call("steps", ...)`: exit code, stdout, stderr, with the state in `tmp_path / "s"`."""
    monkeypatch.setattr("parity.commands.bisect.quieten", lambda: None)

    def made(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["parity", "bisect", *arguments, "--state", f"{tmp_path}/s"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        code = ended.value.code
        return code if isinstance(code, int) else 0, captured.out, captured.err

    return made


class Steps:
    def __init__(self, golden: Any, side: Any, carried: Any) -> None: ...

    def alone(self, step: int) -> tuple[Outcome, str]:
        return ("bad", "40 x") if step >= 2 else ("good", "0.5 x")

    def free(self, known: int) -> Iterator[tuple[Outcome, str]]:
        return (self.alone(step) for step in range(known, 4))


def test_steps(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with GoldenWriter(tmp_path / "golden", Provenance("reference", "torch", "its model", {}, 5, 4)) as writer:
        for step in range(4):
            writer.write_step(StepRecords(step, ()))
    loaded: list[Any] = []
    monkeypatch.setattr("parity.bisect.steps_judge.open_against", lambda *given: loaded.append(given[1]))
    monkeypatch.setattr("parity.bisect.steps_judge.StepsJudge", Steps)
    words = ("steps", "--golden", f"{tmp_path}/golden")
    code, out, err = call(*words)
    assert code == 0, err
    assert out.splitlines() == [
        "good, alone: 0, 1",
        "bad, alone: 2, 3",
        "good, of the free run: 0, 1",
        "bad, of the free run: 2",
        "run from the reference's latents the first step that differs is 2; the free run leaves its floor at step 2 "
        "(7 probes of 4 steps)",
    ]
    assert loaded == ["its model"]
    assert "step 1 alone: good (0.5 x); 2 steps left" in err.splitlines()
    assert "step 1 of the free run: good (0.5 x); 2 steps left" in err.splitlines()
    document = json.loads(call(*words, "--json", "--all")[1])
    assert (document["first_alone"], document["first_free"], len(document["probes"])) == (2, 2, 7)
    assert call(*words, "--no-free")[1].splitlines()[-1].endswith("differs is 2 (7 probes of 4 steps)")
    monkeypatch.setattr(Steps, "alone", lambda self, step: ("good", "0.5 x"))
    monkeypatch.setattr(Steps, "free", lambda self, known: [("bad", "40 x")])
    assert "no step was seen to differ: what differs is made between the steps" in call(*words, "--restart")[1]
    assert call(*words, "--steps", "4")[2].startswith("parity: --steps and --golden exclude each other")
    assert call(*words, "--model", "another")[2].startswith(f"parity: {tmp_path}/s: this state file belongs to another")
    with GoldenWriter(tmp_path / "golden", Provenance("reference", "torch", "its model", {}, 5, 4), overwrite=True):
        pass
    assert "golden is" in call(*words)[2]  # the same name, another content: another question
