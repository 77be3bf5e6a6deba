"""Records, steps, goldens, results and evidence made by hand: comparing and judging are tested without a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from parity.causes.evidence import Evidence
from parity.causes.request import ExplainRequest
from parity.causes.values import numbers_given
from parity.compare.judge import Judge
from parity.compare.reason import Reason
from parity.compare.result import Origin, Result, SiteDiff, StepDiff
from parity.golden import Golden, GoldenWriter
from parity.records import Floor, Key, Provenance, Record, StepRecords
from parity.sketch import bin_norms, geometry, moments_of, norm, sketch

STAGE = "transformer"
FLOOR = 1e-6
"""Relative floor of every tensor here unless a test says otherwise."""

# Values


def noise(seed: int, shape: tuple[int, ...] = (1, 96, 40)) -> np.ndarray:
    """Standard normal numbers, 3,840 of them unless asked otherwise: too many for an exact sketch."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def moved(x: np.ndarray, floors: float, seed: int = 99) -> np.ndarray:
    """`x` moved at random by `floors` times FLOOR of its norm, in float64 so that the distance is exact."""
    wide = x.astype(np.float64)
    by = np.random.default_rng(seed).standard_normal(x.shape)
    return wide + by * (floors * FLOOR * np.linalg.norm(wide) / np.linalg.norm(by))


# Records


def tensor_record(
    key: Key,
    x: np.ndarray,
    *,
    value: bool = False,
    dtype: str = "",
    rows: str = "",
    shape: tuple[int, ...] | None = None,
) -> Record:
    """A tensor's record, with its value if asked; `shape` in place of the tensor's own if a row frame was taken."""
    g = geometry(x.shape)
    own = x.shape if shape is None else shape
    with np.errstate(invalid="ignore"):
        taken = sketch(x)
    held = x if value else None
    return Record(key, "tensor", own, dtype or x.dtype.name, rows, (g.rows, g.channels), moments_of(x), taken, held)


def tensor(
    site: str,
    x: np.ndarray,
    *,
    branch: str = "cond",
    step: int = 0,
    call: int = 0,
    held: bool = False,
    rows: str = "",
    shape: tuple[int, ...] | None = None,
) -> Record:
    """A tensor's record at a site of the transformer, with its value if `held`."""
    return tensor_record(Key(STAGE, step, branch, site, call), x, value=held, rows=rows, shape=shape)


def none(site: str, *, branch: str = "cond", step: int = 0) -> Record:
    return Record(Key(STAGE, step, branch, site), "none")


def scalar(site: str, value: bool | int | float | str, *, branch: str = "cond", step: int = 0) -> Record:
    return Record(Key(STAGE, step, branch, site), "scalar", dtype=type(value).__name__, value=value)


def scaled(record: Record, by: float) -> Record:
    """A record of the same tensor `by` times as large; what holds no numbers stays."""
    if record.sketch is None or record.moments is None or "float" not in record.dtype:
        return record
    m, x = record.moments, record.value
    return replace(
        record,
        moments=replace(m, min=by * m.min, max=by * m.max, mean=by * m.mean, l2=by * m.l2),
        sketch=(record.sketch.astype(np.float64) * by).astype(np.float32),
        value=(x.astype(np.float64) * by).astype(x.dtype) if isinstance(x, np.ndarray) else x,
    )


def floor_of(record: Record, relative: float = FLOOR) -> Floor:
    """A floor of `relative` times the record's norm, spread evenly over the row bins that are not empty."""
    assert record.moments is not None
    assert record.sketch is not None
    g = geometry((record.frame[0], record.frame[1]))
    filled = np.nan_to_num(bin_norms(record.sketch, g)) > 0
    l2 = record.moments.l2 * relative
    return Floor(l2, (filled * l2 / math.sqrt(max(1, filled.sum()))).astype(np.float32))


def measured_floor(x: np.ndarray, runs: int = 4) -> Floor:
    """A floor as it is measured: the largest distance of `runs` noisy runs from `x`, by their sketches."""
    g = geometry(x.shape)
    apart = [sketch(moved(x, 1.0, seed=1000 + i) - x) for i in range(runs)]
    return Floor(max(norm(s, g) for s in apart), np.max([bin_norms(s, g) for s in apart], axis=0).astype(np.float32))


# Steps


def step(records: Sequence[Record], floors: Mapping[Key, Floor] | None = None, *, at: int = 0) -> StepRecords:
    """A step whose tensors have floors of FLOOR times their norm, except those given."""
    own = {r.key: floor_of(r) for r in records if r.kind == "tensor"}
    return StepRecords(at, tuple(records), {**own, **(floors or {})})


