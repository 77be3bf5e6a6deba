"""The settings' contract: names, values, errors that help."""

from __future__ import annotations

import pytest

from parity.errors import UsageError
from parity.settings import CHOICES, differences, parse

CONTRACT = {
    "dtype", "matmul_precision", "attention.kernel", "attention.mask", "refiner.mask", "attention.block_q",
    "attention.block_kv", "attention.block_padding", "attention.k_smooth", "attention.softmax_dtype", "text.reorder",
    "text.byt5_dtype", "vision_states", "timestep_dtype", "latents_dtype", "schedule_dtype", "guidance_dtype",
    "norm_dtype", "rope", "rope_dtype", "scheduler.warmup_steps", "noise.device", "mesh", "sharding", "cache", "jit",
    "vae.tiling", "vae.slicing",
}  # fmt: skip


def test_every_setting_of_the_contract_is_there() -> None:
    assert {c.name for c in CHOICES} == CONTRACT


@pytest.mark.parametrize("backend", ["torch", "torchax"])
def test_every_default_is_a_value_its_backend_takes(backend: str) -> None:
    for choice in CHOICES:
        default = choice.default_for(backend)  # type: ignore[arg-type]
        text = str(default).lower() if isinstance(default, bool) else str(default)
        assert parse(backend, [f"{choice.name}={text}"])[choice.name] == default  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("attention.msk=none", "did you mean 'attention.mask'"),
        ("attention.mask=non", "did you mean 'none'"),
        ("attention.mask", "not of the form"),
        ("scheduler.warmup_steps=-1", "at least 0"),
        ("mesh=dp=0,sp=1,tp=1", "dp=N,sp=N,tp=N"),
        ("attention.kernel=splash", "it takes: flex, sdpa"),
        ("jit=true", "it takes: false"),
    ],
)
def test_what_a_side_cannot_take_is_refused_with_what_it_can(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse("torch", [text])


def test_a_repeated_setting_is_refused() -> None:
    with pytest.raises(UsageError, match="given twice"):
        parse("torch", ["dtype=float32", "dtype=bfloat16"])


def test_backends_at_their_own_defaults_do_not_differ() -> None:
    assert differences(parse("torch"), parse("torchax")) == ()


def test_a_given_difference_is_listed() -> None:
    (found,) = differences(parse("torch"), parse("torchax", ["attention.mask=none"]))
    assert (found.setting, found.reference, found.candidate) == ("attention.mask", "exact", "none")


def test_typed_values() -> None:
    settings = parse("torchax", ["mesh=dp=2,sp=2,tp=2", "jit=false", "scheduler.warmup_steps=3"])
    assert settings.mesh_shape == (2, 2, 2)
    assert settings["jit"] is False
    assert settings["scheduler.warmup_steps"] == 3
