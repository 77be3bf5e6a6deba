"""What a TPU's elementary functions err by in float32: the bounds that XLA's own tests hold them to.

Problem. IEEE 754 rounds sums and products alike everywhere; exp, tanh or a division are what each chip makes of them.
The tanh of a TPU before v6 may be 5e-4 off, the logistic function of any TPU 2.4e-5, where a floor of float32 is 1e-6:
a right port on such a chip would be called wrong, and an error that belongs to the chip would be looked for in the
port.

Source. openxla/xla, `xla/tests/exhaustive/exhaustive_unary_test_functions.cc` and
`exhaustive_binary_test_functions.cc` of September 2024, the last that name TPUs (later ones leave them out): each
function tried with every float32 there is, per generation of the unit that computes it. Bounds, so more than what most
arguments meet.

How. Where the candidate runs on such a chip, errors within its bounds are drawn at random in the runs that measure the
reference's floors (`parity.hooks.perturb`). Pure Python.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

EPS = 2.0**-23
"""float32's distance from 1 to the next number."""

NO_CHIP = ""
"""Of what is no TPU."""


@dataclass(frozen=True, slots=True)
class Bound:
    """How far a function may be from its exact value.

    Attributes:
        absolute: in its own units. relative: of the exact value, in units of `EPS`.
    """

    absolute: float
    relative: float


Bounds = Mapping[str, Bound]
"""By XLA's name of the function."""

_V6: Bounds = {
    "acos": Bound(1e-6, 10),
    "asin": Bound(0, 10),
    "atan": Bound(0, 20),
    "atan2": Bound(0, 3),
    "cos": Bound(0, 2),
    "cosh": Bound(0, 100),
    "div": Bound(0, 2),
    "erf": Bound(0, 20),
    "erfc": Bound(0, 100),
    "exp": Bound(0, 33),
    "exp2": Bound(0, 8),  # of pow, which it is
    "expm1": Bound(0, 33),
    "log": Bound(0, 20),
    "log1p": Bound(2e-4, 1),
    "logistic": Bound(200 * EPS, 0),
    "pow": Bound(0, 8),
    "rsqrt": Bound(0, 2),
    "sin": Bound(0, 2),
    "sinh": Bound(1e-5, 100),
    "sqrt": Bound(0, 2),
    "tan": Bound(0, 4),
    "tanh": Bound(0, 20),
}

_V5: Bounds = {
    **_V6,
    "atan2": Bound(0, 28),
    "div": Bound(0, 34),
    "exp": Bound(0, 75),
    "exp2": Bound(0, 41),
    "expm1": Bound(1e-5, 100),
    "log": Bound(2e-4, 1),
    "pow": Bound(0, 41),
    "tanh": Bound(5e-4, 0),
}

_V4: Bounds = {**_V5, "atan2": Bound(0, 133), "div": Bound(0, 136), "exp2": Bound(0, 44), "pow": Bound(0, 44)}

CHIPS: Mapping[str, Bounds] = {NO_CHIP: {}, "v4": _V4, "v5e": _V5, "v5p": _V5, "v6e": _V6, "tpu7x": _V6}
"""By chip. No tests that name a tpu7x are public: it has the bounds of the one before."""

_KINDS: Mapping[str, str] = {
    "TPU v4": "v4", "TPU v5 lite": "v5e", "TPU v5e": "v5e", "TPU v5": "v5p", "TPU v5p": "v5p", "TPU v6 lite": "v6e",
    "TPU v6e": "v6e", "TPU7x": "tpu7x", "TPU v7x": "tpu7x",
    "tpu": "v4", "xla": "v4",  # torch's own words, which do not say which: the widest bounds
}  # fmt: skip


def most_off(chip: str) -> float:
    """How far at most a function of a chip is off, in units of `EPS`; 1 where there is none."""
    return max((bound.absolute / EPS + bound.relative for bound in CHIPS.get(chip, {}).values()), default=1.0)


def chip_of(devices: Sequence[str]) -> str:
    """The chip of a side's devices in JAX's words, by process (`TPU v6 lite`, `TPU v6 lite x 8`).

    Returns:
        `NO_CHIP` for what is no known TPU.
    """
    return _KINDS.get(devices[0].partition(" x ")[0], NO_CHIP) if devices else NO_CHIP
