"""Guidance: how a side combines the predictions of its branches, fitted to them, and what of it is another's.

noise_pred = size (uncond + scale (cond - uncond) + scale (another - uncond) + ...), of which some pipelines then give
each row the norm of cond's. The weights are fitted on each side by itself. The order in which a side computed it in
bfloat16 is read off by doing it again operation by operation. numpy only.

Cost. A few passes over the predictions, at the first step that differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from parity.compare.result import Cause, measured
from parity.compare.values import MATCH, PREDICTED, SAME, Kept, Seen, Values, apart
from parity.settings import BITS
from parity.transforms import EXACT, bfloat16, last_frames, norm, stored_as, unpacked

Made = tuple[np.ndarray, float]
"""A value, and how far rounding may move what comes of the same."""


def fitted(target: np.ndarray, *values: np.ndarray) -> tuple[np.ndarray, float]:
    """The weights of some values in a sum of them that is nearest to a target, and the norm of what it leaves over."""
    columns = np.stack([x.ravel() for x in values], axis=1)
    weights, *_ = np.linalg.lstsq(columns, target.ravel(), rcond=None)
    return weights, norm(columns @ weights - target.ravel())


ROUNDINGS = 4
"""Roundings, of half a last bit each, from the latents to what is decoded: a cast, a constant, a product, a sum."""
LEAST = 1e-5
"""Relative difference below which two scales are one: float32 constants, and a division or a product by the inverse."""


def several_roundings(*values: np.ndarray) -> float:
    """What several roundings move something by that is made of these values, relative."""
    return max(LEAST, ROUNDINGS * rounding(*values))


def by_rounding(size: np.ndarray, *values: np.ndarray) -> float:
    """The same of something of this size, absolute."""
    return several_roundings(*values) * norm(size)


@dataclass(frozen=True, slots=True)
class Combined:
    """How a side combined its branches.

    Attributes:
        scales: of each branch but uncond. size: a common factor; some pipelines hand on the negated prediction. left:
            the norm of what rounding left over. unsure, size_unsure: how far it may have moved them; a scale is read
            off where its branch parts from the others. firm: whether rounding alone is left over, and hides no factor.
            normed: the branch whose norm each row is given then; empty for none.
    """

    scales: Mapping[str, float]
    size: float
    left: float
    unsure: Mapping[str, float]
    size_unsure: float
    firm: bool
    normed: str = ""

    @property
    def scale(self) -> float:
        """Of cond."""
        return self.scales["cond"]

    def scale_in(self, kept: Kept) -> float:
        """Of cond, read off the ratio of the branches, or off one branch's weight."""
        return {"cond": self.size * self.scale, "uncond": 1 - self.size * (1 - self.scale)}.get(kept, self.scale)

    @property
    def is_fitted(self) -> bool:
        """Whether its factor depends on the values, as one that is no sign does."""
        return abs(self.size) != 1.0

    @property
    def is_read(self) -> bool:
        """Whether it guides by a scale and nothing else."""
        return not self.is_fitted and any(abs(scale - 1) > EXACT for scale in self.scales.values())

    @property
    def is_plain(self) -> bool:
        """Whether it has no factor, for certain."""
        return self.firm and not self.is_fitted

    def told(self, scale: float) -> float:
        """A scale of cond as people know it: nobody guides by less than 0, but a batch may have its cond first, which
        then has the other's name."""
        return 1 - scale if self.scale < 0 and len(self.scales) == 1 else scale

    def near(self, other: Combined, branch: str = "cond") -> float:
        """How far apart two scales are at most that may be one."""
        return EXACT * max(1.0, abs(self.scales[branch])) + self.unsure[branch] + other.unsure[branch]

    def apart(self, other: Combined) -> bool:
        """Whether a scale is another, or of another branch."""
        if self.scales.keys() != other.scales.keys():
            return True
        return any(abs(other.scales[name] - scale) > self.near(other, name) for name, scale in self.scales.items())

    def turned(self, other: Combined) -> bool:
        """Whether it is the other one with cond and uncond exchanged, of which there is no third."""
        alone = self.scales.keys() == other.scales.keys() == {"cond"}
        return alone and abs(other.scale - (1 - self.scale)) <= self.near(other)

    def resized(self, size: float) -> bool:
        """Whether its factor is another than this."""
        return abs(self.size - size) > EXACT + self.size_unsure

    def __str__(self) -> str:
        cond, *others = ((self.size * scale, name) for name, scale in self.scales.items())
        terms = [(self.size * (1 - sum(self.scales.values())), "uncond"), *others]
        told = (f" {'-' if x < 0 else '+'} {abs(x):.4g} {name}" for x, name in terms if abs(x) > EXACT)
        return f"{cond[0]:.4g} cond{''.join(told)}"


