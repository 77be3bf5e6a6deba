"""What the queries, keys, values and output of an attention call show: phantom keys, a mask or a scale mistaken.

Phantom keys are keys of zeros that an attention attends to although they are none. A key of zeros has logit 0 and
weight exp(0), and its value of zeros adds nothing: the output shrinks by Z / (Z + n), with Z the sum of exp(logits)
over the true keys and n the number of phantoms. So with the gain g = <out, ref> / <ref, ref> of each query and head,
n = Z (1 / g - 1) is one and the same integer at all of them, and no other fault gives that.

A mask is no value of a module: where one is lost, every input of the attention call agrees and its output does not,
whatever the model. A mask of keys, the same for every query and head, gives each key i a weight m_i beside its softmax,
so that sum_i m_i exp(l_i) (v_i - out) = 0 for every query and head. The least eigenvector of that system is the mask,
alone or with a causal one; it counts only where attention under it gives the output. So each side's mask is found, the
candidate's under each scale that is mistaken for the right one, and what differs between the two is named. What no mask
gives is not named.

numpy, from values that were held whole. Cost of a mask: K x K sums for K keys over as many queries as determine them;
calls of more than `MOST` keys are left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from parity.compare.result import Cause, measured
from parity.compare.values import apart
from parity.records import PADDING, Record
from parity.settings import remedy
from parity.transforms import LEFT

PARALLEL = 0.9999
"""Cosine above which an output counts as a multiple of the reference's."""
SAME_QUERY = 2e-2
"""Relative difference up to which two queries are one and the same token's: 16 bits round by 4e-3."""
MOST_PAIRS = 1 << 26
"""Of rows of both sides that are compared with each other: half a gigabyte in float64."""
BLOCKS = (128, 256, 512, 1024, 2048, 2816, 3328, 4096)
"""Of splash attention, as ports choose them."""
FILLS = (8, 16, 24, 48, *BLOCKS)
"""Numbers of tokens that a sequence is filled up to a multiple of: registers and tiles, then blocks."""

Call = Mapping[str, np.ndarray]
"""`in.query`, `in.key`, `in.value` and `out` of one call: float64 [rows, heads, head dim]."""


@dataclass(frozen=True, slots=True)
class Phantoms:
    """Phantom keys of one attention call on one branch.

    Attributes:
        branch: guidance branch. count: the median over queries and heads. spread: 95 % half width of the median.
        share: of queries and heads whose output is a multiple of the reference's. padded, tokens: of the candidate's
            call, which may keep fewer padded tokens than the reference's.
        smooth: whether the candidate subtracts the keys' mean first (K-smooth): exact without phantoms, which then
            stand among other logits.
    """

    branch: str
    count: float
    spread: float
    share: float
    padded: int
    tokens: int
    smooth: bool = False

    @property
    def is_certain(self) -> bool:
        """Whether it is a whole number of keys, one or more, at nearly every query."""
        if not math.isfinite(self.count):
            return False
        whole = round(self.count)
        # A gain that is the same everywhere gives a count that varies with Z.
        constant = self.spread <= 5e-3 * whole and self.share > 0.95
        return whole >= 1 and constant and abs(self.count - whole) <= max(3 * self.spread, 2e-3 * whole)

    def meaning(self) -> str:
        """What that many keys are: padded text tokens, or what fills a block."""
        whole, own = round(self.count), f"its {self.padded} padded text tokens"
        found = [own] if whole == self.padded else []
        for padded, before in {self.padded: f"{own} and ", 0: ""}.items():
            counted = ((b, fill) for b in FILLS if (fill := -self.tokens % b) and padded + fill == whole)
            found += [f"{before}the {fill} that fill {self.tokens} tokens to {_many(b)}" for b, fill in counted]
        known = " or ".join(found) or "no count that is known here"
        return f"{known}, with the keys' mean subtracted" if self.smooth else known


def _many(fill: int) -> str:
    return f"{'blocks' if fill in BLOCKS else 'multiples'} of {fill}"


