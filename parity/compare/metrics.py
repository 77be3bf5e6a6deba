"""How far two records are apart: relative L2 from sketches (exact where values are held), cosine, extremes, bins.

Contract and inside. What the loop computes, what it gives the model and what comes after it are the contract: there two
records line up, or they differ. Inside a port, which is built otherwise, what does not line up (another shape, other
rows, a number, None on one side) is not compared: neither a difference nor an agreement. A mask that one side lacks
stays a difference. The arguments of a port's own model are its own as far as their shapes go: a timestep for each
token, text without its padding.

numpy only, in float64. Distances between sketches are estimates (`parity.sketch`: 2 % typically); where both
sides hold the value they are exact. A golden's values are mapped files larger than memory, so they are walked in blocks
that stay in the processor's cache. Infinities that both hold, and NaNs that both hold, count as no difference.

Cost. One read of both values, some three times the time of numpy's `norm(y - x) / norm(x)` in memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from parity.compare.result import NAN, UNKNOWN, Distance, SiteDiff
from parity.records import AFTER, FRAMES, LOOP, MODELS, Floor, Key, Record
from parity.settings import BITS
from parity.sketch import TOTAL, Geometry, bin_norms

BLOCK = 1 << 13
"""Elements: small enough that BLAS does not wake its threads (from 10,000 on), which costs more than it gains."""


def compare_values(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float, float]:
    """Compare two arrays of one shape; memory maps are read block by block.

    Returns:
        ||y - x||, ||x||, their cosine, and the largest |y - x|.
    """
    x, y = x.reshape(-1), y.reshape(-1)
    total, largest = np.zeros(4), 0.0
    with np.errstate(all="ignore"):
        for start in range(0, x.size, BLOCK):
            a, b = (z[start : start + BLOCK].astype(np.float64) for z in (x, y))
            apart = b - a
            if not np.isfinite(apart.sum()):
                apart[(np.isnan(a) & np.isnan(b)) | (np.isinf(a) & (a == b))] = 0.0
            total += apart @ apart, a @ a, b @ b, a @ b
            largest = float(np.maximum(largest, np.abs(apart).max()))  # which keeps a NaN
        l2, scale, other = (float(root) for root in np.sqrt(total[:3]))
    return l2, scale, float(total[3]) / (scale * other) if scale > 0 and other > 0 else NAN, largest


def sketch_distance(reference: Record, candidate: Record) -> float:
    """Relative L2 of two tensors by their sketches alone; NaN where these do not tell."""
    if reference.sketch is None or candidate.sketch is None or reference.frame != candidate.frame:
        return NAN
    with np.errstate(invalid="ignore"):  # of what is infinite on both sides
        size = float(np.linalg.norm(reference.sketch.astype(np.float64)))
        far = float(np.linalg.norm(np.subtract(candidate.sketch, reference.sketch, dtype=np.float64)))
    return far / size if math.isfinite(far) and size > 0.0 else NAN


def far_apart(a: Record, b: Record) -> float:
    """The same; infinite where they do not line up."""
    far = sketch_distance(a, b) if a.shape == b.shape else math.inf
    return math.inf if math.isnan(far) else far


def comparable_shapes(reference: Record, candidate: Record) -> bool:
    """Whether two tensors line up element by element.

    A part of a joint sequence, or rows taken in a frame, do although the whole tensors' lengths differ. Inside a model
    an axis of one more or less (a batch of one that one side leaves out) moves no element; in another place it may be
    another batch. What the loop and the stages behind it hand on has one shape: others read it.
    """
    key = reference.key
    if reference.frame != candidate.frame or reference.rows != candidate.rows:
        return False
    if other_pictures(reference, candidate):
        return False
    if reference.rows or key.is_part:
        return True
    if is_contract(key):
        return reference.shape == candidate.shape
    return one_shape(reference.shape, candidate.shape)


def is_contract(key: Key) -> bool:
    """Whether shapes and rows must line up here, whoever made the model."""
    return key.module == LOOP or key.stage == AFTER


def other_pictures(reference: Record, candidate: Record) -> bool:
    """Whether frames are floats of 0 to 1 on one side and levels of 8 bits on the other: another `output_type`."""
    levels = [record.dtype == "uint8" for record in (reference, candidate)]
    return reference.key.site.startswith(FRAMES) and levels[0] != levels[1]


def one_shape(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether two shapes are one, but for axes of one that only one of them has."""
    return a == b or (len(a) != len(b) and [n for n in a if n != 1] == [n for n in b if n != 1])


