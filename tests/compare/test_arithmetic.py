"""Arithmetic in another order or precision is told where the values are exactly those that it gives, and only there."""

from __future__ import annotations

import numpy as np

from parity.compare.detect.arithmetic import rounded_otherwise
from parity.compare.detect.held import Seen, Values, bfloat16
from parity.golden.records import LOOP

RNG = np.random.default_rng(0)
COND, UNCOND = (bfloat16(x) for x in RNG.normal(size=(2, 512)))


def guided(narrow: bool, late: bool, scale: float = 6.5) -> Values:
    n = bfloat16 if narrow else np.asarray
    apart = n(COND - UNCOND)
    made = n(COND + n((scale - 1) * apart)) if late else n(UNCOND + n(scale * apart))
    site = f"{LOOP}:noise_pred"
    return {("cond", site): COND, ("uncond", site): UNCOND, ("", site): made}


def stepped(narrow: bool, dt: float = -0.137) -> Values:
    before = RNG.normal(size=512).astype(np.float32).astype(np.float64)
    product = dt * COND
    after = (before + (bfloat16(product) if narrow else product)).astype(np.float32).astype(np.float64)
    named = {"noise_pred": COND, "latents.before": before, "latents.after": after, "dt": np.array(dt)}
    return {("", f"{LOOP}:{name}"): x for name, x in named.items()}


def told(ours: Values, theirs: Values) -> list[str]:
    return list(rounded_otherwise(Seen(ours=ours, theirs=theirs)))


def test_the_order_of_guidance_in_bfloat16_is_told() -> None:
    (text,) = told(guided(narrow=True, late=False), guided(narrow=True, late=True))
    assert text.startswith("guidance is computed as cond + (scale - 1) (cond - uncond) on the candidate, as uncond")
    assert told(guided(narrow=True, late=True), guided(narrow=True, late=True)) == []


def test_guidance_in_float32_or_of_no_known_order_says_nothing() -> None:
    assert told(guided(narrow=False, late=False), guided(narrow=False, late=True)) == []
    other = dict(guided(narrow=True, late=True))
    other["", f"{LOOP}:noise_pred"] = bfloat16(1.01 * other["", f"{LOOP}:noise_pred"])
    assert told(guided(narrow=True, late=False), other) == []


def test_a_product_that_takes_the_predictions_dtype_is_told() -> None:
    (text,) = told(stepped(narrow=False), stepped(narrow=True))
    assert text.startswith("the scheduler's product of dt and the prediction is rounded to bfloat16 on the candidate")
    assert told(stepped(narrow=True), stepped(narrow=True)) == []


def test_schedules_that_differ_by_rounding_alone_are_told() -> None:
    sigmas = np.linspace(1, 0.01, 20)
    near, far = sigmas * (1 + 1e-7), sigmas * (1 + 1e-5)
    site = ("", "schedule:sigmas")
    (text,) = told({site: sigmas}, {site: near})
    assert text.startswith("the schedules differ by rounding alone (1.0e-07 relative)")
    assert told({site: sigmas}, {site: far}) == told({site: sigmas}, {site: sigmas}) == []