def combined(values: Values) -> Combined | None:
    """Fitted to the branches' predictions and the guided one; None where that is no combination of them."""
    parts = branches_of(values)
    if parts is None:
        return None
    found, channels = _combined(parts), math.prod(values["", PREDICTED].shape[-1:])
    for name in ("cond", "uncond"):
        plain = _not_normed(parts, name, channels) if found is None else None
        own = None if plain is None else _combined(plain)
        found = found if own is None else replace(own, normed=name)
    return found


def _not_normed(parts: Mapping[str, np.ndarray], of: str, channels: int) -> dict[str, np.ndarray] | None:
    """The same before each row of the guided prediction got the norm of a branch's; None where it did not."""
    if parts.keys() != {"cond", "uncond", ""} or channels < LEAST_CHANNELS:
        return None
    cond, uncond, guided = (parts[name].reshape(-1, channels) for name in ("cond", "uncond", ""))
    norms = [np.linalg.norm(x, axis=-1, keepdims=True) for x in (parts[of].reshape(-1, channels), guided)]
    if not norms[1].all() or apart(*norms) > max(EXACT, 2 * rounding(guided, cond)):
        return None
    along = guided / norms[1]
    beside = [x - (x * along).sum(-1, keepdims=True) * along for x in (uncond, cond - uncond)]
    if not beside[1].any():
        return None
    scale = -float(np.vdot(*beside) / np.vdot(beside[1], beside[1]))
    sizes = ((uncond + scale * (cond - uncond)) * along).sum(-1, keepdims=True)
    return {**parts, "": (np.abs(sizes) * along).ravel()}


def _combined(held: Mapping[str, np.ndarray]) -> Combined | None:
    parts = dict(held)
    guided, uncond = parts.pop(""), parts["uncond"]
    apart = {name: x - uncond for name, x in parts.items() if name != "uncond"}
    every, left = fitted(guided, uncond, *apart.values())
    size, weights = float(every[0]), every[1:]
    least = min(norm(x) for x in parts.values())
    size_unsure = left / least if least else math.inf
    if abs(abs(size) - 1.0) <= EXACT + size_unsure:  # may be 1 or -1, and then is
        size = math.copysign(1.0, size)
        weights, left = fitted(guided - size * uncond, *apart.values())
    products = sum(abs(weight) * norm(x) for weight, x in zip(weights, apart.values(), strict=True))
    whole = norm(guided)
    rounded = rounding(guided, *parts.values()) * (whole + 2 * products)  # a sum; a difference, a product
    if left > max(EXACT * whole, rounded) or abs(size) < SAME:
        return None
    angles = np.array([[float(np.vdot(x, y)) for y in apart.values()] for x in apart.values()])
    known = np.linalg.matrix_rank(angles) == len(angles)
    unsure = left * np.sqrt(np.diag(np.linalg.inv(angles))) if known else np.full(len(angles), math.inf)
    if abs(size) != 1.0:
        unsure = (unsure + abs(weights / size) * size_unsure) / abs(size)
    scales = dict(zip(apart, (float(weight / size) for weight in weights), strict=True))
    firm = left <= ROUNDINGS * rounded and size_unsure <= LEAST
    return Combined(scales, size, left, dict(zip(apart, unsure.tolist(), strict=True)), size_unsure, firm)


LEAST_CHANNELS = 8
"""Of a row: of fewer numbers many have the direction of a sum by chance."""


def branches_of(values: Values) -> dict[str, np.ndarray] | None:
    """What is guided of the branches' predictions, cond first, and under "" the guided one, flat; None where they do
    not fit, or one of cond and uncond is not there."""
    names = sorted((name for name, site in values if site == PREDICTED and name), key=lambda n: (n != "cond", n))
    guided = values.get(("", PREDICTED))
    if guided is None or not {"cond", "uncond"} <= set(names):
        return None
    parts = {name: np.ravel(_like(values[name, PREDICTED], guided)) for name in names} | {"": np.ravel(guided)}
    fit = len({x.size for x in parts.values()}) == 1 and all(np.isfinite(x).all() for x in parts.values())
    return parts if fit else None