def count_phantoms(reference: Sequence[Record], candidate: Sequence[Record], module: str) -> tuple[Phantoms, ...]:
    """Phantom keys of an attention call (`<module>.attention`), by branch; none where its values are not held.

    Args:
        reference: records with `in.query`, `in.key` and `out`, parts `@image` and `@text` or whole.
        candidate: `out`; where its rows are others, `in.query` too, by which they are found.
    """
    found = []
    for branch, ours, theirs in _calls(reference, candidate, module):
        out, (key, query, ref) = _in_the_rows_of(ours, theirs), (ours[port] for port in ("in.key", "in.query", "out"))
        fits = len(key) and key.shape[1:] == query.shape[1:] and ref.shape[:2] == query.shape[:2]
        if out is not None and fits:
            tokens, true = _tokens(candidate, module, branch), _true_keys(ours)
            counts = [*_counts(branch, ours, out, tokens, true)]
            found.append(next((c for c in counts if c.is_certain), counts[0]))
    return tuple(found)


def attention_causes(reference: Sequence[Record], candidate: Sequence[Record], module: str) -> tuple[Cause, ...] | None:
    """Phantom keys of an attention call, or else what was mistaken with its mask or scale, of the first branch that
    shows it; None where its values are not held.

    Args:
        reference: records with `in.query`, `in.key` and `out`, for a mask `in.value` too. candidate: `out`; where its
            rows are others, all of them. module: the call's site.
    """
    counts = count_phantoms(reference, candidate, module)
    certain = tuple(phantom_cause(p, module) for p in counts if p.is_certain)
    if certain or not counts:
        return certain or None
    calls = _calls(reference, candidate, module, "in.value")
    found = filter(None, (mask_cause(ours, theirs, module) for _, ours, theirs in calls))
    return tuple(itertools.islice(found, 1))


def phantom_cause(found: Phantoms, module: str) -> Cause:
    """A count in words."""
    on = f" on {found.branch}" if found.branch else ""
    text = (
        f"{found.count:.2f} phantom keys{on} = {found.meaning()}: keys and values are zeroed there, and each still has "
        "weight exp(0)"
    )
    detail = (
        f"{found.count:.4f} +- {found.spread:.1g} phantom keys{on}, {found.meaning()}, at {found.share:.1%} of the "
        f"queries and heads of {module}"
    )
    return measured(text, value=found.count, detail=detail, fix=remedy("attention.mask"))


