"""PSNR, SSIM and regions: against the formulas written out, on pictures small enough to do it by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from parity.compare.detect.frames import frame_errors, frames_of, pictures, psnr, spread, ssim

RNG = np.random.default_rng(0)
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


def test_ssim_is_the_papers_formula_at_every_place() -> None:
    expected = np.mean([ssim_by_hand(a, b) for a, b in zip(A, B, strict=True)])
    assert 0.5 < expected < 0.99
    assert ssim(A, B) == pytest.approx(expected, abs=1e-12)
    assert ssim(A, A) == pytest.approx(1.0, abs=1e-12)
    assert math.isnan(ssim(A[:, :10], B[:, :10]))


def test_psnr_of_a_known_error() -> None:
    assert psnr(A, A + 0.1) == pytest.approx(20.0)
    assert psnr(A, A) == math.inf
    assert math.isnan(psnr(A, np.full_like(A, np.nan)))


def test_every_frame_has_its_own_error_and_the_region_where_it_is() -> None:
    video = RNG.standard_normal((2, 3, 4, 32, 48)).astype(np.float32)
    other = video.copy()
    other[1, :, 2, 8:16, 36:48] += 1.0  # one region of the third frame of the second video
    ours, theirs = frames_of(video), frames_of(other)
    assert ours.shape == (8, 3, 32, 48)
    floors = np.full(8, 2.0)
    errors = frame_errors(ours, theirs, floors)
    assert [e.distance.rel_l2 > 0 for e in errors] == [False] * 6 + [True, False]
    worst = errors[6]
    apart = math.sqrt(3 * 8 * 12)
    assert worst.distance.rel_l2 == pytest.approx(apart / np.linalg.norm(ours[6]))
    assert worst.distance.ratio == pytest.approx(apart / 2.0)
    assert (worst.region.top, worst.region.left, worst.region.height, worst.region.width) == (8, 36, 8, 12)
    assert spread(ours, theirs) == pytest.approx([0] * 6 + [apart, 0])


def test_a_nan_is_neither_hidden_nor_a_crash() -> None:
    ours = RNG.standard_normal((1, 3, 16, 16))
    theirs = ours.copy()
    theirs[0, 0, 1, 14] = np.nan
    (error,) = frame_errors(ours, theirs, np.ones(1))
    assert math.isnan(error.distance.rel_l2)
    assert math.isnan(error.psnr)
    assert (error.region.top, error.region.left) == (0, 12)
    assert spread(ours, theirs) == pytest.approx([0.0])


def test_pictures_are_cut_as_they_are_shown() -> None:
    assert pictures(np.array([-3.0, -1.0, 0.0, 1.0, 7.0])).tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]
