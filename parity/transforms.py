"""What was done to values: one family of transforms, each tried in both directions.

A port rounds, scales, turns round or lays out otherwise what it hands on; the two values show it. A transform speaks
only where it makes one side's values of the other's and explains their difference; the more it can fit, the more values
it takes. numpy only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

EXACT = 2e-3
"""Relative residual up to which a hypothesis explains a value: bfloat16 rounds to 4e-3 at most, 2e-3 on average."""
WITHIN = 1e-6
"""Relative difference up to which a value is the one that it was rounded to: that of float32."""
ANOTHER = 0.1
"""Relative L2 from which two values may be two things, and not one that is off."""
LEFT = 0.05
"""A transform explains a difference where it leaves at most this share of it."""
SAME = 1e-4
"""Absolute difference of the ends of two schedules that are the same."""
OTHERWISE = "differs in another way than in the other blocks"
"""Of a value whose difference is not the one that is known of the same value of other blocks."""
FEW = 8
"""Elements of a channel below which a scale and an offset explain anything."""


def bfloat16(x: np.ndarray) -> np.ndarray:
    """Values rounded to bfloat16, to nearest and ties to even, as float64; infinite where they are too large for it."""
    with np.errstate(over="ignore"):
        bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.astype(np.uint32).view(np.float32).astype(np.float64)


def float16(x: np.ndarray) -> np.ndarray:
    """Values rounded to float16, as float64; infinite where they are too large for it."""
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(np.float64)


CASTS = {"bfloat16": bfloat16, "float16": float16}
"""Of 16 bits, the coarsest first."""


def stored_as(x: np.ndarray) -> str:
    """The coarsest dtype that holds these values exactly, whatever they are stored as: what they were computed in, or
    rounded to at the end. What is not finite, any dtype holds."""
    held = CASTS if np.isfinite(x).all() else {}
    return next((dtype for dtype, cast in held.items() if np.array_equal(x, cast(x))), "float32")


def norm(x: np.ndarray) -> float:
    """L2 of all elements."""
    return float(np.linalg.norm(x))


Made = Callable[[np.ndarray], np.ndarray]


ROUNDINGS: dict[str, Made] = {
    "rounded down to integers": np.floor,
    "rounded to integers": np.round,
    **{f"rounded to {dtype}": cast for dtype, cast in CASTS.items()},
}
TRANSFORMS: dict[str, Made] = {
    **ROUNDINGS,
    "negated": np.negative,
    "times 1000": lambda x: 1000.0 * x,
    "divided by 1000": lambda x: x / 1000.0,
    "subtracted from 1": lambda x: 1.0 - x,
    "subtracted from 1000": lambda x: 1000.0 - x,
}
"""Those that fit nothing: what each did, of a value that "is the reference's ..." -> does it."""


@dataclass(frozen=True, slots=True)
class Done:
    """What was done to one side's values.

    Attributes:
        words: what, as of `TRANSFORMS`. inverse: whether the reference's are the candidate's, so made.
    """

    words: str
    inverse: bool = False

    def __str__(self) -> str:
        one, other = ("reference", "candidate") if self.inverse else ("candidate", "reference")
        return f"the {one}'s is the {other}'s {self.words}"


def as_factor(x: float) -> str:
    """A factor as it is printed: one that is nearly 1 with the digits by which it is not."""
    text = f"{x:.5g}"
    return text if abs(x) == 1.0 or text not in ("1", "-1") else f"{x:.9g}"


COMPUTED = Done("computed in bfloat16")
"""By the candidate, each of its operations rounded; of a reference that computes so too it says nothing."""


def done(a: np.ndarray, b: np.ndarray, *, fitted: bool = True) -> Done | None:
    """How one side's values were made of the other's; None where that is not known, and where they are the same.

    Args:
        a: the reference's values, float64. b: the candidate's, of the same shape. fitted: whether those count that hold
            up to rounding, a gain among them.
    """
    if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()) or _alike(a, b):
        return None
    if a.size > 1 and np.ptp(a) == 0 and np.ptp(b) == 0 and b.any():
        return None  # one value shows no relation
    ways, families = [(False, a, b), (True, b, a)], (_exactly, _about) if fitted else (_exactly,)
    ways = ways if a.size > 1 else ways[:1]  # by chance any two neighbours round to one
    found = (Done(words, inverse) for made in families for inverse, x, y in ways for words in made(x, y))
    return next(found, None)


def _exactly(x: np.ndarray, y: np.ndarray) -> Iterator[str]:
    """Transforms that give every value; one that comes to nothing says nothing of how."""
    if not y.any():
        yield "set to zero"
        return
    with np.errstate(all="ignore"):
        by_factor = np.unique(x[x != 0]).size > 1 and _alike(_gain(x, y) * x, y)
    simple = ROUNDINGS if by_factor else {}  # a factor that fits says more
    with np.errstate(over="ignore"):
        yield from (words for words, make in TRANSFORMS.items() if words not in simple and _alike(make(x), y))
    yield from filter(None, (_zero_rows(x, y, _alike), _clipped(x, y)))


def _about(x: np.ndarray, y: np.ndarray) -> Iterator[str]:
    """Transforms that hold up to rounding."""
    if x.ndim == 1 and (shift := _shift(x, y)):
        yield f"shifted once more, by {shift:.4g}: sigma' = s sigma / (1 + (s - 1) sigma)"
    if x.ndim == 1 and x.size > 2:  # what comes in at the end is the other's own
        late = ("a step ahead", np.append(x[1:], y[-1])), ("a step late", np.append(y[0], x[:-1]))
        yield from (words for words, made in late if _explains(made, x, y))
    yield from (words for words, made in laid_out(x) if _explains(made, x, y))
    if x.size > 1 and x.any():
        gain = _gain(x, y)
        if _explains(gain * x, x, y):
            yield "negated" if abs(gain + 1) <= EXACT else f"times {as_factor(gain)}"
    if x.size > 3 and np.ptp(x) > 0:
        slope, offset = np.polyfit(x.ravel(), y.ravel(), 1)
        if _explains(slope * x + offset, x, y):
            yield f"plus {offset:.5g}" if abs(slope - 1) <= EXACT else f"times {as_factor(slope)} plus {offset:.5g}"
    if how := _zero_rows(x, y, lambda a, b: norm(a - b) <= min(EXACT * norm(b), LEFT * norm(y - x))):
        yield how
    if x.ndim > 3 and _by_channel(x, y):
        yield "with another scale and offset in each channel"
    if x.size > 3 and _alike(np.sort(x, None), np.sort(y, None)):
        yield "in another order"
    if _kept_in_bfloat16(x, y):  # as what is a few percent larger may be too
        yield COMPUTED.words


def _gain(x: np.ndarray, y: np.ndarray) -> float:
    """The factor by which `x`, which is not zero throughout, is nearest to `y`."""
    return float(np.vdot(x, y) / np.vdot(x, x))


ULPS = 6
"""Roundings to bfloat16, half an ulp or 2^-8 each, in what was computed in it: some operations."""


def _kept_in_bfloat16(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether `y` holds numbers of bfloat16 alone, each within some roundings of `x`, which does not."""
    narrow = x.size > 1 and np.array_equal(y, bfloat16(y)) and not np.array_equal(x, bfloat16(x))
    return bool(narrow and (np.abs(y - x) <= ULPS * 2.0**-8 * np.abs(x)).all())


