"""Goldens made by hand, written to disk, so that diffs are tested without a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from parity.golden import GoldenWriter, Key, Provenance, Record, StepRecords
from tests.compare.make_records import Walk

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

Change = Callable[[Walk], None]


def walk(step: int, fault: float = 0.0, at: str = "blocks.1") -> Walk:
    """Two blocks and the loop's values; from block `at` of step 1 on, the candidate is `fault` floors away."""
    made = Walk(at=step)
    made.loop("latents.before", fault if step > 1 else 0.0)
    far = 0.0
    for block in ("blocks.0", "blocks.1"):
        made.site(f"{block}:in.hidden_states", far or 0.3)
        far = fault if block == at and step >= 1 else far
        made.site(f"{block}:out", far or 0.4)
    made.ends(far or 0.5, far or 0.6)
    return made


def write(where: Path | str, provenance: Provenance, steps: Sequence[StepRecords], *, finish: bool = True) -> str:
    """A golden of these steps."""
    writer = GoldenWriter(where, provenance)
    for step in steps:
        writer.write_step(step)
    if finish:
        writer.finish()
    return str(where)


def pair(
    folder: Path, *, fault: float = 0.0, steps: int = 2, floors: bool = True, candidate: Provenance = CANDIDATE
) -> tuple[str, str]:
    """A reference and a candidate on disk, apart by `fault` floors from step 1's second block on."""
    made = [walk(step, fault).steps() for step in range(steps)]
    ours = [a if floors else StepRecords(a.step, a.records) for a, _ in made]
    theirs = [b for _, b in made]
    return write(folder / "reference", REFERENCE, ours), write(folder / "candidate", candidate, theirs)


def renamed(step: StepRecords, rename: Callable[[str], str]) -> StepRecords:
    """A step whose sites are called otherwise; floors are dropped."""

    def record(old: Record) -> Record:
        key = old.key
        return replace(old, key=Key(key.stage, key.step, key.branch, rename(key.site), key.call))

    return StepRecords(step.step, tuple(map(record, step.records)))
