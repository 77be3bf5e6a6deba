"""A mistake with an attention mask, and phantom keys, are named from values alone, and only those that were made."""

from __future__ import annotations

import numpy as np
import pytest

from parity.compare.attention import Phantoms, attention_causes, count_phantoms, mask_cause
from parity.records import Record
from tests.support.made import tensor

MODULE = "blocks.0.attn.attention"
ROWS, KEYS, HEADS, DIM = 48, 24, 3, 16
Call = dict[str, np.ndarray]


def attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, bias: np.ndarray | float = 0.0, extra: int = 0
) -> np.ndarray:
    """Attention of [rows, heads, dim] with `extra` keys of zeros, whose values are zeros."""
    logits = np.einsum("qhd,khd->qhk", q, k) / np.sqrt(q.shape[-1]) + bias
    top = np.maximum(logits.max(-1, keepdims=True), 0.0)
    weights = np.exp(logits - top)
    return np.einsum("qhk,khd->qhd", weights / (weights.sum(-1, keepdims=True) + extra * np.exp(-top)), v)


def draw(*shapes: tuple[int, int], seed: int = 0, shift: float = 0.0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((rows, heads, DIM)) + shift for rows, heads in shapes]


def held(**named: np.ndarray) -> list[Record]:
    """Records of a call; `query`, `key` and `value` are inputs."""
    ports = {name: f"{'in.' if name != 'out' else ''}{name}" for name in named}
    return [tensor(f"{MODULE}:{ports[n]}", x[None].astype(np.float32), held=True) for n, x in named.items()]


# --- masks -----------------------------------------------------------------------------------------------------


def only(reads: np.ndarray) -> np.ndarray:
    return np.where(reads, 0.0, -1e9)


def call_of(reads: np.ndarray, rows: int = ROWS) -> Call:
    """A call under a mask, in float32 as it is stored."""
    keys = len(reads)
    q, k, v = (x.astype(np.float32).astype(np.float64) for x in draw((rows, HEADS), (keys, HEADS), (keys, HEADS)))
    return {"in.query": q, "in.key": k, "in.value": v, "out": attention(q, k, v, only(reads))}


def again(call: Call, bias: np.ndarray | float) -> np.ndarray:
    return attention(call["in.query"], call["in.key"], call["in.value"], bias)


READS = np.arange(KEYS) % 3 != 1
CAUSAL = only(np.tri(KEYS, dtype=bool))[:, None]
CALL, SQUARE = call_of(READS), call_of(np.ones(KEYS, bool), rows=KEYS)
LITTLE = {**CALL, "in.query": CALL["in.query"] * 8, "in.key": CALL["in.key"].copy()}  # the masked keys weigh nothing
LITTLE["in.query"][:, :, 0], LITTLE["in.key"][:, :, 0] = 40, np.where(READS, 4, 0)[:, None]
LITTLE["out"] = again(LITTLE, only(READS))


@pytest.mark.parametrize(
    ("call", "out", "candidate"),
    [
        (CALL, again(CALL, 0.0), "none"),
        (CALL, again(CALL, only(~READS)), "inverted"),
        (CALL, again(CALL, only(np.arange(KEYS) < READS.sum())), "first"),
        (SQUARE, again(SQUARE, CAUSAL), ""),  # causal is no mask of keys
        (LITTLE, 1.0005 * LITTLE["out"], None),  # a mask of little effect explains no other error
        (CALL, again(CALL, only(np.arange(KEYS) % 5 != 2)), "another"),
        (CALL, again(CALL, only(np.roll(READS, 1))), "shifted"),
        (CALL, again(CALL, only(np.where(np.arange(KEYS) < 15, READS, ~READS))), "inverted"),  # that of the text alone
        (CALL, again({**CALL, "in.query": DIM**0.5 * CALL["in.query"]}, 0.0), "none"),  # and not scaled
        (CALL, again(CALL, READS.astype(float)), "added"),
        (CALL, again(CALL, np.random.default_rng(1).standard_normal(KEYS)), None),
        ({**CALL, "in.key": CALL["in.key"] * np.nan}, CALL["out"], None),
    ],
)
def test_a_mistaken_mask_is_named(call: Call, out: np.ndarray, candidate: str | None) -> None:
    found = mask_cause(call, {"out": out.astype(np.float32)}, MODULE)
    assert (None if found is None else found.candidate) == candidate
    assert found is None or found.setting == ("attention.mask" if candidate else "")


@pytest.mark.parametrize(("rows", "how"), [(slice(1, None), "masked, and the reference masks none"), (slice(None), "")])
def test_a_mask_where_the_reference_has_none(rows: slice, how: str) -> None:
    reads = np.zeros(KEYS, bool)
    reads[rows] = True
    found = mask_cause(SQUARE, {"out": again(SQUARE, only(reads))}, MODULE)
    assert how in found.cause if found is not None and how else found is None