def mixed_step(at: int, sites: int = 3, seed: int = 0) -> StepRecords:
    """`sites` tensors with floors, a value in bfloat16, a None and a scalar."""
    rng = np.random.default_rng((seed, at + 1, sites))
    records = []
    for i in range(sites):
        x = rng.standard_normal((4, 40, 24)).astype(np.float32)
        records.append(tensor(f"blocks.{i}:out", x, step=at, held=i == 0))
    rounded = (rng.standard_normal((2, 3, 5)).astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)
    records.append(tensor_record(Key(STAGE, at, "", "loop:noise_pred"), rounded, value=True, dtype="bfloat16"))
    records.append(none("blocks.0:in.image_rotary_emb", step=at))
    records.append(scalar("loop:sigma", math.nan, branch="", step=at))
    floors = {record.key: Floor(1e-6, np.full(4, 1e-7, np.float32), 2e-6) for record in records[:sites]}
    return StepRecords(at, tuple(records), floors)


def renamed(records: StepRecords, rename: Callable[[str], str]) -> StepRecords:
    """A step with other names of sites, without its floors."""
    return StepRecords(
        records.step, tuple(replace(r, key=replace(r.key, site=rename(r.key.site))) for r in records.records)
    )


def assert_same(a: StepRecords, b: StepRecords) -> None:
    """Every field of every record and floor is the same, bit for bit, in the same order."""
    assert a.step == b.step
    assert [record.key for record in a.records] == [record.key for record in b.records]
    for ours, theirs in zip(a.records, b.records, strict=True):
        for name in ("kind", "shape", "dtype", "rows", "frame"):
            assert getattr(ours, name) == getattr(theirs, name), (ours.key, name)
        assert repr(ours.moments) == repr(theirs.moments)
        _assert_same_value(ours.sketch, theirs.sketch)
        _assert_same_value(ours.value, theirs.value)
    assert list(a.floors) == list(b.floors)
    for key, floor in a.floors.items():
        numbers = [(repr(f.l2), repr(f.linf)) for f in (floor, b.floors[key])]
        assert numbers[0] == numbers[1]
        _assert_same_value(floor.bins, b.floors[key].bins)


def _assert_same_value(a: object, b: object) -> None:
    if isinstance(a, np.ndarray):
        assert isinstance(b, np.ndarray)
        assert (a.dtype.newbyteorder("="), a.shape) == (b.dtype.newbyteorder("="), b.shape)
        assert np.ascontiguousarray(a).astype(a.dtype.newbyteorder("<")).tobytes() == b.tobytes()
    else:
        assert (type(a), repr(a)) == (type(b), repr(b))


@dataclass
class Walk:
    """Two sides' records of one step, site by site in execution order.

        walk = Walk()
        walk.site("a:in.x", 0)
        walk.site("a:out", 1e5)      # 1e5 floors apart
        diffs = walk.judge()

    Attributes:
        at: the step. reference, candidate: the records so far.
    """

    at: int = 0
    reference: list[Record] = field(default_factory=list)
    candidate: list[Record] = field(default_factory=list)

    def site(self, site: str, floors: float = 0.0, *, branch: str = "cond", call: int = 0, held: bool = False) -> None:
        """A tensor that both sides have, `floors` times its floor apart."""
        x = noise(len(self.reference)).astype(np.float64)
        self.pair(
            tensor(site, x, branch=branch, step=self.at, call=call, held=held),
            tensor(site, moved(x, floors), branch=branch, step=self.at, call=call, held=held),
        )

    def loop(self, port: str, floors: float = 0.0, *, branch: str = "") -> None:
        """One of the loop's own values, stored whole as the loop stores them."""
        self.site(f"loop:{port}", floors, branch=branch, held=True)

    def pair(self, reference: Record | None, candidate: Record | None) -> None:
        """What either side has, as it is."""
        if reference is not None:
            self.reference.append(reference)
        if candidate is not None:
            self.candidate.append(candidate)

    def ends(self, noise_pred: float = 0.0, latents: float = 0.0) -> None:
        """The end of a step: both branches' predictions, the guided one, the latents after."""
        for branch in ("cond", "uncond"):
            self.loop("noise_pred", noise_pred, branch=branch)
        self.loop("noise_pred", noise_pred)
        self.loop("latents.after", latents)

    def steps(self, floors: Mapping[Key, Floor] | None = None) -> tuple[StepRecords, StepRecords]:
        """Both sides' steps, the reference's with floors."""
        return step(self.reference, floors, at=self.at), StepRecords(self.at, tuple(self.candidate))

    def judge(self, judge: Judge | None = None, floors: Mapping[Key, Floor] | None = None) -> dict[str, SiteDiff]:
        """The judged sites by `branch/site`, in order."""
        found = (judge or Judge()).step(*self.steps(floors))
        return {f"{d.key.branch}/{d.key.site}": d for d in found}


def births(diffs: Mapping[str, SiteDiff]) -> dict[str, str]:
    """Site -> birth, if there is one, in order; the branch is left out if it is `cond` or none."""
    return {name.removeprefix("cond/").removeprefix("/"): d.birth for name, d in diffs.items() if d.birth is not None}


