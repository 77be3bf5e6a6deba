"""What a script's text encoders round by: it stands in the floors of what the transformer is given."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("diffusers")

from parity.golden import Golden
from parity.models.registry import resolve_model
from parity.recorder.floors.runs import KINDS
from parity.recorder.floors.texts import Texts
from tests.recorder.encoders import IDS, Pipeline, encoder, seen

SCRIPT = """
import sys
import torch
from diffusers import CogVideoXPipeline

pipe = CogVideoXPipeline.from_pretrained(sys.argv[1], torch_dtype=torch.bfloat16)
with torch.no_grad():
    text, negative = pipe.encode_prompt("a cat", "")
pipe.text_encoder = None
pipe(prompt_embeds=text, negative_prompt_embeds=negative, num_inference_steps=1, height=32, width=32, num_frames=9,
     generator=torch.Generator().manual_seed(0), output_type="latent")
"""


@pytest.fixture
def said() -> list[str]:
    return []


def test_rows_are_moved_to_another_runs_wherever_they_went(said: list[str]) -> None:
    model = encoder(torch.bfloat16)
    texts, out = seen(model, said, IDS)
    wide = model.double()(IDS)[0].detach()
    given = torch.cat([out[1, :3].flip(0), torch.zeros(2, 16, dtype=out.dtype)])[None]  # cut, turned, padded
    moved = texts.moved(given, "float64")
    assert moved is not None
    assert torch.allclose(moved[0, :3], wide[1, :3].flip(0), rtol=1e-5, atol=1e-6)
    assert torch.equal(moved[0, 3:], torch.zeros(2, 16, dtype=torch.float64))
    assert not torch.allclose(out[1, :3].double(), wide[1, :3], rtol=1e-4)  # it does round
    widened = texts.moved(out.float(), "float64")  # a script may cast
    assert widened is not None
    assert torch.allclose(widened, wide, rtol=1e-5, atol=1e-6)
    assert said == []


def test_layers_and_encoders_joined_by_channels_are_found(said: list[str]) -> None:
    """As Flux.2 stacks hidden states, and SD3 joins what two encoders pooled and fills up with zeros."""
    model = encoder(torch.bfloat16)
    texts, pipe = Texts(lambda: KINDS, said.append), Pipeline(model)
    pipe.layers = True
    with texts.watching(pipe):
        first, last = pipe.encode_prompt(IDS, output_hidden_states=True)
    states = model.double()(IDS, output_hidden_states=True).hidden_states
    wide = torch.cat([states[1], states[-1]], -1).detach()
    given = torch.cat([first, last, torch.zeros_like(first)], -1)
    moved = texts.moved(given, "float64")
    assert moved is not None
    assert torch.allclose(moved[..., :32], wide, rtol=1e-5, atol=1e-6)
    assert not moved[..., 32:].any()
    behind = texts.moved(torch.cat([torch.randn(2, 6, 16).bfloat16(), last], -1), "float64")
    assert behind is not None
    assert torch.allclose(behind[..., 16:], states[-1].detach(), rtol=1e-5, atol=1e-6)


def test_what_is_no_row_of_an_encoder_stays(said: list[str]) -> None:
    texts, out = seen(encoder(torch.float32), said, IDS)
    assert texts.moved(out * 1.5, "float64") is None
    assert texts.moved(torch.randn(1, 4, 8), "float64") is None
    unmoved = texts.moved(out, "float32")  # a run that the encoder does not have moves nothing
    assert unmoved is not None
    assert torch.equal(unmoved, out.double())


def test_an_encoders_results_and_hooks_are_as_they_were(said: list[str]) -> None:
    model = encoder(torch.float32)
    before = model(IDS)[0]
    _, out = seen(model, said, IDS)
    assert torch.equal(before, out)
    assert "forward" not in vars(model)


def test_two_pipelines_may_share_an_encoder(said: list[str]) -> None:
    model = encoder(torch.float32)
    both = [Texts(lambda: KINDS, said.append) for _ in range(2)]
    pipes = [Pipeline(model), Pipeline(model)]
    with both[0].watching(pipes[0]), both[1].watching(pipes[1]):
        outs = [pipe.encode_prompt(IDS) for pipe in pipes]
    assert [len(texts._rows) for texts in both] == [1, 1]
    assert both[1].moved(outs[1], "float64") is not None


def test_an_encoder_that_cannot_be_run_again_is_told(said: list[str]) -> None:
    model = encoder(torch.float32)
    calls = []

    def once(module: Any, args: Any, kwargs: Any) -> None:
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("no memory")

    model.encoder.register_forward_pre_hook(once, with_kwargs=True)
    texts, out = seen(model, said, IDS)
    assert texts.moved(out, "float64") is None
    assert said[-1].startswith("a text encoder's rounding is not known (RuntimeError: no memory)")


def test_a_call_with_a_cache_is_not_repeated(said: list[str]) -> None:
    """As text is generated: a second run would write to the cache that the script goes on with."""
    from transformers import DynamicCache, Qwen2Config, Qwen2Model

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2,
    )  # fmt: skip
    model = Qwen2Model(config).eval()
    cache = DynamicCache(config=config)
    texts = Texts(lambda: KINDS, said.append)
    pipe = Pipeline(model)
    with texts.watching(pipe):
        out = pipe.encode_prompt(IDS, past_key_values=cache, use_cache=True)
        assert cache.get_seq_length() == IDS.shape[1]
        assert texts.moved(out, "float64") is None
        plain = pipe.encode_prompt(IDS)
    assert texts.moved(plain, "float64") is not None
    assert said == []


def test_text_that_a_script_encodes_itself_has_a_floor(tmp_path: Path) -> None:
    """Before the pipeline is called, and its encoder is gone by then: bfloat16 moves it by some 1e-2."""
    (tmp_path / "script.py").write_text(SCRIPT)
    where, model = tmp_path / "golden", str(resolve_model("tiny-cogvideox-1.5"))
    words = ("record", str(where), "--script", str(tmp_path / "script.py"), "--", model)
    done = subprocess.run([sys.executable, "-m", "parity", *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    step = Golden.open(where).read_step(0)
    record = next(r for r in step.records if r.key.site == ":in.encoder_hidden_states")
    assert record.moments is not None
    assert 1e-3 < step.floors[record.key].l2 / record.moments.l2 < 1e-1