def _calls(
    reference: Sequence[Record], candidate: Sequence[Record], module: str, *needed: str
) -> Iterator[tuple[str, dict[str, np.ndarray], dict[str, np.ndarray]]]:
    """Each branch whose call is held, with the values of both sides; grouped keys and values are repeated for each head
    of the queries, where they fit."""
    for branch in dict.fromkeys(r.key.branch for r in reference):
        ours, theirs = (_values(side, module, branch, padded="in.value" in needed) for side in (reference, candidate))
        if {"in.query", "in.key", "out", *needed} <= ours.keys() and "out" in theirs:
            heads = ours["in.query"].shape[1]
            for side, port in itertools.product((ours, theirs), ("in.key", "in.value")):
                few = side[port].shape[1] if port in side else 0
                if few and heads % few == 0:
                    side[port] = np.repeat(side[port], heads // few, axis=1)
            yield branch, ours, theirs


def _values(records: Sequence[Record], module: str, branch: str, *, padded: bool = False) -> dict[str, np.ndarray]:
    """Values of the call by port, image rows before text rows: float64 [rows, heads, head dim].

    Args:
        padded: whether padded rows are as the call has them, which another mask may read; else they are zeros.
    """
    parts: dict[str, dict[str, np.ndarray]] = {}
    for r in records:
        own = (r.key.module, r.key.branch, r.key.call) == (module, branch, 0)
        once = (padded and r.key.is_padding) or not r.key.is_apart  # what is read lies in the whole too
        if own and once and isinstance(r.value, np.ndarray) and r.value.ndim == 4:
            port, *part = r.key.port.split("@")
            held, name = parts.setdefault(port, {}), "@".join(p for p in part if p != PADDING)
            held[name] = held.get(name, 0.0) + r.value[0].astype(np.float64)
    return {port: np.concatenate([held[name] for name in sorted(held)]) for port, held in parts.items()}


def _in_the_rows_of(ours: Call, theirs: Call) -> np.ndarray | None:
    """The candidate's output in the reference's rows: as it is, or where their numbers differ, row by row by the query
    that is the same. Rows that the reference computes nothing for are left at zero; None where another has no match."""
    ref, out, query = ours["out"], theirs["out"], theirs.get("in.query")
    if ref.shape == out.shape:
        return out
    same = (ref.shape, ref.shape[1:]) == (ours["in.query"].shape, out.shape[1:])
    if query is None or query.shape != out.shape or not same or len(ref) * len(out) > MOST_PAIRS:
        return None
    asks = np.flatnonzero(np.abs(ref).sum(axis=(1, 2)) > 0)
    places = _places_of(ours["in.query"][asks], query)
    if places is None:
        return None
    found = np.zeros_like(ref)
    found[asks] = out[places]
    return found


def _places_of(rows: np.ndarray, among: np.ndarray) -> np.ndarray | None:
    """Where each of some rows [R, heads, head dim] stands among others; None where not each is one of its own there."""
    a, b = rows.reshape(len(rows), -1), among.reshape(len(among), -1)
    far = (a * a).sum(1)[:, None] + (b * b).sum(1)[None] - 2 * a @ b.T
    nearest = far.argmin(axis=1)
    near = far[np.arange(len(a)), nearest] <= SAME_QUERY**2 * (a * a).sum(1)
    return nearest if near.all() and len(set(nearest.tolist())) == len(nearest) else None


def _tokens(records: Sequence[Record], module: str, branch: str) -> int:
    """Tokens of the call as its own code has them: a part's record has the whole tensor's shape."""
    call = (branch, f"{module}:out", 0)
    outs = [r for r in records if (r.key.branch, r.key.site.partition("@")[0], r.key.call) == call]
    rows = [(r.shape[1], int(np.asarray(r.value).shape[1])) for r in outs if not r.key.is_apart]
    return next((whole for whole, held in rows if whole != held), sum(held for _, held in rows))


def _true_keys(ours: Call) -> np.ndarray:
    """Which keys the reference attends to, bool [keys]: not those that its mask leaves out, nor rows of a frame that
    are padding, which are held as zeros."""
    held = np.abs(ours["in.key"]).sum(axis=(1, 2)) > 0
    way = _way_of(ours, ours["out"]) if "in.value" in ours and _fits(ours, ours["out"]) else None
    return held if way is None or way.causal else held & way.reads


def _counts(branch: str, ours: Call, out: np.ndarray, tokens: int, true: np.ndarray) -> Iterator[Phantoms]:
    """The counts of each way in which the candidate may treat its keys: as they are; their mean subtracted; the same
    after padded ones were zeroed, whose logit is then that of the negative mean."""
    q, k, ref = ours["in.query"], ours["in.key"], ours["out"]
    asks = np.abs(ref).sum(axis=(1, 2)) > 0
    if len(asks) == len(true):  # who asks no key is none
        true = true & asks
    q, k, ref, out = q[asks] / np.sqrt(q.shape[-1]), k[true], ref[asks], out[asks]
    padded, total = tokens - int(true.sum()), k.sum(axis=0)
    square, dot = (ref * ref).sum(-1), (out * ref).sum(-1)
    parallel = dot / np.sqrt(square * (out * out).sum(-1)) > PARALLEL
    none, mean, of_all = np.zeros_like(total), total / len(k), total / (len(k) + padded)
    for keys, phantoms, smooth in ((none, none, False), (mean, none, True), (of_all, of_all, True)):
        z = np.exp(np.einsum("qhd,khd->hqk", q, k - keys)).sum(axis=-1).T  # [rows, heads]
        weight = np.exp(-np.einsum("qhd,hd->qh", q, phantoms))
        counts = (z * (square / dot - 1.0) - padded * weight + padded)[parallel]
        middle, spread, share = 0.0, math.inf, 0.0
        if counts.size:
            middle, share = float(np.median(counts)), float(parallel.mean())
            spread = 1.96 * 1.2533 * 1.4826 * float(np.median(np.abs(counts - middle))) / math.sqrt(counts.size)
        yield Phantoms(branch, middle, spread, share, padded, tokens, smooth)


# --- masks

MOST, MOST_ROWS = 1024, 256
"""Keys at most, as the system is of their square; queries that are looked at."""
EXACT = 1e-3
"""Relative residual up to which attention under a mask is the output; float32 leaves 1e-6, bfloat16 some 3e-3."""


def mask_cause(reference: Call, candidate: Call, module: str) -> Cause | None:
    """The mistakes with mask and scale that give the candidate's output; None where none do, or there is no mask.

    Where the rows of the two calls are others, the candidate's mask is found of its own values, and said of those of
    its keys that the reference reads.

    Args:
        reference: the call's values. candidate: its `out` on the other side, or all. module: the call's site.
    """
    out, alike = candidate["out"], candidate["out"].shape == reference["out"].shape
    call = reference if alike else candidate
    if not (_fits(reference, reference["out"]) and call.keys() >= _PORTS and _fits(call, out)):
        return None
    ours, rows = _way_of(reference, reference["out"]), _rows(reference)
    if ours is not None and not alike:
        keys, others = reference["in.key"][ours.reads], candidate["in.key"]
        places = _places_of(keys, others) if keys.shape[1:] == others.shape[1:] else None
        ours = None if places is None else replace(ours, reads=np.isin(np.arange(len(others)), places))
    if ours is None:
        return None
    most = min(EXACT, LEFT * apart(reference["out"][rows], out[rows])) if alike else EXACT
    _, heads, width = reference["in.query"].shape
    for at, words in itertools.chain(_scales(heads, width).items(), _other_scale(call, out, ours)):
        theirs = _way_of(call, out, at, most, ours.reads)
        if theirs is not None and not alike and _has_others(reference, candidate, theirs.reads & ~ours.reads):
            return None
        if theirs is not None:
            advice = f"the logits {words}: divide them by the root of {width}" if words else ""
            return _named(ours, theirs, advice, module)
    return None


_PORTS = frozenset({"in.query", "in.key", "in.value", "out"})


def _has_others(reference: Call, candidate: Call, read: np.ndarray) -> bool:
    """Whether among these keys of the candidate's are some that the reference does not have, read or not."""
    return any(_places_of(key[None], reference["in.key"]) is None for key in candidate["in.key"][read])


@dataclass(frozen=True, slots=True)
class Way:
    """How an attention comes to its output.

    Attributes:
        reads: the keys that are read, bool [keys]. causal: whether of them only those up to the query's own. added:
            whether instead a mask of ones and zeros is added to the logits. left: the share of the output that is not.
    """

    reads: np.ndarray
    causal: bool
    left: float
    added: bool = False


def _scales(heads: int, width: int) -> dict[float, str]:
    """The factor that is too much -> the mistakes with the scale that give it, none first."""
    of_all = "are scaled by the width of all heads, not of one"
    found = {1.0: ""}
    for words, at in (("are not scaled", width**0.5), ("are scaled twice", width**-0.5), (of_all, heads**-0.5)):
        found[at] = f"{found[at]} or {words}" if found.get(at) else found.get(at, words)
    return found


def _other_scale(call: Call, out: np.ndarray, way: Way) -> Iterator[tuple[float, str]]:
    """The factor, and in words, by which an output comes nearest to attention under the reference's mask: kernels fill
    heads up to 128 numbers, and scale by that."""
    rows, value, width = _rows(call)[::4], call["in.value"], call["in.key"].shape[-1]
    before = np.arange(len(value)) <= rows[:, None, None] if way.causal else True
    logits, best, step = np.where(way.reads & before, _logits(call, rows), -np.inf), 1.0, LARGEST_FACTOR
    for many in (33, *(9,) * 5):
        tried = best * np.geomspace(1 / step, step, many)
        best = float(min(tried, key=lambda factor: apart(out[rows], _attention(factor * logits, value))))
        step **= 2 / (many - 1)
    other = round(width / best**2)
    how = f", as of heads that are {other} wide" * (
        other % 8 == 0 and math.isclose(width, best**2 * other, rel_tol=EXACT)
    )
    yield best, f"are times {best:.4g}{how}"


FILLED_WIDTHS = (64, 128, 256)
"""Of heads that kernels fill up."""
LARGEST_FACTOR = 32.0
"""By which logits may be wrong, either way: more than the root of 512."""


def _logits(call: Call, rows: np.ndarray) -> np.ndarray:
    """Of some queries, float64 [rows, heads, keys], divided by the root of their width."""
    query, key = call["in.query"][rows], call["in.key"]
    return np.asarray(query.swapaxes(0, 1) @ key.transpose(1, 2, 0)).swapaxes(0, 1) / math.sqrt(key.shape[-1])


def _named(ours: Way, theirs: Way, scale: str, module: str) -> Cause | None:
    """What another way does otherwise; None where that is nothing."""
    how, mask = _of_masks(ours.reads, theirs)
    causal = "the attention is causal: each query reads only the keys up to its own" if theirs.causal else ""
    causal = "the attention is not causal, and the reference's is" if ours.causal and not theirs.causal else causal
    said = [*filter(None, (mask, causal if ours.causal != theirs.causal else "", scale))]
    if not said:
        return None
    setting = "attention.mask" if mask else ""
    detail = f"attention so leaves {theirs.left:.1e} of the candidate's output at {module}"
    fix = remedy(setting) if how == "none" else ""
    return measured("; ".join(said), setting, "exact" if setting else "", how, theirs.left, detail=detail, fix=fix)


def _of_masks(reads: np.ndarray, theirs: Way) -> tuple[str, str]:
    """What was done to a mask, as a value of its setting and in words; both empty where it is the same."""
    other, keys, valid = theirs.reads, len(reads), int(reads.sum())
    if theirs.added:
        return "added", "the mask is added to the logits as ones and zeros: make it boolean, or zero and minus infinity"
    differ = np.flatnonzero(reads != other)
    if not differ.size:
        return "", ""
    first, last = int(differ[0]), int(differ[-1])
    if other.all():
        text = f"{keys - valid} of {keys} keys that the reference masks are read: the mask is not applied"
        return "none", text
    for which, place in (("first", np.arange(keys) < valid), ("last", np.arange(keys) >= keys - valid)):
        if np.array_equal(other, place):
            return which, f"the {which} {valid} keys are read, whichever the mask lets through"
    if reads.all():
        return "another", f"{differ.size} of {keys} keys are masked, and the reference masks none"
    if differ.size == last - first + 1 and len({*reads[differ].tolist()}) == 2:
        where = "" if differ.size == keys else f" of keys {first} to {last}"
        return "inverted", f"the mask{where} is inverted: what the reference masks there is read, and nothing else"
    for far, ahead in (("far", other[1:] == reads[:-1]), ("early", other[:-1] == reads[1:])):
        if ahead.all() and other.sum() == valid:
            return "shifted", f"the mask lies one key too {far}"
    more, less = int((other & ~reads).sum()), int((reads & ~other).sum())
    return "another", f"another mask: it lets {more} keys through that the reference masks, and masks {less} others"


def _rows(call: Call) -> np.ndarray:
    """The queries that are looked at, at most `MOST_ROWS`: padded ones may read nothing."""
    asks = np.flatnonzero(np.abs(call["out"]).sum(axis=(1, 2)) > 0)
    return np.unique(asks[np.linspace(0, len(asks) - 1, min(len(asks), MOST_ROWS)).astype(int)])


def _fits(call: Call, candidate: np.ndarray) -> bool:
    query, key, value, out = (call[port] for port in ("in.query", "in.key", "in.value", "out"))
    whole = all(np.isfinite(x).all() for x in (*call.values(), candidate)) and bool(out.any())
    heads = query.shape[1:] == key.shape[1:] and query.shape[:2] == out.shape[:2] and value.shape[:2] == key.shape[:2]
    return whole and heads and value.shape[2] == out.shape[2] and out.shape == candidate.shape and 0 < len(key) <= MOST


def _way_of(
    call: Call, out: np.ndarray, factor: float = 1.0, most: float = EXACT, added: np.ndarray | None = None
) -> Way | None:
    """How attention comes to an output; None where no mask of keys explains it, alone or with a causal one.

    Args:
        factor: of the logits. most: share of the output that may be left. added: a mask that may be added as ones and
            zeros.
    """
    rows, key, value = _rows(call), call["in.key"], call["in.value"]
    logits, out = factor * _logits(call, rows), out[rows]
    for causal in (False, True) if len(call["in.query"]) == len(key) else (False,):
        scores = np.where(np.arange(len(key)) <= rows[:, None, None], logits, -np.inf) if causal else logits
        reads = _mask(scores, key, value, out)
        left = apart(out, _attention(np.where(reads, scores, -np.inf), value))
        if left <= most:
            return Way(reads, causal, left)
        if added is not None and (left := apart(out, _attention(scores + added, value))) <= most:
            return Way(added, causal, left, added=True)
    return None


def _mask(logits: np.ndarray, key: np.ndarray, value: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Which keys are read, where an output is attention under one mask for all."""
    keys, every = len(key), np.ones(len(key), dtype=bool)
    few = out.size < keys  # numbers, which some mask may give by chance
    if few or apart(out, _attention(logits, value)) <= EXACT:
        return every
    # Of keys that are alike, as padding is, nothing says which are read: they count as one.
    asked = np.isfinite(logits[:, 0]).T  # by which queries
    rows = np.concatenate([key.reshape(keys, -1), value.reshape(keys, -1), asked], axis=1)
    _, first, of, many = np.unique(rows, axis=0, return_index=True, return_inverse=True, return_counts=True)
    reads: np.ndarray = _solved(logits[:, :, first] + np.log(many), value[first], out)[of.ravel()]
    return reads


def _solved(logits: np.ndarray, value: np.ndarray, out: np.ndarray) -> np.ndarray:
    """The same of keys that are all different."""
    rows, heads, keys = logits.shape
    system = np.zeros((keys, keys))
    enough = max(1, math.ceil(8 * keys / (heads * value.shape[-1])))
    for row in np.unique(np.linspace(0, rows - 1, min(rows, enough)).astype(int)):
        weights = np.exp(logits[row] - logits[row].max(axis=-1, keepdims=True))
        for head in range(heads):
            part = weights[head][:, None] * (value[:, head] - out[row, head])
            system += part @ part.T
    least = np.linalg.eigh(system)[1][:, 0]
    reads: np.ndarray = least / least[np.argmax(np.abs(least))] > 0.5
    return reads


def _attention(logits: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Softmax over keys, times values; rows without a key are 0."""
    top = logits.max(axis=-1, keepdims=True)
    weights = np.exp(logits - np.where(np.isfinite(top), top, 0.0))
    total = weights.sum(axis=-1, keepdims=True)
    shares: np.ndarray = weights / np.where(total > 0, total, 1.0)
    return (shares.swapaxes(0, 1) @ value.swapaxes(0, 1)).swapaxes(0, 1)
