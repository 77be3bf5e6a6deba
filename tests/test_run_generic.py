"""`parity run` on transformers of no family, by class and config alone: Wan, LTX, Flux, Qwen, SkyReels, Mochi."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import pytest
import safetensors.torch
import torch

from parity.errors import UnjudgedError, UsageError
from parity.models.generic.family import Generic
from parity.models.spec import Case
from parity.runs.request import Request
from parity.settings import Settings, parse
from tests.faulty import run
from tests.models.generic_models import CONFIGS, make

CROSS = "transformer_blocks.0.attn2"


def _request(folder: Path, *candidate: str, **options: Any) -> Request:
    return Request(str(folder), parse("torch"), parse("torchax", candidate), **options)


def _change_candidate(change: Callable[[torch.nn.Module], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every candidate's model changed once it is loaded."""
    load = Generic.load

    def changed(family: Generic, case: Case, settings: Settings) -> torch.nn.Module:
        model = load(family, case, settings)
        if settings.backend == "torchax":
            change(model)
        return model

    monkeypatch.setattr(Generic, "load", changed)


@pytest.mark.parametrize("name", ["wan", "ltx", "flux", "qwen", "skyreels"])
def test_it_traces_and_agrees_with_the_reference(name: str, tmp_path: Path) -> None:
    result = run(_request(make(tmp_path, name)))
    assert (result.verdict, result.origin) == ("pass", None)
    (step,) = result.steps
    assert set(step.branches) == {"cond"}
    assert 0 < step.noise_pred.floor < 1e-3
    assert any(d.key.module.endswith(".attention") for d in result.sites)
    said = next(c.detail for c in result.preflight if c.check == "inputs")
    assert CONFIGS[name]["_class_name"] in said
    assert "weights drawn" in said


def test_mochi_does_not_trace_and_compares_eagerly(tmp_path: Path) -> None:
    """Its attention processor takes the valid text tokens by `torch.nonzero`, a shape that depends on values."""
    folder = make(tmp_path, "mochi")
    with pytest.raises(UnjudgedError, match=r"Mochi\w+ does not trace.*attention_processor\.py.*jit=false"):
        run(_request(folder))
    assert run(_request(folder, "jit=false")).verdict == "pass"


def test_what_the_free_run_cannot_see_its_doubt_brings_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of 8e-5 in one attention is within three floors at its block: there, floors have grown sixtyfold."""

    def change(model: torch.nn.Module) -> None:
        attention = model.get_submodule("blocks.0.attn1")
        attention.register_forward_hook(lambda m, given, out: out + 1e-4 * out.abs().mean())

    _change_candidate(change, monkeypatch)
    result = run(_request(make(tmp_path, "wan")))
    assert result.verdict == "fail"
    assert result.origin is not None
    assert result.origin.key.module == "blocks.0.attn1"
    block = next(d for d in result.sites if d.key.site == "blocks.0:out")
    born = next(d for d in (*result.sites, *result.closer) if d.key == result.origin.key)
    assert block.distance.ratio < 3.0 < 30.0 < born.local.ratio


def test_a_dropped_text_mask_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The candidate's first cross-attention attends to padding too."""

    def change(model: torch.nn.Module) -> None:
        attention = model.get_submodule(CROSS)
        attention.register_forward_pre_hook(lambda m, a, k: (a, {**k, "attention_mask": None}), with_kwargs=True)

    _change_candidate(change, monkeypatch)
    result = run(_request(make(tmp_path, "ltx")))
    assert (result.verdict, result.failed) == ("fail", "structure")
    assert result.origin is not None
    assert result.origin.key.module.startswith(CROSS)


def test_a_transformer_saved_alone_runs_with_its_own_weights_and_given_inputs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = {k: v for k, v in CONFIGS["flux"].items() if k != "_class_name"}
    diffusers.FluxTransformer2DModel(**config).save_pretrained(tmp_path / "model")
    text = torch.randn(1, 5, 32)
    given = {
        "hidden_states": torch.randn(1, 12, 16),
        "img_ids": torch.arange(36).reshape(12, 3),
        "encoder_hidden_states": text,
        "txt_ids": torch.zeros(5, 3, dtype=torch.int64),
        "timestep": torch.tensor([0.7, 0.2]),
    }
    safetensors.torch.save_file(given, tmp_path / "inputs.safetensors")
    result = run(_request(tmp_path / "model", inputs=tmp_path / "inputs.safetensors", steps=2))
    assert result.verdict == "pass"
    assert [s.timestep[0] for s in result.steps] == pytest.approx([0.7, 0.2])
    said = next(c.detail for c in result.preflight if c.check == "inputs")
    assert "weights drawn" not in said
    assert "made for FluxTransformer2DModel: pooled_projections;" in said
    shapes = {d.key.site: d.shapes[0] for d in result.sites if d.shapes and d.key.module == ""}
    assert shapes[":in.hidden_states"] == (1, 12, 16)
    assert shapes[":in.encoder_hidden_states"] == (1, 5, 32)


@pytest.mark.parametrize("setting", ["attention.k_smooth=true", "sharding=replicated", "text.reorder=concatenate"])
def test_a_setting_that_needs_a_line_in_the_models_code_is_refused(setting: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"'{setting}', which has no meaning for"):
        run(_request(make(tmp_path, "ltx"), setting))


@pytest.mark.parametrize(
    ("tensors", "changes", "message"),
    [
        ({"nothing": torch.zeros(1)}, {}, "'nothing' is no argument of LTXVideoTransformer3DModel.forward"),
        ({"hidden_states": torch.zeros(2, 48, 8)}, {}, "must have a batch of one"),
        ({"encoder_hidden_states": torch.full((1, 4, 16), torch.nan)}, {}, "'encoder_hidden_states' is not finite"),
        ({"encoder_hidden_states": torch.zeros(1, 16, 9)}, {}, "called with the inputs of --inputs and those made"),
        ({"timestep": torch.tensor([1.0, 0.5])}, {}, "--inputs gives 2 timesteps for --steps 1"),
        ({}, {"_class_name": "AceStepTransformer1DModel"}, "'hidden_states'|cannot make the argument|takes no"),
        ({}, {"_class_name": "AutoencoderKLWan"}, "whose forward takes no 'hidden_states'"),
    ],
)
def test_bad_inputs_are_told(
    tensors: dict[str, torch.Tensor], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = make(tmp_path / "model", "ltx", **changes)
    safetensors.torch.save_file(tensors, tmp_path / "inputs.safetensors")
    with pytest.raises(UsageError, match=message):
        run(_request(folder, inputs=tmp_path / "inputs.safetensors" if tensors else None))


def test_a_pipeline_without_its_weights_is_no_config_alone(tmp_path: Path) -> None:
    make(tmp_path / "transformer", "wan")
    (tmp_path / "model_index.json").write_text("{}")
    with pytest.raises(UsageError, match="cannot load"):
        run(_request(tmp_path))