LARGEST_SHIFT = 20
"""Of those that models are sampled with."""


def _shift(x: np.ndarray, y: np.ndarray) -> float:
    """The factor by which a schedule's sigmas are shifted once more; 0 where they are not."""
    inside = (x > 0) & (x < 1) & (y > 0) & (y < 1)
    ends = np.allclose(x[~inside], y[~inside], atol=SAME)  # which a shift leaves as they are
    if x.size < 3 or not inside.any() or not ends:
        return 0.0
    factors = y[inside] * (1 - x[inside]) / (x[inside] * (1 - y[inside]))
    factor = float(factors.mean())
    halves = round(2 * factor)  # one sigma alone is shifted by some factor whatever was done to it
    if factors.size == 1 and (abs(2 * factor - halves) > EXACT * halves or halves > 2 * LARGEST_SHIFT):
        return 0.0
    return factor if factor > 1 + EXACT and np.ptp(factors) <= EXACT * factor else 0.0


def _by_channel(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether each channel [B, C, ...] of `y` is a scale and an offset of `x`'s."""
    fitted = None if x[0, 0].size < FEW else by_channel(x, y)
    if fitted is None:
        return False
    scale, offset = fitted
    varies = y - y.mean((0, *range(2, y.ndim)), keepdims=True)
    left = norm(scale * x + offset - y)
    exact = 2 * EXACT if np.array_equal(y, bfloat16(y)) else EXACT  # which rounds each of the operations
    return left <= exact * norm(varies) and left <= LEFT * norm(y - x)


def by_channel(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Scale and offset of each channel, [1, C, 1, ...], by which `x` [B, C, ...] is nearest to `y`.

    None where a channel of `x` holds one value alone.
    """
    axes = (0, *range(2, x.ndim))
    middle, other = x.mean(axes, keepdims=True), y.mean(axes, keepdims=True)
    square = ((x - middle) ** 2).sum(axes, keepdims=True)
    if not (square > 0).all():
        return None
    scale = ((x - middle) * (y - other)).sum(axes, keepdims=True) / square
    return scale, other - scale * middle


def laid_out(x: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """The values in other orders, with what each is."""
    for axis in range(x.ndim):
        along = f" along axis {axis}" if x.ndim > 1 else ""
        if x.shape[axis] > (1 if x.ndim > 1 else 2):
            yield f"from last to first{along}", np.flip(x, axis)
        if x.shape[axis] > 3 and x.shape[axis] % 2 == 0:
            yield f"with its halves{along} swapped", np.roll(x, x.shape[axis] // 2, axis)
    if x.ndim > 1 and x.shape[-1] == x.shape[-2]:
        yield "transposed", x.swapaxes(-1, -2)
    if x.ndim == 5 and not (x.shape[3] % PATCH or x.shape[4] % PATCH):
        yield from _unpatchified(x)


PATCH, PATCHES = 2, "with a patch's "
"""Its height and width, and how the words begin of another order within it."""


def _unpatchified(x: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """The pictures [B, C, T, H, W] of who reads a patch's values, C x p x p or p x p x C, as if in another order."""
    batch, channels, frames, height, width = x.shape
    patches = x.reshape(batch, channels, frames, height // PATCH, PATCH, width // PATCH, PATCH)
    axes = {"channels": 1, "row": 4, "column": 6}
    for laid, read in itertools.permutations(itertools.permutations(axes), 2):
        taken = patches.transpose(0, 2, 3, 5, *(axes[name] for name in laid))  # [B, T, H / p, W / p, a patch's]
        again = taken.reshape(*taken.shape[:4], *(patches.shape[axes[name]] for name in read))
        channel, row, column = (4 + read.index(name) for name in axes)
        put = again.transpose(0, channel, 1, 2, row, 3, column).reshape(x.shape)
        yield f"{PATCHES}{' x '.join(laid)} taken for {' x '.join(read)}", put


def unpacked(tokens: np.ndarray, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
    """Tokens [B, N, channels * patch * patch] as latents [B, channels, ..., H, W] of this shape, with more frames
    perhaps: a token is a square patch, its channels first or last."""
    if tokens.ndim != 3 or len(shape) < 4:
        return
    for patch in (1, 2):
        height, width = (size // patch for size in shape[-2:])
        frames = [tokens.shape[1] // max(1, height * width)] if len(shape) == 5 else [*shape[2:-2]]
        grid = [*frames, height, width]
        if tokens.shape[1:] != (math.prod(grid), shape[1] * patch**2):
            continue
        n = len(grid)
        last = tokens.reshape(-1, *grid, patch, patch, shape[1])
        first = np.moveaxis(tokens.reshape(-1, *grid, shape[1], patch, patch), n + 1, -1)
        for x in (first, last):  # [B, ..., H, W, patch, patch, channels]
            yield np.moveaxis(x.swapaxes(n, n + 1), -1, 1).reshape(-1, shape[1], *frames, height * patch, width * patch)


def last_frames(x: np.ndarray, like: np.ndarray) -> np.ndarray:
    """A view of a video [B, C, T, H, W] with as many frames as another: a step may leave out the first, an image's."""
    less = x.ndim == like.ndim == 5 and x.shape[:2] == like.shape[:2] and x.shape[3:] == like.shape[3:]
    return x[:, :, -like.shape[2] :] if less and like.shape[2] < x.shape[2] else x


def _zero_rows(x: np.ndarray, y: np.ndarray, alike: Callable[[np.ndarray, np.ndarray], bool]) -> str:
    """Rows that are zeros on one side alone, where the others are alike."""
    if x.ndim < 2:
        return ""
    rows, others = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
    zero = (np.count_nonzero(others, axis=1) == 0) & (np.count_nonzero(rows, axis=1) > 0)
    if not zero.any() or not alike(rows[~zero], others[~zero]):
        return ""
    return f"with {int(zero.sum())} of its {len(zero)} rows zero"


def _clipped(x: np.ndarray, y: np.ndarray) -> str:
    """Values beyond a bound set to it, where all others agree; one alone shows no bound."""
    bounds = ("at least", y.min(), x < y.min()), ("at most", y.max(), x > y.max())
    ends = [f"{end} {bound:.5g}" for end, bound, beyond in bounds if beyond.sum() > 1]
    within = x[(x > y.min()) & (x < y.max())]
    if not ends or not within.size or not _alike(np.clip(x, y.min(), y.max()), y):
        return ""
    return f"clipped to {' and '.join(ends)}"


def _alike(x: np.ndarray, y: np.ndarray) -> bool:
    return bool((np.abs(x - y) <= WITHIN * np.abs(y)).all())


def _explains(made: np.ndarray, x: np.ndarray, y: np.ndarray) -> bool:
    """Whether what was made of `x` is `y`, and `x` itself is not."""
    left = norm(made - y)
    return left <= EXACT * norm(y) and left <= LEFT * norm(y - x)
