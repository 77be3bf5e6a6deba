"""`parity compile` but for the compiler: from options to the document, with recorded programs in its place."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from typer.testing import CliRunner

from parity import cli
from parity.tpu import compiled, compiler
from parity.tpu.request import Answer, Request
from tests.tpu.recorded import VMEM, answer

pytest.importorskip("torchax")

Answered = Callable[[Request], Answer]


def recorded(request: Request) -> Answer:
    return answer("plain" if request.sites == "none" else "observed")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, Any, list[Request]]]:
    """`run(*options, answered=...)`: exit code, document or text on stderr, and the requests that were compiled."""

    def called(*options: str, answered: Answered = recorded) -> tuple[int, Any, list[Request]]:
        requests: list[Request] = []

        def compile_all(given: Sequence[Request], limit: float, say: object) -> list[Answer]:
            requests.extend(given)
            return [answered(one) for one in given]

        monkeypatch.setattr(compiled, "compile_all", compile_all)
        monkeypatch.setattr(compiled, "require_compiler", lambda: None)
        done = CliRunner().invoke(cli.app, ["compile", *options])
        shown = done.stdout if done.stdout else done.stderr
        return done.exit_code, json.loads(shown) if shown.startswith("{") else shown, requests

    return called


def test_the_document(run: Callable[..., Any]) -> None:
    code, found, requests = run("--topology", "v6e:2x2", "--candidate", "mesh=dp=1,sp=1,tp=4", "--json")
    assert code == 0
    assert [r.sites for r in requests] == ["none", "blocks"]
    assert found["compiles"]
    assert found["settings"] == {"mesh": "dp=1,sp=1,tp=4"}
    plain, observed = found["programs"]
    assert plain["memory"]["total"] == 262144 + 131072 + 119808
    assert plain["products"][0]["precision"] == "float32, six passes"
    assert plain["collectives"] == [{"kind": "all-reduce", "count": 1, "bytes": 131072}]
    assert plain["roofline_estimate"]["bound"] == "memory"
    effect = found["observer_effect"]
    assert effect["product_units"] == {"before": 2, "after": 2, "same": 1, "cut": 0}
    assert effect["bytes_accessed_ratio"] == pytest.approx(1.5)
    assert effect["extra_code"] == observed["memory"]["code"] - plain["memory"]["code"]
    assert found["against"] is None


def test_in_words(run: Callable[..., Any]) -> None:
    code, text, _ = run("--topology", "v6e:2x2")
    assert code == 0
    assert "compiles: yes" in text
    assert "1 of 2 units with a product unchanged (changed: 1 in blocks.*.up), 1.50 x the bytes accessed" in text
    assert "estimate of the least time" in text


def test_without_sites_there_is_one_program(run: Callable[..., Any]) -> None:
    _, found, requests = run("--topology", "v6e:2x2", "--sites", "none", "--json")
    assert len(requests) == len(found["programs"]) == 1
    assert found["observer_effect"] is None


def test_a_second_program_with_other_settings(run: Callable[..., Any]) -> None:
    given = ("--candidate", "dtype=bfloat16", "--candidate", "norm_dtype=float32")
    _, found, requests = run("--topology", "v6e:2x2", "--sites", "none", *given, "--against", "dtype=float32", "--json")
    assert [r.candidate for r in requests] == [
        ("dtype=bfloat16", "norm_dtype=float32"),
        ("norm_dtype=float32", "dtype=float32"),
    ]
    assert found["against"]["product_units"] == {"before": 2, "after": 2, "same": 2, "cut": 0}


def test_a_refusal(run: Callable[..., Any]) -> None:
    def refused(request: Request) -> Answer:
        return answer(refusal=VMEM) if request.sites != "none" else answer("plain")

    code, found, _ = run("--topology", "v6e:2x2", "--json", answered=refused)
    assert (code, found["compiles"], found["observer_effect"]) == (1, False, None)
    assert [p["compiles"] for p in found["programs"]] == [True, False]
    assert "42.47 MiB too much" in found["programs"][1]["refusal"]["sentence"]
    code, text, _ = run("--topology", "v6e:2x2", answered=lambda request: answer(refusal=VMEM))
    assert code == 1
    assert "42.47 MiB too much" in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--topology", "v7:2x2"], "unknown chip"),
        (["--topology", "v6e:2x2", "--candidate", "mesh=dp=2,sp=1,tp=4"], "needs 8 devices, and v6e:2x2 has 4"),
        (["--topology", "v6e:2x2", "--candidate", "dtype=float8"], "dtype"),
        (["--topology", "v6e:2x2", "--against", "dtype=float8"], "dtype"),
        (["--topology", "v6e:2x2", "--frames", "0"], "--frames must be at least 1"),
        (["--topology", "v6e:2x2", "--timeout", "nan"], "--timeout must be above 0"),
    ],
)
def test_a_mistake_is_told_before_anything_is_compiled(run: Callable[..., Any], options: list[str], said: str) -> None:
    code, text, requests = run(*options)
    assert (code, requests) == (2, [])
    assert said in text


def test_without_a_compiler_the_command_that_adds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(compiler.sys, "platform", "linux")
    monkeypatch.setattr(compiler.platform, "machine", lambda: "x86_64")
    with pytest.raises(compiler.UsageError, match=r"pip install 'tpu-parity\[aot\]'"):
        compiler.require_compiler()
    monkeypatch.setattr(compiler.platform, "machine", lambda: "arm64")
    with pytest.raises(compiler.UsageError, match="x86-64"):
        compiler.require_compiler()