def _is_alone(values: Values) -> bool:
    """Whether a side runs one branch and hands on what that predicts."""
    branches = [x for (name, site), x in values.items() if site == PREDICTED and name]
    guided = values.get(("", PREDICTED))
    if guided is None or len(branches) != 1:
        return False
    own = np.ravel(_like(branches[0], guided))
    return any(np.array_equal(sign * own, guided.ravel()) for sign in (1, -1))


def rounding(*values: np.ndarray) -> float:
    """What one rounding of values of the coarsest dtype among these moves them by, relative and on average."""
    return 2.0 ** -(1 + min(BITS[stored_as(x)] for x in values))


def _like(x: np.ndarray, guided: np.ndarray) -> np.ndarray:
    """What of a prediction is guided, as that lies: its first channels, where a learned variance follows them, and its
    last frames, where those of an image come before them."""
    if guided.ndim < 2:
        return x
    more = x.ndim == guided.ndim and x.shape[2:] == guided.shape[2:]
    return x[:, : guided.shape[1]] if more else last_frames(next(unpacked(x, guided.shape), x), guided)


FIRM = 0.25
"""How much less the scale must have moved that guidance keeps, than it would in any other of its weights."""


def kept(first: Combined, later: Combined) -> Kept:
    """In what a side's guidance keeps its scale at two steps; empty where it has no factor, or that is the same."""
    if not first.scales.keys() == later.scales.keys() == {"cond"} or not later.resized(first.size):
        return ""
    ways: tuple[Kept, ...] = ("both", "cond", "uncond")
    moved = {way: abs(later.scale_in(way) - first.scale_in(way)) for way in ways}
    least, other, _ = sorted(ways, key=lambda way: moved[way])
    return least if moved[least] <= min(first.near(later), FIRM * moved[other]) else ""


def own_guided(seen: Seen) -> Made | None:
    """What the reference's guidance makes of the candidate's branches, where it guides by scales, or by one scale and a
    factor that it fits to the values; that factor is the candidate's own."""
    first, parts = combined(seen.ours), branches_of(seen.theirs)
    if _is_alone(seen.ours) != _is_alone(seen.theirs):
        return _own_alone(first, seen)
    second = combined(seen.theirs)
    if first is None or parts is None or parts.keys() - {"", "uncond"} != first.scales.keys():
        return None
    if first.is_fitted:
        return _own_resized(first, second, parts, seen) if seen.kept and second is not None else None
    if second is not None and first.turned(second):
        return None  # branches of such closeness may only be called by each other's names
    guided, made, near, products = seen.theirs["", PREDICTED], parts["uncond"], first.left, 0.0
    for name, scale in first.scales.items():
        apart = parts[name] - parts["uncond"]
        made, size = made + scale * apart, norm(apart)
        near, products = near + EXACT * max(1.0, abs(scale)) * size, products + abs(scale) * size
    rounded = rounding(*parts.values()) * (norm(made) + 2 * products)
    made = first.size * made.reshape(guided.shape)  # predictions may be a list's items
    if first.normed:
        alike = second is not None and second.normed == first.normed  # then the norms are right, but for rounding
        like = guided if alike else parts[first.normed].reshape(made.shape)
        made *= np.divide(*(np.linalg.norm(x, axis=-1, keepdims=True) for x in (like, made)))
        near += 0.0 if alike else by_rounding(made, *parts.values())  # of two norms, their ratio and its product
    return made, near + (rounded if second is None or second.is_fitted else second.left)


def _own_alone(first: Combined | None, seen: Seen) -> Made | None:
    """The same where one side runs a branch alone: the reference's guidance moves the candidate's prediction as far as
    its own, or not at all."""
    ours, theirs, guided = branches_of(seen.ours), branches_of(seen.theirs), seen.theirs["", PREDICTED]
    if first is not None and ours is not None:
        parts, made, left = ours, guided.ravel() + ours[""] - ours["cond"], first.left
    elif theirs is not None:
        parts, made, left = theirs, theirs["cond"], 0.0
    else:
        return None
    products = abs(first.scale if first else 1.0) * norm(parts["cond"] - parts["uncond"])
    rounded = rounding(*parts.values()) * (norm(parts[""]) + 2 * products)
    return made.reshape(guided.shape), left + 2 * rounded  # of the guided one, and of the one that is not