def walk_of(sites: Mapping[str, float], at: int = 0) -> Walk:
    """A walk of `branch/site` -> floors apart, in order; without a branch a site is of `cond`, the loop's of none."""
    walk = Walk(at)
    for name, floors in sites.items():
        branch, _, site = name.rpartition("/")
        if site.startswith("loop:"):
            walk.loop(site.removeprefix("loop:"), floors, branch=branch)
        else:
            walk.site(site, floors, branch=branch or "cond")
    return walk


# Goldens

PROVENANCE = Provenance(
    side="reference",
    backend="torch",
    model="tiny-hunyuan-video-1.5",
    settings={"dtype": "float32", "attention.mask": "exact"},
    seed=7,
    steps=3,
    weights={"proj.weight": "0123456789abcdef"},
    inputs={"latents": "fedcba9876543210"},
    versions={"numpy": np.__version__},
    devices=("cpu",),
    command="parity record",
    modules={"blocks": "", "blocks.0": "blocks", "blocks.1": "blocks", "blocks.2": "blocks"},
)
REFERENCE = Provenance(
    side="reference",
    backend="torch",
    model="tiny",
    settings={"dtype": "float32", "attention.kernel": "flex", "attention.mask": "exact", "jit": "false"},
    seed=7,
    steps=2,
    weights={"blocks.0.weight": "a" * 16, "blocks.1.weight": "b" * 16, "scale": "c" * 16},
    inputs={"cond.encoder_hidden_states": "d" * 16, "cond.encoder_attention_mask": "e" * 16, "noise": "f" * 16},
    modules={"blocks": "", "blocks.0": "blocks", "blocks.1": "blocks"},
)
CANDIDATE = replace(
    REFERENCE,
    side="candidate",
    backend="torchax",
    settings={"dtype": "float32", "attention.kernel": "sdpa", "attention.mask": "exact", "jit": "true"},
)


def walk(step: int, fault: float = 0.0, at: str = "blocks.1") -> Walk:
    """Two blocks and the loop's values; from block `at` of step 1 on, the candidate is `fault` floors away."""
    both = Walk(at=step)
    both.loop("latents.before", fault if step > 1 else 0.0)
    far = 0.0
    for block in ("blocks.0", "blocks.1"):
        both.site(f"{block}:in.hidden_states", far or 0.3)
        far = fault if block == at and step >= 1 else far
        both.site(f"{block}:out", far or 0.4)
    both.ends(far or 0.5, far or 0.6)
    return both


def write(where: Path | str, provenance: Provenance, steps: Sequence[StepRecords], *, finish: bool = True) -> str:
    """A golden of these steps."""
    writer = GoldenWriter(where, provenance)
    for records in steps:
        writer.write_step(records)
    if finish:
        writer.finish()
    return str(where)


def copied(golden: Path, to: Path, change: Callable[[Record], Record], **provenance: object) -> Path:
    """A copy of a golden with other records, and with these fields of its provenance."""
    held = Golden.open(golden)
    steps = [held.read_step(step) for step in held.steps]
    changed = [StepRecords(step.step, tuple(map(change, step.records)), step.floors) for step in steps]
    write(to, replace(held.provenance, **provenance), changed)  # type: ignore[arg-type]
    return to


def pair(
    folder: Path, *, fault: float = 0.0, steps: int = 2, floors: bool = True, candidate: Provenance = CANDIDATE
) -> tuple[str, str]:
    """A reference and a candidate on disk, `fault` floors apart from step 1's second block on."""
    both = [walk(i, fault).steps() for i in range(steps)]
    ours = [a if floors else StepRecords(a.step, a.records) for a, _ in both]
    return write(folder / "reference", REFERENCE, ours), write(folder / "candidate", candidate, [b for _, b in both])


# Results


def because(text: str) -> Reason:
    """A reason whose sentence is this text."""
    return Reason(kind="inconclusive", detail=text)


# Evidence

ORIGIN = Key(STAGE, 0, "cond", "m:out")


def evidence(
    ours: Sequence[Record] | StepRecords = (),
    theirs: Sequence[Record] | StepRecords = (),
    *,
    origin: Key = ORIGIN,
    steps: Sequence[StepDiff] = (),
    read: Callable[[int], tuple[StepRecords, StepRecords]] | None = None,
) -> Evidence:
    """Two goldens that differ first at `origin`, whose model is not on this machine.

    Args:
        ours, theirs: records of that step. steps: what the comparison says of every step. read: records of others.
    """
    found = Result("fail", "logic", Reason(kind="first_divergence"), steps=tuple(steps))
    a, b = (x if isinstance(x, StepRecords) else StepRecords(origin.step, tuple(x)) for x in (ours, theirs))

    def both(step: int) -> tuple[StepRecords, StepRecords]:
        return (a, b) if read is None else read(step)

    return Evidence(
        request=ExplainRequest("reference", "candidate"),
        found=found,
        origin=Origin(origin, "module"),
        ours=a,
        theirs=b,
        reference=CANDIDATE,
        declared=CANDIDATE,
        read=both,
        numbers=lambda step: (numbers_given(both(step)[0]), numbers_given(both(step)[1])),
    )
