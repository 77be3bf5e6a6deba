"""The examples: each port agrees with its original, and the faults that it offers are found."""

from __future__ import annotations

import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import parity
from parity.compare.diff import diff
from parity.models.registry import DEFAULT_MODEL, resolve_model
from tests.support.cli import cli

pytestmark = pytest.mark.slow

pytest.importorskip("flax")
torchax = pytest.importorskip("torchax")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / name))


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_a_flax_decoder_with_channels_last() -> None:
    names = example("flax_vae.py")
    decoder, port, scaling = names["Decoder"](), names["FlaxDecoder"], names["SCALING"]
    latents = drawn(1, names["LATENT"], 3, 4, 6) / scaling
    layout = {"layout": "channels_last"}
    parity.assert_parity(decoder, port(decoder.state_dict()), latents, **layout)
    result = parity.compare(decoder, port(decoder.state_dict(), frame_wise=True), latents, **layout)
    assert result.verdict == "fail"
    assert result.origin is not None
    assert result.origin.key.module == "attention"
    assert result.origin.birth == "module"


def test_a_loop_in_jax() -> None:
    names = example("jax_loop.py")
    model = names["Transformer"]()
    inputs = {"latents": drawn(1, 12, names["WIDTH"]), "cond": drawn(1, names["WIDTH"]), "uncond": drawn(1, 16) / 2}
    loop, port = names["torch_loop"](model), names["jax_loop"]
    parity.assert_parity(loop, port(model.state_dict()), inputs)
    for fault in ({"schedule": "bfloat16"}, {"swapped": True}):
        assert parity.compare(loop, port(model.state_dict(), **fault), inputs).verdict == "fail", fault


def told(document: str, file: str) -> list[list[str]]:
    """The commands that a document gives for an example, in words."""
    lines = (EXAMPLES.parent / "docs" / document).read_text().splitlines()
    return [shlex.split(line) for line in lines if re.match(rf"\S.* examples/{file}[: ]", line) and "`" not in line]


@pytest.mark.parametrize("code", [0, 1])
def test_a_model_under_its_authors_names(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES.parent)
    words = told("your-model.md", "native_hunyuan.py")[code]
    found = cli(*words[1:], "--checks", "logic", "--format", "json", code=code).json
    sites = {site["site"] for site in found["sites"] if site["verdict"] == "pass"}
    assert {"context_embedder:out", "transformer_blocks.0:in.encoder_hidden_states"} <= sites
    if not code:
        assert {"transformer_blocks.3.attn.attention:out@image", "proj_out:out"} <= sites
        return
    assert found["origin"]["site"] == "transformer_blocks.0.attn.attention:out@image"
    assert found["origin"]["introduced"] == "module"


@pytest.fixture
def operators() -> Iterator[dict[Any, Any]]:
    """The operator table, put back as it was."""
    table = torchax.default_env()._ops
    before = dict(table)
    yield table
    table.clear()
    table.update(before)


def test_stages_through_torchax(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operators: dict[Any, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    names, model = example("torchax_stages.py"), str(resolve_model(DEFAULT_MODEL))
    gpu, tpu = str(tmp_path / "gpu"), str(tmp_path / "tpu")
    places = {"MODEL": model, "OUT": str(tmp_path), "gpu": gpu, "tpu": tpu}
    for words in told("two-machines.md", "torchax_stages.py"):
        at = words.index("python")
        for variable, value in (word.split("=") for word in words[:at]):
            monkeypatch.setenv(variable, places[value])
        names["main"]([places.get(word, word) for word in words[at + 2 :]])
    assert f"parity diff {gpu} {tpu}" in capfd.readouterr().err
    assert operators[torch.nn.functional.scaled_dot_product_attention].func is names["attention"]

    found = diff(gpu, tpu)
    assert found.verdict == "fail"
    assert found.origin is not None
    assert (found.origin.key.step, found.origin.key.module) == (0, "transformer_blocks.0.attn.attention")
    assert found.origin.birth == "module"
    causes = " / ".join(cause.cause for cause in found.causes)
    assert "132.00 phantom keys on cond = its 60 padded text tokens and the 72 that fill 184 tokens" in causes
    assert "timesteps are rounded to bfloat16: 1 of 50 repeat the one before" in causes
    born = {d.key.module for d in found.sites if d.verdict == "fail" and d.birth in ("input", "module")}
    assert born == {"schedule", "transformer_blocks.0.attn.attention"}, "everything else is as it should be"

    done = cli("explain", gpu, tpu, code=1)
    assert "keep the schedule in float32" in done.out
    assert "recorded in a script" in done.out

    monkeypatch.delenv("PARITY_RECORD")
    names["stage2"](Path(model), tmp_path, 1)
    names["stage3"](Path(model), tmp_path)
    assert (tmp_path / "frames.safetensors").stat().st_size > 3 * 9 * 64 * 96
