"""What the compiling process answers: what is kept of a program, and what is this request's alone."""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from parity.tpu import compiler
from parity.tpu.child import ANSWER, PROGRAM
from parity.tpu.request import Request
from tests.tpu.recorded import answer


def test_the_number_of_calls_is_the_request_s_and_not_the_kept_program_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A larger video has more tiles, and each of them the program of a smaller one's."""
    kept = {name: value for name, value in asdict(answer("plain")).items() if name not in ("text", "cached")}
    (tmp_path / ANSWER).write_text(json.dumps({**kept, "calls": 4}))
    (tmp_path / PROGRAM).write_bytes(gzip.compress(answer("plain").text.encode()))
    child = f"import json, sys; sys.stdin.read(); print(json.dumps(dict(answer={str(tmp_path)!r}, calls=9)))"
    monkeypatch.setattr(compiler, "_PROGRAM", child)
    request = Request(model="tiny", topology="v6e:2x2", stage="vae")
    (found,) = compiler.compile_all([request], 60.0, lambda text, done=None, total=None: None)
    assert (found.calls, found.cached) == (9, True)