def between(
    x: np.ndarray, y: np.ndarray, view: Geometry, alike: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Compare many sketches at once.

    Args:
        x, y: float32 [pairs, size], the reference's and the candidate's. view: of their tensors.
        alike: bool [pairs], whether both sides hold as many NaNs and as many infinities: counters that are nonfinite
            alike then count as equal, as of an additive mask that holds -inf on both sides.

    Returns:
        Float64 [pairs]: ||y - x||, NaN where either holds a NaN or an infinity that the other does not; ||x||; their
        cosine. And of each row bin, [pairs, bins], ||y - x||.
    """
    with np.errstate(all="ignore"):
        whole, apart = slice(None) if view.exact else slice(TOTAL), np.subtract(y, x, dtype=np.float64)
        if not np.isfinite(apart.sum()):
            same = (np.isnan(x) & np.isnan(y)) | (np.isinf(x) & (x == y))
            apart[same & alike[:, None]] = 0.0
        totals = (v[:, whole].astype(np.float64, copy=False) for v in (apart, x, y))
        l2, own, other = (np.sqrt(np.vecdot(v, v)) for v in totals)
        # |x - y|^2 = |x|^2 + |y|^2 - 2 xy, all three from the same counters
        cosine = np.where((own > 0) & (other > 0), (own**2 + other**2 - l2**2) / 2 / (own * other), NAN)
        return l2, own, cosine, bin_norms(apart, view)


def distance(l2: float, scale: float, floor: float) -> Distance:
    """A measured distance relative to the reference's norm, with its floor; what is of zeros is absolute."""
    scale = scale if scale > 0 else 1.0
    return Distance(l2 / scale, floor / scale, ratio(l2, floor))


def ratio(value: float, floor: float) -> float:
    """value / floor; 0 where both are 0, inf where only the floor is, NaN where either is NaN or the floor infinite."""
    return float(ratios(np.array(value), np.array(floor)))


def ratios(values: np.ndarray, floors: np.ndarray) -> np.ndarray:
    """`ratio` of many."""
    with np.errstate(all="ignore"):
        found = np.where(floors == 0.0, np.where(values == 0.0, 0.0, math.inf), values / floors)
    return np.where(np.isnan(values) | ~np.isfinite(floors), NAN, found)


# --- two records of one site

ONE_SIDED = "observed on one side only"
UNLIKE = Distance(NAN, NAN, math.inf)
_EQUAL = Distance(0.0, 0.0, 0.0)


def compared(a: Record | None, b: Record | None, floor: Floor | None, drawn: SiteDiff, *, own: bool) -> SiteDiff:
    """One site, before it is known where a divergence starts.

    Args:
        a, b: the reference's record and the candidate's. floor: of the reference's. drawn: the site, with what its
            sketches say of it. own: whether the module is a port's own.
    """
    if a is None or b is None:
        return replace(drawn, distance=UNLIKE, note=ONE_SIDED)
    if a.kind == b.kind == "tensor":
        return _tensors(a, b, floor or Floor(NAN), drawn, own=own)
    equal = a.kind == b.kind and (a.value == b.value or (a.value != a.value and b.value != b.value))  # NaN is NaN
    if equal or (nothing(a) and nothing(b)) or _same_number(a, b) or _no_mask(a, b):
        return replace(drawn, distance=_EQUAL)
    inside = own and _may_be_unlike(a, b)
    return _unlike(replace(drawn, note=f"{what(a)} against {what(b)}"), inside)


def _no_mask(a: Record, b: Record) -> bool:
    """Whether one side has no mask and the other one that lets every key through; zeros may let none through."""
    tensor = a if a.kind == "tensor" else b
    every = {*tensor.shape[-1:]} == keys_through(tensor) and not is_zero(tensor)
    return {a.kind, b.kind} == {"none", "tensor"} and "mask" in a.key.port and every


def _same_number(a: Record, b: Record) -> bool:
    """Whether a number and a tensor that holds one are the same in the tensor's dtype: a compiled function returns its
    numbers as arrays."""
    scalar, tensor = (a, b) if a.kind == "scalar" else (b, a)
    m = tensor.moments
    if not isinstance(scalar.value, (bool, int, float)) or m is None or tensor.shape != () or tensor.nonfinite:
        return False
    return abs(float(scalar.value) - m.mean) <= 2.0 ** -BITS.get(tensor.dtype, 24) * abs(m.mean)


def _unlike(diff: SiteDiff, inside: bool) -> SiteDiff:
    """A site that does not line up, by its place."""
    if not inside:
        return replace(diff, distance=UNLIKE)
    return diff if diff.verdict == "ignored" else replace(diff, verdict="not compared")


def _may_be_unlike(a: Record, b: Record) -> bool:
    """Whether one side may give something inside a port and the other nothing: what a model is given, and a mask, only
    if it is zeros, as for a condition that a prompt lacks; a mask's are floats, which are added."""
    tensor = a if a.kind == "tensor" else b
    if a.key.module not in MODELS and not (is_mask(a) or is_mask(b)):
        return True
    zeros = {a.kind, b.kind} == {"none", "tensor"} and is_zero(tensor)
    return zeros and (a.key.module in MODELS or "float" in tensor.dtype)


def _tensors(a: Record, b: Record, floor: Floor, drawn: SiteDiff, *, own: bool) -> SiteDiff:
    comparable = comparable_shapes(a, b)
    if comparable and not math.prod(a.frame):  # there is nothing in them
        return replace(drawn, distance=_EQUAL)
    measured = comparable and a.sketch is not None and b.sketch is not None
    x, y = a.value, b.value
    if comparable and isinstance(x, np.ndarray) and isinstance(y, np.ndarray) and one_shape(x.shape, y.shape):
        drawn, measured = _exactly(x, y, floor, drawn), True
    equal, as_many = same_mask(a, b) if not measured or drawn.distance.rel_l2 != 0.0 else (False, False)
    if equal and is_zero(a) != is_zero(b) and all("float" in mask.dtype for mask in (a, b)):
        return _unlike(replace(drawn, distance=UNKNOWN, peak=0.0, bins=(), note=FORMS), inside=True)
    if equal or as_many:
        diff = replace(drawn, distance=_EQUAL, cosine=NAN, max_abs=NAN, linf_ratio=NAN, peak=0.0, bins=())
        return diff if equal else _unlike(replace(diff, distance=UNKNOWN, note=MASKS), inside=True)
    if measured and math.isnan(drawn.distance.rel_l2) and not (a.nonfinite or b.nonfinite):
        return replace(drawn, note=HUGE)
    if measured or a.key.is_apart:  # what never decides, and was not compared, says nothing about the whole
        return drawn
    if comparable:
        return _unlike(replace(drawn, note="no sketch is held"), inside=True)
    if (far := _of_one_number(a, b, floor)) is not None:
        return replace(drawn, distance=far)
    if (note := _other_keys(a, b)) and a.key.module in MODELS:
        return _unlike(replace(drawn, note=note), inside=False)
    note = unlike(a, b)
    inside = (own and not is_contract(a.key)) or _of_other_calls(a, b)
    return _unlike(replace(drawn, note=note), note == PICTURES or inside)


def _of_one_number(a: Record, b: Record, floor: Floor) -> Distance | None:
    """How far an input is from the one number that the other side gives in the place of all: a timestep for each token,
    or one. As if every element were as far as the farthest; None where neither side gives one number."""
    m, n = a.moments, b.moments
    if not a.key.is_input or is_contract(a.key) or m is None or n is None or a.nonfinite or b.nonfinite:
        return None
    one, many = sorted((m, n), key=lambda moments: moments.count)
    made_of_it = many.min != many.max and 2 * abs(many.mean - one.mean) > abs(one.mean)  # its sinusoids, perhaps
    if one.count != 1 or (a.key.module and made_of_it):
        return None
    far, mean = max(abs(m.min - n.min), abs(m.max - n.max)), math.sqrt(m.count)
    return distance(far, m.l2 / mean, floor.l2 / mean)


def _of_other_calls(a: Record, b: Record) -> bool:
    """Whether predictions of a branch are of other numbers of videos: a side may call its model once for each. What
    they are combined to decides."""
    return a.key.module == LOOP and a.key.branch != "" and a.shape[:1] != b.shape[:1] and a.shape[1:] == b.shape[1:]


def _exactly(x: np.ndarray, y: np.ndarray, floor: Floor, drawn: SiteDiff) -> SiteDiff:
    """The site by the two values; its row bins come from the sketches beside them, as the floors' do."""
    l2, scale, cosine, largest = compare_values(x, y)
    far, linf = distance(l2, scale, floor.l2), ratio(largest, floor.linf)
    peak = drawn.peak if math.isnan(linf) else max(drawn.peak, linf)
    return replace(drawn, distance=far, cosine=cosine, max_abs=largest, linf_ratio=linf, peak=peak)


def axes_between(ours: Sequence[int], theirs: Sequence[int]) -> list[tuple[int, ...]]:
    """The orders of the axes of pictures or videos [B, ...] that take one shape to the other, where the channels are
    first, last, or behind the frames; none where there is no such order."""
    last = len(ours) - 1
    places = [1, 2, last] if last > 3 else [1, last] if last > 2 else []
    found = dict[tuple[int, ...], None]()
    for source, target in itertools.permutations(places, 2):
        axes = [*range(len(ours))]
        axes.insert(target, axes.pop(source))
        if [ours[axis] for axis in axes[1:]] == [*theirs[1:]]:
            found[tuple(axes)] = None
    return [*found]


# --- records that do not line up

UNREAD = "differs in padded rows alone, which no query reads"
"""The note of a joint sequence whose figures are those of the rows that are read."""
REORDERED = "its rows that are read are the same in another order, or stand elsewhere"
"""The note of a sequence whose figures are those of sums over the rows that are read."""
UNSEEN = "differs beyond -1 to 1 alone, which no picture shows"
"""The note of frames whose figures are those of what is shown."""


def unread(key: Key) -> str:
    """The note of a site whose figures are those of what is read of it."""
    return UNSEEN if key.stage == AFTER else UNREAD


def what(record: Record) -> str:
    """A record in a word or two."""
    return "None" if record.kind == "none" else "a tensor" if record.kind == "tensor" else f"{record.value!r}"


def nothing(record: Record) -> bool:
    """Whether a record is of None, or of rows that a mask lets none of through: what is behind it is nobody's."""
    if record.kind != "tensor":
        return record.kind == "none"
    return record.rows != "" and is_zero(record)


def is_zero(record: Record) -> bool:
    """Whether every element is zero; moments are those of finite elements alone."""
    m = record.moments
    return m is not None and m.l2 == 0.0 and not m.nan and not m.inf


HUGE = "numbers too large for their sums"
MASKS = "masks of other forms that let as many keys through"
FORMS = "a mask of zeros against one of ones: all is read, if zeros are added, or nothing is"
PICTURES = "pictures of 8 bits against floats"


def is_mask(record: Record) -> bool:
    """Whether it says which keys are read, by its name or by its dtype."""
    return "mask" in record.key.port or (record.kind == "tensor" and "bool" in record.dtype)


ALIKE = 1e-5
"""Relative difference of the moments of the same values: that of float32."""


def same_mask(a: Record, b: Record) -> tuple[bool, bool]:
    """Whether two masks let the same keys through: ones and zeros, or numbers that are added to the scores.

    Returns:
        Whether they do, where the sketches hold which keys; whether they let as many through, where nothing else of
        masks of other shapes or dtypes can be compared.
    """
    if "mask" not in a.key.port:
        return False, False
    lines_up = one_shape(a.shape, b.shape) and not a.rows and not b.rows
    if lines_up and Geometry(*a.frame).exact and a.sketch is not None and b.sketch is not None:
        return any(np.array_equal(x, y) for x in keys_of(a) for y in keys_of(b)), False
    told = lines_up and a.dtype == b.dtype
    if told and all(_forms(mask)[1] for mask in (a, b)):
        x, y = (_per_key(mask) for mask in (a, b))
        if told := bool(np.isfinite(x).all() and np.isfinite(y).all()):
            return bool(np.abs(x - y).max() <= ALIKE * np.abs(x).max()), False
    return False, not told and bool(keys_through(a) & keys_through(b))


def _other_keys(a: Record, b: Record) -> str:
    """A sentence where two masks of other lengths let other numbers of keys through; empty where they need not."""
    ours, theirs = (keys_through(x) if "mask" in x.key.port else frozenset() for x in (a, b))
    if a.shape[:-1] != b.shape[:-1] or not ours or not theirs or ours & theirs:
        return ""
    return f"it lets {max(theirs)} keys through, the reference's {max(ours)}"


def _per_key(mask: Record) -> np.ndarray:
    """The sketch of a mask that is added, as of one whose keys that are left out hold 1; not finite where sums of what
    they hold are not, as of a dtype's least number."""
    if mask.sketch is None or mask.moments is None:
        return np.array([NAN])
    with np.errstate(all="ignore"):
        return mask.sketch.astype(np.float64) / (mask.moments.min or 1.0)


def _forms(record: Record) -> tuple[bool, bool]:
    """Whether a mask can be one of ones and zeros, and one that is added: 0, or a number far below or -inf."""
    m = record.moments
    if m is None or m.nan or not m.count:
        return False, False
    added = "float" in record.dtype and m.max == 0.0 and (m.min <= FAR or bool(m.inf) or m.min == 0.0)
    within = not m.inf and m.min >= 0.0 and m.max <= 1.0
    # Of numbers from 0 to 1 squares add up to what they do themselves where all are 0 or 1; a soft mask is none.
    whole = within and abs(m.l2**2 - m.mean * m.count) <= ALIKE * max(m.l2**2, 1.0)
    return whole and not added, added


FAR = -1e3
"""What a mask that is added holds at most where a key is left out; -10000 in many implementations."""


def keys_through(record: Record) -> frozenset[int]:
    """How many keys a mask lets through in each row, in each form that it can be of; empty where it is no mask."""
    m = record.moments
    if m is None or not record.shape or not record.shape[-1]:
        return frozenset()
    ones, added = _forms(record)
    rows = m.count / record.shape[-1]
    far = m.l2 / m.min if m.min else 0.0
    out = m.inf if m.inf else far * far
    found = [m.mean * m.count] if ones else []
    found += [m.count - out] if added else []
    return frozenset(round(n / rows) for n in found if math.isfinite(n))


def keys_of(record: Record) -> list[np.ndarray]:
    """Where a mask lets a key through, in each form that it can be of."""
    if record.sketch is None:
        return []
    ones, added = _forms(record)
    s = record.sketch
    added = added and bool((np.isnan(s) | (s == 0.0) | (s <= FAR)).all())  # a bias of distances is none
    return ([s > 0.0] if ones else []) + ([s == 0.0] if added else [])


def unlike(a: Record, b: Record) -> str:
    """How two tensors do not line up."""
    if other_pictures(a, b):
        return PICTURES
    if a.shape != b.shape:
        last = len(a.shape) > 3 and b.shape == (a.shape[0], *a.shape[2:], a.shape[1])
        return f"shape {list(a.shape)} against {list(b.shape)}" + "; the candidate's channels are last" * last
    if bool(a.rows) != bool(b.rows):
        known, other = ("reference", "candidate") if a.rows else ("candidate", "reference")
        return f"the {known}'s padded rows are known from a mask, the {other}'s are not"
    return f"rows of '{a.rows}', {a.frame} of them, against rows of '{b.rows}', {b.frame}"


MOST = 1 << 24
"""Elements of a value that is looked at whole."""


def whole(record: Record) -> np.ndarray | None:
    """The values of a tensor that is small or held, float64."""
    if isinstance(record.value, np.ndarray):
        return record.value.astype(np.float64) if 0 < record.value.size <= MOST else None
    if record.sketch is None or not Geometry(*record.frame).exact or not record.sketch.size:
        return None
    x = record.sketch.astype(np.float64)
    whole = record.rows == "" and x.size == int(np.prod(record.shape))
    return x.reshape(record.shape) if whole else x