def _own_resized(first: Combined, second: Combined, parts: Mapping[str, np.ndarray], seen: Seen) -> Made:
    """The same with the candidate's own factor of what the reference's guidance resizes."""
    cond, uncond, guided = parts["cond"], parts["uncond"], parts[""]
    scale = first.scale_in(seen.kept)
    ways = {"cond": (scale * cond, uncond), "uncond": ((1 - scale) * uncond, cond)}
    fixed, free = ways.get(seen.kept, (0.0 * guided, uncond + scale * (cond - uncond)))
    made = fixed + fitted(guided - fixed, free)[0][0] * free
    near = EXACT * max(1.0, abs(scale)) * norm(cond - uncond)
    return made.reshape(seen.theirs["", PREDICTED].shape), first.left + near + second.left


def guidance(seen: Seen) -> Iterator[Cause]:
    """Branches that are swapped or lost, steps that guidance zeroes, another scale, sign or factor."""
    first, second = combined(seen.ours), combined(seen.theirs)
    names = {"cond", "uncond", *({} if first is None else first.scales)}
    if not (other := _far(seen, *zip(names, names, strict=True)) > EXACT):
        yield from _zeros(seen)
    elif (far := _far(seen, ("cond", "uncond"), ("uncond", "cond"))) <= EXACT:
        text = "the branches are swapped: the candidate's cond is the reference's uncond (negative and positive prompt)"
        yield measured(text, "guidance", "cond, uncond", "uncond, cond", far)  # what they are given is listed
        return
    # Without an uncond branch the candidate predicts what the reference's cond does.
    alone = _is_alone(seen.theirs) or (("uncond", PREDICTED) not in seen.theirs and _far(seen, ("cond", "")) <= EXACT)
    if first is not None and alone and (first.is_fitted or first.is_read):
        scale = first.told(first.scale)
        text = f"the guidance scale of {scale:.4g} is lost: the candidate runs one branch alone, cond"
        yield measured(text, "guidance", scale, 1.0, at=PREDICTED)
    elif first is None and second is not None and second.is_read and _is_alone(seen.ours):
        text = f"the candidate guides by {second.scale:.4g} where the reference runs one branch alone, cond"
        yield measured(text, "guidance", 1.0, second.scale, second.scale, at=PREDICTED)
    elif first and second and (second.is_plain or not (first.is_fitted and other)):
        yield from _combined_otherwise(first, second)  # a factor is fitted to the values, which differ, or is none
    elif first is None or second is None:
        yield from _combined_alone(first, second, seen)
    elif seen.kept:
        scale, own = first.scale_in(seen.kept), second.scale_in(seen.kept)
        if abs(own - scale) > first.near(second):
            text = f"the guidance scale is {own:.4g}, not {scale:.4g}"
            yield measured(text, "guidance", scale, own, own, at=PREDICTED)


def _combined_alone(first: Combined | None, second: Combined | None, seen: Seen) -> Iterator[Cause]:
    """Branches that one side alone combines to a sum of them; a plain one of the reference's is judged by itself."""
    known, side, other = first, "reference", "candidate"
    if first is None:
        known, side, other = second, other, side
    both = all(parts and np.any(parts[""]) for parts in map(branches_of, (seen.ours, seen.theirs)))
    if both and known and known.firm and not (known is first and first.is_plain):
        text = f"noise_pred is {known} on the {side}, and no such sum of its branches on the {other}"
        yield measured(text, "guidance", at=PREDICTED)


