"""docs/python.md: its blocks, run one after the other as one script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from documents import DOCS, blocks

pytestmark = pytest.mark.slow

pytest.importorskip("torchax")

TEXT = (DOCS / "python.md").read_text()


def test_the_script_prints_what_the_document_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    known: dict[str, Any] = {"__name__": "python_doc"}
    for block in blocks(TEXT, "python"):
        exec(compile(block, "python.md", "exec"), known)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "fail 0.down:out"
    assert "x the rounding floor" in printed[1]
    assert printed[2].startswith("first divergence: transformer_blocks.0.attn.attention output, image tokens")
    assert printed[3].startswith("attention.mask - ")
    assert printed[4] == "fail"
    assert [line.split(",")[0] for line in printed[5:]] == ["exact: pass", "none: fail", "zero_kv_rescaled: pass"]
