"""Ports as strangers write them, without a setting declared: harmless differences neither fail nor hide an origin."""

from __future__ import annotations

from pathlib import Path

from parity.compare.result import Result
from parity.paths.live import InProcess
from tests import strangers
from tests.test_run_ports import compare


def run(folder: Path, **how: str) -> Result:
    return compare(None, strangers.write(folder, **how), model=strangers.MODEL, openers=InProcess(), timeout=300.0)


def test_another_text_without_vision_tokens_is_paired_by_its_mask(tmp_path: Path) -> None:
    result = run(tmp_path, order="interleaved")
    assert result.verdict == "pass", result.reason
    text = {d.key.site: d for d in result.sites if d.key.branch == "cond" and d.verdict == "pass"}
    for site in ("transformer_blocks.0:in.encoder_hidden_states", "transformer_blocks.3.attn.attention:out@text"):
        ours, theirs = text[site].shapes
        assert ours[1] > theirs[1], "the reference has vision tokens, which are padding"
    assert "transformer_blocks.0:in.attention_mask" in text, "arguments are renamed as modules are"


def test_zeroed_keys_are_placed_at_the_first_joint_attention_whatever_the_order_of_the_text(tmp_path: Path) -> None:
    result = run(tmp_path, order="valid_first", attend="zeroed")
    assert (result.verdict, result.failed) == ("fail", "structure")
    assert result.origin is not None
    assert result.origin.key.site == "transformer_blocks.0.attn.attention:out@image"
    assert result.origin.birth == "module"
    assert result.differing_settings == ()
