"""What a script made of a tensor is read off the values, whatever it did."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from parity.recorder.floors.related import displaced, dithered, guidance, resized
from tests.recorder.pipelines import drawn

LATENTS = drawn(1, 4, 3, 8, 8)
SHIFT = 1e-3 * drawn(1, 4, 3, 8, 8, seed=1)
IMAGE = drawn(1, 4, 8, 8, seed=2)


def tokens(x: torch.Tensor) -> torch.Tensor:
    return x.movedim(1, -1).reshape(1, -1, 4)


def packed(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pixel_unshuffle(x, 2).flatten(2).mT


WAYS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "itself": lambda x: x,
    "scaled": lambda x: 0.7 * x,
    "scaled and shifted": lambda x: (x - 0.1) * 0.36,
    "both branches": lambda x: torch.cat([x, x]),
    "beside a condition's channels": lambda x: torch.cat([x, drawn(1, 5, 3, 8, 8, seed=3)], 1),
    "behind a condition's channels": lambda x: torch.cat([drawn(1, 5, 3, 8, 8, seed=3), x], 1),
    "before a condition's frames": lambda x: torch.cat([x, drawn(1, 4, 2, 8, 8, seed=3)], 2),
    "frames first": lambda x: x.transpose(1, 2),
    "packed": tokens,
    "packed, behind a condition's tokens": lambda x: torch.cat([drawn(1, 9, 4, seed=3), tokens(x)], 1),
}


@pytest.mark.parametrize("way", WAYS)
def test_latents_are_found_in_what_was_made_of_them(way: str) -> None:
    made = WAYS[way]
    found = displaced(made(LATENTS), LATENTS, SHIFT)
    assert found is not None
    assert torch.allclose(found, (made(LATENTS + SHIFT) - made(LATENTS)).double(), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_stayed_the_same_among_a_condition_move_alone(dtype: torch.dtype) -> None:
    kept = (torch.arange(3) > 0)[:, None, None]
    made = torch.where(kept, LATENTS, drawn(1, 4, 3, 8, 8, seed=3)).to(dtype)
    found = displaced(made, LATENTS, SHIFT)
    assert found is not None
    assert torch.equal(found[:, :, 1:], SHIFT[:, :, 1:].double())
    assert (found[:, :, 0] != 0).double().mean() < 0.02
    around = displaced(made, LATENTS, SHIFT, around=True)
    assert around is not None
    assert torch.equal(around, SHIFT.double())


def test_an_image_is_found_in_every_frame_and_where_four_of_its_values_are_one_token() -> None:
    shift = 1e-3 * drawn(1, 4, 8, 8, seed=4)
    every = torch.cat([LATENTS, IMAGE[:, :, None].repeat(1, 1, 3, 1, 1)], 1)
    found = displaced(every, IMAGE, shift)
    assert found is not None
    assert torch.equal(found[:, 4:], shift[:, :, None].repeat(1, 1, 3, 1, 1).double())
    assert not found[:, :4].any()
    beside = torch.cat([drawn(1, 16, 16, seed=3), packed((IMAGE - 0.1) * 0.36)], 2)
    found = displaced(beside, IMAGE, shift)
    assert found is not None
    assert torch.allclose(found[:, :, 16:], 0.36 * packed(shift).double(), atol=1e-6)


def test_what_is_something_else_is_not_found() -> None:
    for other in (drawn(1, 4, 3, 8, 8, seed=5), drawn(2, 12, 32), torch.zeros(1, 4, 3, 8, 8), drawn(1, 64, 4)):
        assert displaced(other, LATENTS, SHIFT) is None
        assert displaced(other.bfloat16(), LATENTS.bfloat16(), SHIFT) is None


COND, UNCOND = drawn(1, 4, 3, 8, 8, seed=6), drawn(1, 4, 3, 8, 8, seed=7)


def by_norm(c: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """As QwenImage guides: a token keeps the size that it has without guidance."""
    c, u = (x.movedim(1, -1).repeat(1, 1, 1, 1, 8) for x in (c, u))
    both = u + 4 * (c - u)
    return both * (c.norm(dim=-1, keepdim=True) / both.norm(dim=-1, keepdim=True))


GUIDED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "a scale": lambda c, u: u + 6 * (c - u),
    "of the denoised": lambda c, u: (LATENTS - (0.8 * LATENTS + u + 6 * (c - u))) / 0.5,
    "a scale a frame": lambda c, u: u + torch.linspace(1, 3, 3)[:, None, None] * (c - u),
    "all but the first frame": lambda c, u: (u + 6 * (c - u))[:, :, 1:],
}


@pytest.mark.parametrize("way", GUIDED)
def test_guidance_is_read_off_the_predictions(way: str) -> None:
    made = GUIDED[way]
    found = guidance(made(COND, UNCOND), [COND, UNCOND], LATENTS)
    assert found is not None
    assert found.exact
    shifts = [1e-3 * drawn(1, 4, 3, 8, 8, seed=8), 1e-3 * drawn(1, 4, 3, 8, 8, seed=9)]
    expected = made(COND.double() + shifts[0], UNCOND.double() + shifts[1]) - made(COND.double(), UNCOND.double())
    moved = found.moved(shifts, torch.zeros_like(found.guided))
    assert (moved - expected).norm() < 1e-3 * expected.norm()


def test_prompts_in_a_batch_that_nothing_guides_are_no_branches() -> None:
    found = guidance(torch.cat([COND, UNCOND]), [COND, UNCOND], torch.cat([LATENTS, LATENTS]))
    assert found is not None
    assert found.exact
    moved = found.moved([SHIFT, 2 * SHIFT], torch.zeros_like(found.guided))
    assert torch.allclose(moved, torch.cat([SHIFT, 2 * SHIFT]).double())


def test_guidance_of_packed_predictions_is_found_where_it_is_unpacked() -> None:
    packs = [tokens(x) for x in (COND, UNCOND)]
    found = guidance(GUIDED["all but the first frame"](COND, UNCOND), packs, LATENTS)
    assert found is not None
    assert found.exact


def test_guidance_that_keeps_a_norm_moves_by_its_size() -> None:
    guided = by_norm(COND, UNCOND)
    wide = [x.movedim(1, -1).repeat(1, 1, 1, 1, 8) for x in (COND, UNCOND)]
    found = guidance(guided, wide, guided)
    assert found is not None
    assert found.exact


def test_guidance_that_is_no_combination_moves_as_much_for_its_size() -> None:
    guided = drawn(1, 4, 3, 8, 8, seed=10) * 5
    found = guidance(guided, [COND, UNCOND], LATENTS)
    assert found is not None
    assert not found.exact
    moved = found.moved([1e-3 * COND, 1e-3 * UNCOND], torch.zeros_like(guided))
    assert float(moved.norm() / guided.norm()) == pytest.approx(1e-3, rel=0.1)


def test_what_a_cancelling_sum_rounds_moves_it_too() -> None:
    denoised = LATENTS - 0.002 * COND
    guided = (LATENTS - denoised) / 0.002
    found = guidance(guided, [COND], LATENTS)
    assert found is not None
    zero = torch.zeros_like(guided)
    lost = float((guided - COND).norm() / COND.norm())
    assert lost > 1e-6
    assert not found.moved([zero], zero).any()
    assert float(found.moved([zero], zero, seed=0).norm() / COND.norm()) == pytest.approx(lost, rel=0.3)


def test_a_prediction_that_is_not_finite_ends_nothing() -> None:
    found = guidance(torch.full_like(COND, torch.nan), [COND, UNCOND], LATENTS)
    assert found is not None
    assert not found.exact
    assert guidance(COND, [], LATENTS) is None


@pytest.mark.parametrize(
    "of", [lambda x: x, lambda x: x[:, 1:] * 0.7, lambda x: x.mT[..., :2], lambda x: x.repeat(1, 2, 1)]
)
def test_what_the_loop_hands_on_moves_whatever_part_of_it_is_decoded(
    of: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """CogVideoX-1.5 cuts padding frames off, others decode a few at a time: relative to its size it moves as far."""
    g = torch.Generator().manual_seed(0)
    latents = torch.randn(4, 6, 50, generator=g)
    z, shift = of(latents), 1e-3 * torch.randn(4, 6, 50, generator=g)
    moved = resized(z, latents, shift).norm() / z.norm()
    assert float(moved) == pytest.approx(float(shift.norm() / latents.norm()), rel=0.2)
    assert not resized(torch.zeros(0, 4), latents, shift).numel()


def test_a_dither_is_right_on_average_and_on_the_grid() -> None:
    grid = drawn(64, 512).abs().bfloat16()
    wanted = grid.double() * (1 + 1e-4)
    made = dithered(wanted, torch.bfloat16, 0)
    assert made.dtype == torch.bfloat16
    assert not dithered(torch.zeros(8, 8, dtype=torch.float64), torch.bfloat16, 0).any()
    changed = (made != grid).double().mean()
    assert 0.01 < changed < 0.05, "one in some thirty is nearer to the next"
    assert float((made.double() - grid.double()).sum() / (wanted - grid.double()).sum()) == pytest.approx(1, abs=0.15)
