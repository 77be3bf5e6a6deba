"""Checkpoints: what a name stands for, weights that are not those of their class, dtypes that a model is given."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from parity.errors import UsageError
from parity.models import registry
from parity.models.folder import load_component, load_part, vae_config
from parity.models.patches import in_dtype
from parity.models.registry import family_of, require_model, resolve_model


def test_inputs_are_refused_by_a_family_that_makes_its_own(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"_class_name": "CogVideoXTransformer3DModel"}')
    with pytest.raises(UsageError, match="is a CogVideoX, which takes a port"):
        family_of(tmp_path, tmp_path / "inputs.safetensors")


def test_a_pipeline_of_two_transformers_is_refused_and_each_alone_is_not(tmp_path: Path) -> None:
    for part in ("transformer", "transformer_2"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "config.json").write_text('{"_class_name": "WanTransformer3DModel"}')
    for second, refused in ((["diffusers", "WanTransformer3DModel"], True), ([None, None], False)):
        (tmp_path / "model_index.json").write_text(json.dumps({"transformer_2": second, "boundary_ratio": 0.875}))
        with pytest.raises(UsageError, match="has two transformers") if refused else contextlib.nullcontext():
            require_model(str(tmp_path))
    require_model(str(tmp_path / "transformer_2"))


@pytest.mark.parametrize("factor", [None, 0.0, -1.0, float("nan"), "1.0"])
def test_a_vae_without_a_scaling_factor_is_refused(factor: object, tmp_path: Path) -> None:
    (tmp_path / "vae").mkdir()
    config = {"_class_name": "AutoencoderKLCogVideoX", "scaling_factor": factor}
    (tmp_path / "vae" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match="must be a positive number"):
        vae_config(tmp_path)


@pytest.mark.parametrize("name", ["./checkpoints/tiny-hunyan", "checkpoints/a/b", "{tmp}/checkpoints/tiny-hunyan"])
def test_a_mistyped_path_is_told_as_a_path(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never as a name on the hub, which is not asked."""
    (tmp_path / "checkpoints" / "tiny-hunyuan").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_download", lambda *asked: pytest.fail(f"the hub was asked for {asked}"))
    with pytest.raises(UsageError, match="there is no such folder") as told:
        resolve_model(name.format(tmp=tmp_path))
    assert ("did you mean" in str(told.value)) == ("hunyan" in name)
    assert "checkpoints" in str(told.value).partition("beyond")[2]


def test_a_model_of_the_hub_is_that_of_its_revision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def client(repository: str, revision: str | None, **patterns: object) -> str:
        found = tmp_path / repository.replace("/", "-") / str(revision)
        (found / "transformer").mkdir(parents=True, exist_ok=True)
        (found / "transformer" / "config.json").write_text("{}")
        return str(found)

    monkeypatch.setattr(pytest.importorskip("huggingface_hub"), "snapshot_download", client)
    for name, revision in (("owner/name", "None"), ("owner/name@feature/one", "feature/one")):
        assert resolve_model(name) == tmp_path / "owner-name" / revision


HELD = (
    "README.md", "model_index.json", "config.json", "diffusion_pytorch_model.safetensors", "transformer/config.json",
    "transformer/diffusion_pytorch_model.safetensors", "transformer/diffusion_pytorch_model.bin",
    "transformer/diffusion_pytorch_model.fp16-00001-of-00002.safetensors", "transformer/480p/model.ckpt",
    "vae/diffusion_pytorch_model.safetensors", "text_encoder_2/model.safetensors", "tokenizer/spiece.model",
    "text_encoder_2/model.fp16.safetensors", "image_encoder/model.safetensors", "assets/video.mp4",
)  # fmt: skip
PIPELINE = {HELD[1], HELD[4], HELD[5], HELD[9], HELD[10], HELD[11]}


