"""Explaining a kept run looks at the attention call that the run came to, not at the block that its records show."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from parity.causes.request import ExplainRequest
from parity.golden.records import Key

BLOCK = Key("transformer", 0, "cond", "blocks.1:out")
INSIDE = "blocks.1.attn.attention:out"


def kept(folder: Path, origin: object) -> ExplainRequest:
    (folder / "result.json").write_text(json.dumps({"origin": origin}))
    return ExplainRequest("a", "b", kept=folder)


def test_the_place_inside_the_origin_that_a_kept_run_tells(tmp_path: Path) -> None:
    told = {"stage": "transformer", "step": 0, "branch": "cond", "site": INSIDE, "call": 0}
    assert kept(tmp_path, told).looked_at(BLOCK) == replace(BLOCK, site=INSIDE)
    assert kept(tmp_path, {**told, "step": 1}).looked_at(BLOCK) == BLOCK
    assert kept(tmp_path, {**told, "site": "blocks.2.attn.attention:out"}).looked_at(BLOCK) == BLOCK


@pytest.mark.parametrize("origin", [None, 3, {}, {"site": INSIDE}, {"site": INSIDE, "step": "x", "call": 0}])
def test_a_document_that_does_not_tell_changes_nothing(origin: object, tmp_path: Path) -> None:
    assert kept(tmp_path, origin).looked_at(BLOCK) == BLOCK
    assert ExplainRequest("a", "b").looked_at(BLOCK) == BLOCK


def test_the_reason_of_a_run_that_came_to_another_place_is_told(tmp_path: Path) -> None:
    """A block's record agrees on its way in; the run saw more of it."""
    site = "blocks.1.norm1:in.emb"
    other = {"site": site, "step": 0, "call": 0}
    request = ExplainRequest("a", "b", kept=tmp_path)
    (tmp_path / "result.json").write_text(json.dumps({"origin": other, "reason": "first divergence: elsewhere"}))
    assert request.closer(BLOCK) == "first divergence: elsewhere"
    assert request.closer(replace(BLOCK, step=1)) == ""
    assert request.closer(replace(BLOCK, site=site)) == ""
    assert ExplainRequest("a", "b").closer(BLOCK) == ""
