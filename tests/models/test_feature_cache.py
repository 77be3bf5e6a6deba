"""DeepCache against its definition, written out by hand: what is skipped, what is added, whose it is, and when."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from parity.paths.loop import denoise, prepare
from parity.paths.plan import state_of
from tests.paths.sides import apart, side, walk

STEPS = 4
CACHE = "cache=deepcache:1,3,2"
MODELS = ("tiny-hunyuan-video-1.5", "tiny-cogvideox-1.5")


def by_hand(model: Any, calls: int) -> None:
    """Blocks 1 and 2 of a plain model run at even steps; at odd ones what they added then is added again.

    Args:
        calls: of the model in one step, one for each branch or one for all.
    """
    blocks = model.transformer_blocks
    first, last = blocks[1].forward, blocks[2].forward
    count = [0, 0]
    came: dict[int, Any] = {}
    added: dict[int, Any] = {}

    def tokens(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        return args[:2] if args else (kwargs["hidden_states"], kwargs["encoder_hidden_states"])  # type: ignore[return-value]

    def one(*args: Any, **kwargs: Any) -> Any:
        step, branch = divmod(count[0], calls)
        count[0] += 1
        x, text = tokens(args, kwargs)
        if step % 2 == 0:
            came[branch] = (x, text)
            return first(*args, **kwargs)
        return x + added[branch][0], text + added[branch][1]

    def two(*args: Any, **kwargs: Any) -> Any:
        step, branch = divmod(count[1], calls)
        count[1] += 1
        if step % 2:
            return tokens(args, kwargs)
        x, text = last(*args, **kwargs)
        added[branch] = (x - came[branch][0], text - came[branch][1])
        return x, text

    blocks[1].forward, blocks[2].forward = one, two


@pytest.mark.parametrize("model", MODELS)
def test_the_reference_is_the_definition_bit_for_bit(model: str) -> None:
    plain = side("torch", steps=STEPS, model=model)
    by_hand(plain.backend.model, len(plain.family.batches))
    expected, found = walk(plain), walk(side("torch", CACHE, steps=STEPS, model=model))
    for step in range(STEPS):
        assert np.array_equal(found.value("noise_pred", step=step), expected.value("noise_pred", step=step))
    assert found.side.reached.missing == ()


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_both_sides_agree_and_differ_from_no_cache_at_skipped_steps(model: str) -> None:
    ours, theirs, off = (
        walk(side("torch", CACHE, steps=STEPS, model=model)),
        walk(side("torchax", CACHE, steps=STEPS, model=model)),
        walk(side("torch", steps=STEPS, model=model)),
    )
    assert theirs.side.reached.missing == ()
    for step in range(STEPS):
        value = theirs.value("noise_pred", step=step)
        assert apart(ours.value("noise_pred", step=step), value) < 1e-5
        without = apart(off.value("noise_pred", step=step), value)
        assert without < 1e-5 if step == 0 else without > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["torch", "torchax"])
def test_loops_of_one_side_share_no_cache_and_one_can_begin_at_a_skipped_step(backend: str) -> None:
    """The floors' variants run beside the reference on the same model."""
    loaded = side(backend, CACHE, steps=STEPS, model=MODELS[0])
    expected = walk(loaded)
    other = dataclasses.replace(loaded, inputs=dataclasses.replace(loaded.inputs, noise=-loaded.inputs.noise))
    loops = [denoise(prepare(x), None) for x in (loaded, other)]
    beside = [step for step, _ in zip(*loops, strict=True)]
    again = prepare(loaded)
    again.continue_from(3, state_of(expected.steps[3], "before"))
    resumed = next(denoise(again, None, first=3))
    for step, found in ((1, beside[1]), (3, beside[3]), (3, resumed)):
        value = {r.key: r.value for r in expected.steps[step].records}
        assert all(np.array_equal(r.value, value[r.key]) for r in found.records)
