"""What is said of a result besides its verdict: findings, config values, reasons, pictures."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from parity.compare.detectors import MOST, config_causes
from parity.compare.findings import findings
from parity.compare.frames import frame_errors, frames_of, pictures, psnr, spread, ssim
from parity.compare.reason import Reason, sentence
from parity.compare.result import Distance, Origin, SettingDifference, SiteDiff
from parity.records import Key
from parity.sketch import geometry

NEAR, FAR = Distance(1e-7, 1e-6, 0.1), Distance(1e-2, 1e-6, 1e4)
RNG = np.random.default_rng(0)

# --- findings --------------------------------------------------------------------------------------------------


def site(name: str, far: bool = False, branch: str = "cond", **more: Any) -> SiteDiff:
    made = SiteDiff(Key("transformer", 0, branch, name), FAR if far else NEAR, dtypes=("float32", "float32"))
    return replace(made, verdict="fail" if far else "pass", **more)


def differing(tokens: range, shape: tuple[int, ...] = (1, 64, 128), **more: Any) -> SiteDiff:
    """A site whose row bins differ at these of 64 tokens."""
    g = geometry(shape)
    per = g.rows // 64
    rows = np.zeros(g.rows)
    rows[tokens.start * per : tokens.stop * per] = 1e4
    bins = tuple(float(rows[s : s + g.rows_per_bin].max()) for s in range(0, g.rows, g.rows_per_bin))
    return site("block:out", True, shapes=(shape, shape), bins=bins, frame=(g.rows, g.channels), **more)


NARROW = [site(f"m.{i}:out", dtypes=("float32", "bfloat16")) for i in range(9)]
NANS = [site("a:out", nonfinite=(0, 0)), site("b:out", True, nonfinite=(0, 7)),
        site("b:out@padding", nonfinite=(0, 99)), site("c:in.x", True, nonfinite=(0, 7)),
        site("c:out", True, nonfinite=(0, 70))]  # fmt: skip

ALONE = site("a.norm:out", True, birth="module", distance=Distance(1.2, 1e-6, 1e6))
AFTER = site("loop:noise_pred")


@pytest.mark.parametrize(
    ("sites", "origin", "more", "words"),
    [
        ([site("a:out"), site("a:out", branch="uncond")], None, {}, []),
        ([site("a:out"), site("a:out", True, branch="uncond")], 1, {}, ["only branch uncond differs"]),
        ([differing(range(32, 48))], 0, {"grid": (4, 4, 4)}, ["tokens 32 to 47 of 64: frames 2 of 4"]),
        ([differing(range(64))], 0, {"grid": (4, 4, 4)}, []),  # a difference everywhere has no place
        ([replace(differing(range(1)), bins=(9.0, 3.0, 4.0, 0.5))], 0, {}, []),  # nor has one that is largest there
        # The second axis of channels, of coordinates, and of a batch holds no tokens.
        ([differing(range(31, 64), (1, 64, 4, 8, 8))], 0, {}, ["difference lies in 33 of 64 parts of its rows"]),
        ([differing(range(31, 64), (1, 64, 2, 3))], 0, {}, ["difference lies in 33 of 64 parts of its rows"]),
        ([differing(range(31, 64), (2, 32, 128))], 0, {}, ["difference lies in 33 of 64 parts of its rows"]),
        ([site("m:in.x"), *NARROW], None, {}, ["9 modules have another dtype"]),
        ([site("m:in.i", dtypes=("int64", "int32"))], None, {}, []),
        (NANS, None, {}, ["7 values, first produced by transformer step 0 cond b:out, taken in by"]),
        (
            [site("b.attention:in.value", True, nonfinite=(0, 5)), *NANS],
            None,
            {},
            ["5 values, first in transformer step 0 cond b.attention:in.value, taken in by transformer step 0 cond c"],
        ),
        ([site("a:out", nonfinite=(3, 3))], None, {}, []),
        ([ALONE, AFTER], 0, {}, ["nothing behind a.norm differs"]),
        ([ALONE, replace(ALONE, birth="propagated"), AFTER], 0, {}, []),
        ([ALONE], 0, {}, []),  # nobody knows
        ([AFTER, ALONE], 1, {}, []),  # of the last nothing is made, as of a video
    ],
)
def test_findings_of_numbers(sites: list[SiteDiff], origin: int | None, more: dict[str, Any], words: list[str]) -> None:
    at = Origin(Key("transformer", 0, "", "elsewhere:out") if origin is None else sites[origin].key, "module")
    declared = more.pop("declared", None)
    found = findings(sites, at, *([declared] if declared else []), **more)
    assert len(found) == len(words)
    assert all(word in note.text for word, note in zip(words, found, strict=True))


# --- config values: of the component in which a divergence starts ----------------------------------------------

ROPE = SettingDifference("transformer.rope_type", "split", "interleaved")
VAE = SettingDifference("vae.upsample_residual", "(True,)", "(False,)")
BETAS, NOISED = (
    SettingDifference("scheduler.beta_schedule", "scaled_linear", "linear"),
    Key("transformer", 1, "", "loop:latents.before"),
)
MANY = [SettingDifference(f"transformer.x{i}", "1", "2") for i in range(MOST + 1)]


BLOCK, DECODED = Key("transformer", 0, "", "blocks.0.attn:out"), Key("vae", -1, "", "decode:out")
WRONG_ROPE, WRONG_VAE = (
    "transformer.rope_type is interleaved, not split",
    "vae.upsample_residual is (False,), not (True,)",
)


@pytest.mark.parametrize(
    ("fields", "begins", "known", "words"),
    [
        ([ROPE, VAE], [BLOCK], "", [WRONG_ROPE]),
        ([ROPE, VAE], [DECODED], "", [WRONG_VAE]),
        ([ROPE, VAE], [BLOCK, BLOCK, DECODED], "", [WRONG_ROPE, WRONG_VAE]),  # two differences, each with its own
        ([ROPE, VAE], [BLOCK, DECODED], "blocks.*.attn", [WRONG_VAE]),  # of which a cause is known
        ([ROPE], [Key("transformer", 0, "", "loop:noise_pred")], "", []),  # what the model is given is not its doing
        ([VAE], [BLOCK], "", []),
        ([BETAS], [replace(NOISED, step=0)], "", ["scheduler.beta_schedule is linear, not scaled_linear"]),
        ([BETAS], [NOISED], "", []),  # latents that the loop hands on
        (MANY, [BLOCK], "", []),  # another model
    ],
)
def test_config_values_are_named(
    fields: list[SettingDifference], begins: list[Key], known: str, words: list[str]
) -> None:
    found = [cause.cause for cause in config_causes(fields, begins, {known})]
    assert [text.endswith(word) for text, word in zip(found, words, strict=True)] == [True] * len(words)


# --- the sentence of a verdict ---------------------------------------------------------------------------------

KEY, INPUT = Key("transformer", 0, "cond", "block:out"), Key("transformer", 0, "cond", "block:in.x")
PARTS = Reason(kind="first_divergence", first=KEY, after=(INPUT,), distance=Distance(4.05e-1, 6.3e-6, 64384.0))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "block output (step 0, cond): inputs match, output differs by 4.05e-01"),
        ({"after": (Key("transformer", 0, "cond", "embed:out"),)}, "its own inputs were not compared"),
        ({"after": ()}, "nothing before it was compared"),
    ],
)
def test_a_reason_claims_only_what_was_compared(changes: dict[str, Any], words: str) -> None:
    found = sentence(replace(PARTS, **changes))
    assert words in found
    assert ("inputs match" in found) is not bool(changes)


# --- pictures --------------------------------------------------------------------------------------------------

A = RNG.random((3, 14, 17))
B = np.clip(A + 0.1 * RNG.standard_normal(A.shape), 0, 1)


def ssim_by_hand(x: np.ndarray, y: np.ndarray) -> float:
    """Equation 13 of Wang et al. at every place of one channel, with the window as one 11 x 11 array."""
    at = np.arange(-5, 6)
    window = np.exp(-(at[:, None] ** 2 + at[None, :] ** 2) / (2 * 1.5**2))
    window /= window.sum()
    found = []
    for i in range(x.shape[0] - 10):
        for j in range(x.shape[1] - 10):
            p, q = x[i : i + 11, j : j + 11], y[i : i + 11, j : j + 11]
            mp, mq = (window * p).sum(), (window * q).sum()
            vp, vq, c = ((window * s).sum() for s in ((p - mp) ** 2, (q - mq) ** 2, (p - mp) * (q - mq)))
            found.append((2 * mp * mq + 1e-4) * (2 * c + 9e-4) / ((mp**2 + mq**2 + 1e-4) * (vp + vq + 9e-4)))
    return float(np.mean(found))


def test_ssim_and_psnr_are_the_formulas() -> None:
    assert ssim(A, B) == pytest.approx(np.mean([ssim_by_hand(a, b) for a, b in zip(A, B, strict=True)]), abs=1e-12)
    assert ssim(A, A) == pytest.approx(1.0, abs=1e-12)
    assert math.isnan(ssim(A[:, :10], B[:, :10]))
    assert (psnr(A, A + 0.1), psnr(A, A)) == (pytest.approx(20.0), math.inf)
    assert math.isnan(psnr(A, np.full_like(A, np.nan)))
    assert pictures(np.array([-3.0, -1.0, 0.0, 1.0, 7.0])).tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]


def test_every_frame_has_its_own_error_and_region() -> None:
    video = RNG.standard_normal((2, 3, 4, 32, 48)).astype(np.float32)
    other = video.copy()
    other[1, :, 2, 8:16, 36:48] += 1.0  # one region of the third frame of the second video
    ours, theirs = frames_of(video), frames_of(other)
    errors = frame_errors(ours, theirs, np.full(8, 2.0))
    assert [e.distance.rel_l2 > 0 for e in errors] == [False] * 6 + [True, False]
    worst, apart = errors[6], math.sqrt(3 * 8 * 12)
    assert worst.distance.ratio == pytest.approx(apart / 2.0)
    assert (worst.region.top, worst.region.left, worst.region.height, worst.region.width) == (8, 36, 8, 12)
    assert spread(ours, theirs) == pytest.approx([0] * 6 + [apart, 0])
    broken = theirs.copy()
    broken[6, 0, 1, 14] = np.nan
    error = frame_errors(ours, broken, np.ones(8))[6]
    assert math.isnan(error.distance.rel_l2)
    assert math.isnan(error.psnr)
    assert (error.region.top, error.region.left) == (0, 12)
