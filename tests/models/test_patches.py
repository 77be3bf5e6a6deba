"""The dtypes that a model is given: as diffusers leaves them, so that the reference is what the pipeline runs."""

from __future__ import annotations

from pathlib import Path

import diffusers
import pytest
import torch

from parity.models.folder import load_part
from parity.models.patches import in_dtype

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
def test_a_checkpoint_has_the_dtypes_that_the_pipeline_gives_it(
    saved: Path, tmp_path: Path, dtype: torch.dtype
) -> None:
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