@pytest.mark.parametrize(
    ("config", "top", "read"),
    [
        ("HunyuanVideo15Transformer3DModel", "transformer", PIPELINE),
        ("WanTransformer3DModel", "transformer", {HELD[1], HELD[4], HELD[5]}),
        ("WanTransformer3DModel", "", {HELD[2], HELD[3]}),
    ],
)
def test_of_a_model_of_the_hub_only_what_is_read_is_downloaded(
    config: str, top: str, read: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    asked: list[set[str]] = []

    def client(repository: str, **options: Any) -> str:
        held = hub.utils.filter_repo_objects(HELD, **{n: options[n] for n in ("allow_patterns", "ignore_patterns")})
        asked.append(set(held))
        (tmp_path / top).mkdir(exist_ok=True)
        (tmp_path / top / "config.json").write_text(json.dumps({"_class_name": config}))
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", client)
    assert resolve_model("owner/name") == tmp_path
    assert asked == [{HELD[1], HELD[2], HELD[4]}, read]


def test_a_repository_of_another_layout_costs_no_download(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []

    def client(repository: str, **options: object) -> str:
        asked.append(repository)
        return str(tmp_path)

    monkeypatch.setattr(pytest.importorskip("huggingface_hub"), "snapshot_download", client)
    with pytest.raises(UsageError, match="no checkpoint in diffusers layout"):
        resolve_model("tencent/native")
    assert asked == ["tencent/native"]


def test_a_mistyped_built_in_model_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'tiny-hunyuan-video-1"):
        resolve_model("tiny-hunyuan")


# --- A checkpoint whose weights are not those of its class is refused

Weights = dict[str, torch.Tensor]


@pytest.fixture
def changed(tmp_path: Path) -> Callable[[str, Callable[[Weights], object]], Path]:
    """A tiny checkpoint with the weights of one part changed."""

    def change(part: str, how: Callable[[Weights], object]) -> Path:
        folder = tmp_path / "checkpoint"
        shutil.copytree(resolve_model("tiny-cogvideox-1.5"), folder)
        (file,) = (folder / part).glob("*.safetensors")
        weights = load_file(file)
        how(weights)
        save_file(weights, file, metadata={"format": "pt"})
        return folder

    return change


@pytest.mark.parametrize(
    ("part", "name"), [("transformer", "norm_final.weight"), ("vae", "decoder.conv_in.conv.weight")]
)
def test_a_part_without_one_of_its_weights_is_refused(part: str, name: str, changed: Callable[..., Path]) -> None:
    with pytest.raises(UsageError, match=f"missing in its weights for a .*: {name}; download"):
        load_part(changed(part, lambda weights: weights.pop(name)), part)


def test_weights_that_are_pickled_are_not_read(changed: Callable[..., Path]) -> None:
    folder = changed("transformer", lambda weights: None)
    place = folder / "transformer"
    weights = next(place.glob("*.safetensors"))
    torch.save(load_file(weights), place / "diffusion_pytorch_model.bin")
    weights.unlink()
    with pytest.raises(UsageError, match=r"no file named .*\.safetensors"):
        load_part(folder, "transformer")


@pytest.mark.parametrize(("key", "value", "message"), [("num_layers", 10**9, "num_layers is 1000000000, more than")])
def test_a_config_of_more_layers_than_any_model_has_is_refused(
    key: str, value: int, message: str, changed: Callable[..., Path]
) -> None:
    folder = changed("transformer", lambda weights: None)
    file = folder / "transformer" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))
    with pytest.raises(UsageError, match=message):
        load_part(folder, "transformer")


def test_a_text_encoder_may_hold_more_but_not_less(changed: Callable[..., Path]) -> None:
    kind = transformers.T5EncoderModel
    norm = "encoder.final_layer_norm.weight"
    folder = changed("text_encoder", lambda weights: weights.update({"head.weight": torch.ones(1)}))
    held = load_component(kind, folder, "text_encoder").state_dict()[norm]
    assert torch.equal(held, load_file(next((folder / "text_encoder").glob("*.safetensors")))[norm])
    shutil.rmtree(folder)
    folder = changed("text_encoder", lambda weights: weights.pop(norm))
    with pytest.raises(UsageError, match=f"missing in its weights for a T5EncoderModel: {norm}"):
        load_component(kind, folder, "text_encoder")


# --- The dtypes that a model is given

CONFIG = {
    "_class_name": "WanTransformer3DModel", "num_attention_heads": 2, "attention_head_dim": 24, "in_channels": 4,
    "out_channels": 4, "text_dim": 32, "freq_dim": 32, "ffn_dim": 64, "num_layers": 1, "rope_max_seq_len": 32,
}  # fmt: skip


def dtypes(model: torch.nn.Module) -> dict[str, torch.dtype]:
    return {n: x.dtype for n, x in (*model.named_parameters(), *model.named_buffers())}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a class that keeps modules in float32, as diffusers writes one."""
    folder = tmp_path_factory.mktemp("wan")
    torch.manual_seed(0)
    diffusers.WanTransformer3DModel.from_config(CONFIG).save_pretrained(folder)
    return folder


def drawn(folder: Path) -> Path:
    """The same config without weights."""
    (folder / "config.json").write_text(diffusers.WanTransformer3DModel.from_config(CONFIG).to_json_string())
    return folder


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_checkpoint_has_the_dtypes_that_the_pipeline_gives_it(saved: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    expected = dtypes(diffusers.WanTransformer3DModel.from_pretrained(saved, torch_dtype=dtype))
    if dtype is not torch.float32:
        assert set(expected.values()) == {dtype, torch.float32} | {expected["rope.freqs_cos"]}
    for folder in (saved, drawn(tmp_path)):
        assert dtypes(in_dtype(load_part(folder, "transformer", torch_dtype=dtype), dtype)) == expected


def test_what_a_port_keeps_in_float32_stays_there() -> None:
    port = torch.nn.Sequential(torch.nn.Linear(2, 2, dtype=torch.bfloat16), torch.nn.LayerNorm(2))
    assert in_dtype(port, torch.bfloat16)[1].weight.dtype == torch.float32  # type: ignore[index]
    assert {*dtypes(in_dtype(port, torch.float32)).values()} == {torch.float32}
    assert {*dtypes(in_dtype(port, torch.bfloat16)).values()} == {torch.bfloat16}