def test_one_head_is_as_wide_as_all_of_them() -> None:
    q, k, v = draw((ROWS, 1), (KEYS, 1), (KEYS, 1))
    call = {"in.query": q, "in.key": k, "in.value": v, "out": attention(q, k, v, only(READS))}
    found = mask_cause(call, {"out": again(call, 0.0)}, MODULE)
    assert found is not None
    assert "scaled" not in found.cause


@pytest.mark.parametrize("shape", [(ROWS - 1, HEADS, DIM), (ROWS, 1, HEADS * DIM), (ROWS, HEADS + 1, DIM)])
def test_odd_shapes_have_no_cause(shape: tuple[int, ...]) -> None:
    q, k, v = draw((ROWS, HEADS), (KEYS, HEADS), (KEYS, HEADS))
    for keys in (KEYS, 0):
        reference = held(query=q, key=k[:keys], value=v[:keys], out=np.ones(shape))
        assert attention_causes(reference, held(out=np.zeros(shape)), MODULE) in (None, ())


def test_two_mistakes_of_one_call_are_named_together() -> None:
    twice = {**SQUARE, "in.query": DIM**-0.5 * SQUARE["in.query"]}
    found = mask_cause(SQUARE, {"out": again(twice, CAUSAL)}, MODULE)
    assert found is not None
    assert [text in found.cause for text in ("is causal", "scaled twice", "mask")] == [True, True, False]


@pytest.mark.parametrize("bias", [0.0, READS.astype(float), only(~READS)], ids=["left out", "added", "inverted"])
def test_a_mask_that_lets_padded_keys_through_is_read_from_records_that_hold_these_apart(
    bias: np.ndarray | float,
) -> None:
    q, k, v, out = (CALL[name] for name in ("in.query", "in.key", "in.value", "out"))
    apart = {n: x * keep for x, name in ((k, "key"), (v, "value")) for n, keep in _parts(name)}
    ours = held(query=q, out=out, **{n: x for n, x in apart.items() if "@" not in n})
    ours += [tensor(f"{MODULE}:in.{n}", x[None].astype(np.float32), held=True) for n, x in apart.items() if "@" in n]
    (cause,) = attention_causes(ours, held(out=again(CALL, bias)), MODULE) or ()
    assert "mask" in cause.cause


def _parts(name: str) -> list[tuple[str, np.ndarray]]:
    """The rows that are read, and those that are padding, zeros in the others' places."""
    keep = READS[:, None, None].astype(float)
    return [(name, keep), (f"{name}@padding", 1.0 - keep)]


@pytest.mark.parametrize(
    ("reads", "candidate"), [(np.ones(KEYS, bool), "none"), (READS, None), (np.roll(READS, 1), "another")]
)
def test_a_mask_is_named_where_one_side_has_more_rows_of_padding(reads: np.ndarray, candidate: str | None) -> None:
    alike = {port: np.repeat(draw((1, HEADS))[0], 40, axis=0) for port in ("in.query", "in.key", "in.value")}
    more = {port: np.concatenate([alike[port], CALL[port]]) for port in alike}
    reference = {**more, "out": again(more, only(np.concatenate([np.zeros(40, bool), READS])))}
    order = np.random.default_rng(3).permutation(KEYS)
    own = {**CALL, "in.key": CALL["in.key"][order], "in.value": CALL["in.value"][order]}
    found = mask_cause(reference, {**own, "out": again(own, only(reads[order]))}, MODULE)
    assert (None if found is None else found.candidate) == candidate


def test_keys_that_the_reference_does_not_have_are_none_that_it_masks() -> None:
    more = {
        port: np.concatenate([SQUARE[port], draw((3, HEADS), seed=9)[0]]) for port in ("in.query", "in.key", "in.value")
    }
    assert mask_cause(SQUARE, {**more, "out": again(more, 0.0)}, MODULE) is None


def test_a_mask_is_read_from_records_with_grouped_keys() -> None:
    q, k, v = draw((ROWS, HEADS), (KEYS, 1), (KEYS, 1))
    wide = [np.repeat(x, HEADS, axis=1) for x in (k, v)]
    reference = held(query=q, key=k, value=v, out=attention(q, *wide, only(READS)))
    (found,) = attention_causes(reference, held(out=attention(q, *wide)), MODULE) or ()
    assert found.candidate == "none"


@pytest.mark.parametrize(
    ("factor", "how"),
    [
        (DIM**0.5, "not scaled"),
        (DIM**-0.5, "scaled twice"),
        (HEADS**-0.5, "all heads"),
        (0.9, "times 0.9:"),
        ((DIM / 128) ** 0.5, "times 0.3536, as of heads that are 128 wide"),
        (-1.0, None),
    ],
)
@pytest.mark.parametrize("call", [CALL, SQUARE])
def test_another_scale_is_named(call: Call, factor: float, how: str | None) -> None:
    reads = READS if call is CALL else np.ones(KEYS, bool)
    out = again({**call, "in.query": factor * call["in.query"]}, only(reads))
    found = mask_cause(call, {"out": out}, MODULE)
    assert how in found.cause if found is not None and how else found is how


