"""Layout and scale of latents are checked before a decode, and the message names what was done to them."""

from __future__ import annotations

import numpy as np
import pytest

from parity.runs.vae_stage import latent_checks

CONFIG = {"latent_channels": 16, "scaling_factor": 1.15258426}
LATENTS = np.random.default_rng(0).standard_normal((1, 16, 3, 4, 6)).astype(np.float32)


def verdicts(reference: np.ndarray, candidate: np.ndarray, **config: object) -> dict[str, str]:
    checks = latent_checks({**CONFIG, **config}, reference, candidate)
    return {c.check: f"{c.verdict}: {c.detail}" for c in checks}


def test_latents_as_they_should_be_pass() -> None:
    assert all(v.startswith("pass") for v in verdicts(LATENTS, LATENTS * 1.001 + 1e-3).values())


def test_another_layout_is_named() -> None:
    found = verdicts(LATENTS, LATENTS.transpose(0, 2, 1, 3, 4))
    assert found["latents layout"].startswith("fail: the candidate's latents are [1, 3, 16, 4, 6]")
    assert "they are laid out [B, T, C, H, W]" in found["latents layout"]


@pytest.mark.parametrize(("power", "words"), [(1, "multiplied by"), (-1, "divided by")])
def test_latents_that_were_scaled_already_are_named(power: int, words: str) -> None:
    found = verdicts(LATENTS, LATENTS * 1.15258426**power)
    assert found["latents statistics"].startswith(f"fail: the candidate's latents are the reference's {words}")


@pytest.mark.parametrize("factor", [None, 0.0, -1.0, float("nan"), "1.0"])
def test_a_factor_that_is_none_fails(factor: object) -> None:
    assert verdicts(LATENTS, LATENTS, scaling_factor=factor)["scaling factor"].startswith("fail")


def test_broken_latents_fail() -> None:
    broken = LATENTS.copy()
    broken[0, 0, 0, 0, :2] = np.nan, np.inf
    assert "2 NaN or Inf of 1152" in verdicts(LATENTS, broken)["latents statistics"]
    assert "are constant" in verdicts(LATENTS, np.zeros_like(LATENTS))["latents statistics"]