def _combined_otherwise(first: Combined, second: Combined) -> Iterator[Cause]:
    apart, resized = first.apart(second), second.resized(first.size)
    scale, other = first.told(first.scale), first.told(second.scale)
    text, setting, sides = "", "guidance", (scale, other)
    if bool(first.normed) != bool(second.normed) and math.isfinite(first.near(second)):  # the branches part
        side, without = ("reference", "candidate") if first.normed else ("candidate", "reference")
        said = f"each row of the guided prediction is given a branch's norm on the {side}, not on the {without}"
        yield measured(said, "guidance.norm", first.normed, second.normed, at=PREDICTED)
        if resized:
            return  # by one norm of all rows, perhaps
    if first.turned(second) and abs(scale - 0.5) > first.near(second):
        swap = "the branches or the prompts are swapped"
        text = f"guidance is applied the wrong way round ({swap}): scale {other:.4g} for {scale:.4g}"
    elif apart and (resized or len({*first.scales, *second.scales}) > 1):
        # No scale is to be read off: a factor on one branch (CFG-Zero*) or a projection (APG) moves both numbers.
        text = f"the branches are combined otherwise: noise_pred is {second}, not {first}"
    elif apart:
        none = abs(other - 1) <= first.near(second)
        text = f"the guidance scale is {other:.4g}, not {scale:.4g}{' (none is applied)' * none}"
    elif abs(second.size + first.size) <= EXACT * abs(first.size):
        text, setting, sides = "the guided prediction is negated on the candidate", "guidance.sign", (1.0, -1.0)
    elif resized:
        text = f"the guided prediction is rescaled by {first.size:.4g} on the reference, by {second.size:.4g} on the "
        text, setting, sides = f"{text}candidate: guidance_rescale", "guidance_rescale", (first.size, second.size)
    if text:
        yield measured(text, setting, *sides, sides[1], at=PREDICTED)


def _far(seen: Seen, *branches: tuple[str, str]) -> float:
    """How far predictions of (reference, candidate) in these branches are apart at most; inf where a side has none."""
    pairs = [(seen.ours.get((a, PREDICTED)), seen.theirs.get((b, PREDICTED))) for a, b in branches]
    far = [math.inf if a is None or b is None or a.shape != b.shape else apart(a, b) for a, b in pairs]
    return float(np.max(far))  # which keeps a NaN


def _zeros(seen: Seen) -> Iterator[Cause]:
    """A step that guidance leaves out by zeros (zero-init of CFG-Zero*), on one side alone."""
    pair = seen.pair(PREDICTED)
    if pair is None or bool(np.any(pair[0])) == bool(np.any(pair[1])):
        return
    zeroed, other = ("candidate", "reference") if np.any(pair[0]) else ("reference", "candidate")
    text = (
        f"at step {seen.step} the guided prediction is zeros on the {zeroed} and not on the {other}: the steps that "
        "guidance zeroes (zero_steps, zero_init_steps) are counted otherwise, or the guider was not reset"
    )
    first, second = (float(not np.any(x)) for x in pair)
    yield measured(text, "guidance.zero_steps", first, second, float(seen.step), at=PREDICTED)


# --- the same guidance in another order: right, no floor is broken, and bits differ

GUIDED: dict[str, Callable[[np.ndarray, np.ndarray, float], np.ndarray]] = {
    "uncond + scale (cond - uncond)": lambda c, u, s: bfloat16(u + bfloat16(s * bfloat16(c - u))),
    "cond + (scale - 1) (cond - uncond)": lambda c, u, s: bfloat16(c + bfloat16((s - 1.0) * bfloat16(c - u))),
    "scale cond + (1 - scale) uncond": lambda c, u, s: bfloat16(bfloat16(s * c) + bfloat16((1.0 - s) * u)),
}


def rounded_otherwise(seen: Seen) -> Iterator[str]:
    """A sentence where the sides combine their branches in another order and to the same end."""
    a, b = combined(seen.ours), combined(seen.theirs)
    alike = a is not None and b is not None and abs(a.scale - b.scale) <= a.near(b)
    if alike and (ways := seen.ways(_guided_as)):
        guided = f"guidance is computed as {ways[1]} on the candidate, as {ways[0]} on the reference"
        yield f"{guided}: the same but for rounding in bfloat16"


def _guided_as(values: Values) -> str:
    """The way in which a side combined its branches in bfloat16; empty where it is none of those that are known."""
    parts, own = branches_of(values), combined(values)
    if parts is None or own is None or {*map(stored_as, parts.values())} != {"bfloat16"}:
        return ""
    scales = dict.fromkeys(round(own.scale, digits) for digits in (0, 1, 2))
    made = ((name, way(parts["cond"], parts["uncond"], scale)) for scale in scales for name, way in GUIDED.items())
    return next((name for name, x in made if float(np.mean(x == parts[""])) >= MATCH), "")