# --- phantom keys ----------------------------------------------------------------------------------------------

IMAGE, TEXT = 40, 24


def test_padded_keys_of_a_recording_are_no_true_ones() -> None:
    """A script's are as its model has them, and its padded queries compute: its mask says which are read."""
    (q, k, v), padded = draw(*[(KEYS, HEADS)] * 3), int((~READS).sum())
    zeroed = [x * READS[:, None, None] for x in (k, v)]
    reference = held(query=q, key=k, value=v, out=attention(q, k, v, only(READS)))
    (found,) = counted(reference, held(out=attention(q, *zeroed)))
    assert found.is_certain
    assert found.meaning().startswith(f"its {padded} padded text tokens")


def counted(reference: list[Record], candidate: list[Record]) -> tuple[Phantoms, ...]:
    return count_phantoms(reference, candidate, MODULE)


def joint(valid: int, phantoms: int, seed: int = 0) -> tuple[list[Record], list[Record]]:
    """A joint attention in parts, whose text is padded to TEXT tokens of zeros."""
    q, k, v = draw(*[(IMAGE + TEXT, HEADS)] * 3, seed=seed)
    keep = np.arange(IMAGE + TEXT) < IMAGE + valid
    q, k, v = (x * keep[:, None, None] for x in (q, k, v))
    ref, out = (attention(q, k[keep], v[keep], extra=n) * keep[:, None, None] for n in (0, phantoms))

    def parts(port: str, x: np.ndarray) -> list[Record]:
        cut = {"image": x[None, :IMAGE], "text": x[None, IMAGE:]}
        return [tensor(f"{MODULE}:{port}@{name}", y.astype(np.float32), held=True) for name, y in cut.items()]

    return [*parts("in.query", q), *parts("in.key", k), *parts("out", ref)], parts("out", out)


@pytest.mark.parametrize(
    ("valid", "phantoms", "meaning"),
    [
        (10, 14, "its 14 padded text tokens"),
        (24, 64, "the 64 that fill 64 tokens to blocks of 128"),
        (24, 8, "the 8 that fill 64 tokens to multiples of 24"),
    ],
)
def test_phantom_keys_are_counted_exactly_and_explained(valid: int, phantoms: int, meaning: str) -> None:
    (found,) = counted(*joint(valid, phantoms))
    assert (found.is_certain, found.padded) == (True, TEXT - valid)
    assert found.count == pytest.approx(phantoms, rel=1e-3)
    assert meaning in found.meaning()


@pytest.mark.parametrize(("zeroed", "fill"), [(False, 0), (True, 64)])
def test_phantom_keys_are_counted_beside_keys_of_which_the_mean_is_subtracted(zeroed: bool, fill: int) -> None:
    """K-smooth: phantoms stay zeros, or only those that fill a block, which come behind it, do."""
    q, k, v = draw(*[(IMAGE + TEXT, HEADS)] * 3, shift=0.3)
    keep = (np.arange(IMAGE + TEXT) < IMAGE + 10)[:, None, None]
    q, k, v = q * keep, k * keep, v * keep
    ref = attention(q, k[keep[:, 0, 0]], v[keep[:, 0, 0]]) * keep
    mean = k.sum(axis=0) / (len(k) if zeroed else keep.sum())
    out = attention(q, k - mean if zeroed else (k - mean) * keep, v, extra=fill) * keep
    (found,) = counted(held(query=q, key=k, out=ref), held(out=out))
    assert (found.is_certain, round(found.count), found.smooth) == (True, TEXT - 10 + fill, True)


def test_another_fault_is_no_phantom_key() -> None:
    reference, same = joint(10, 0)
    scaled = [tensor(r.key.site, np.asarray(r.value) * 0.99, held=True) for r in reference if r.key.port[:3] == "out"]
    for candidate in (same, joint(10, 14, seed=1)[1], scaled):  # none, another draw, half a key
        (found,) = counted(reference, candidate)
        assert not found.is_certain
    q, k = draw((IMAGE, 4), (IMAGE, 3))
    misfit = held(query=q, key=k, out=q)
    assert counted([], []) == counted(misfit, misfit) == ()


@pytest.mark.parametrize("at", [0, slice(None)])
def test_keys_that_are_infinite_leave_no_error(at: int | slice) -> None:
    q, k, v = draw(*[(IMAGE, HEADS)] * 3)
    k[at, :, 0] = -np.inf
    with np.errstate(invalid="ignore"):
        candidates = counted(held(query=np.abs(q), key=k, out=v), held(out=0.9 * v))
        assert not any(phantoms.is_certain for phantoms in candidates)
