"""`docs/golden-format.md` says what is so: its code runs, and its tables name the fields that there are."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from parity.golden import GoldenWriter, Provenance, Record, StepRecords, fingerprint
from parity.golden.disk import codec, format

DOC = (Path(__file__).parents[2] / "docs" / "golden-format.md").read_text()


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", DOC, re.DOTALL))
def test_the_code_runs(
    code: str,
    tmp_path: Path,
    provenance: Provenance,
    make_step: Callable[..., StepRecords],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with GoldenWriter(tmp_path / "run-7", provenance) as writer:
        writer.write_step(make_step(0))
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert "blocks.0:out" in capsys.readouterr().out


def test_the_tables_name_every_field(tmp_path: Path, provenance: Provenance) -> None:
    named = set(re.findall(r"`([^`]+)`", "\n".join(line.split("|")[1] for line in DOC.splitlines() if line[:1] == "|")))
    GoldenWriter(tmp_path, provenance)
    document = json.loads((tmp_path / "golden.json").read_text())
    fields = {*document, *document["provenance"], "key", "scalar", "<i>.sketch", "<i>.value", "provenance"}
    fields |= {field.name for field in dataclasses.fields(Record)} - {"sketch", "value"}
    assert named == fields


def test_the_numbers(tmp_path: Path) -> None:
    import hashlib

    import numpy as np

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert fingerprint(x) == hashlib.sha256(b"float32[2, 3]:" + x.tobytes()).hexdigest()[:16]
    assert format.FORMAT == 1
    assert format.MAX_MANIFEST == 64 * 2**20
    assert codec.MAX_RECORDS == codec.MAX_STEP == 10**6
