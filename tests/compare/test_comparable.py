"""What two runs differ in is listed before any number, and what is not comparable is not compared."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from parity.compare.comparable import comparable, settings_differences
from parity.compare.result import Check
from parity.records import Provenance
from parity.settings import Difference
from tests.support.made import CANDIDATE, REFERENCE

STEPS = (0, 1)


def golden(provenance: Provenance, steps: tuple[int, ...] = STEPS, complete: bool = True) -> Any:
    return SimpleNamespace(provenance=provenance, steps=steps, complete=complete)


def find(candidate: Provenance = CANDIDATE, reference: Provenance = REFERENCE, **more: Any) -> dict[str, Check]:
    found = comparable(golden(reference), golden(candidate), **more)
    assert len({f.check for f in found}) == len(found)
    return {f.check: f for f in found}


def changed(**changes: Any) -> Provenance:
    """The candidate with other fields; settings, weights and inputs are merged."""
    for field in ("settings", "inputs"):
        if field in changes:
            changes[field] = {**getattr(CANDIDATE, field), **changes[field]}
    return replace(CANDIDATE, **changes)


def test_equal_runs_pass_every_check() -> None:
    found = find()
    assert {f.verdict for f in found.values()} == {"pass"}
    assert {"seed", "model", "weights", "prompt embeddings", "prompt masks", "initial noise"} <= set(found)


OTHER = "0" * 16
WEIGHTS = {**REFERENCE.weights, "scale": OTHER}
LAYERS = {name.replace("blocks", "layers"): value for name, value in REFERENCE.weights.items()}
EMBEDDINGS, MASK = {"cond.encoder_hidden_states": OTHER}, {"cond.encoder_attention_mask": OTHER}
SPLIT = {"scale": "c" * 16, "layers.qkv.weight": OTHER}


def same(module: str) -> str:
    return module


def mapped(module: str) -> str:
    return module.replace("layers", "blocks")


@pytest.mark.parametrize(
    ("candidate", "rename", "check", "verdict", "words"),
    [
        (changed(seed=8), None, "seed", "fail", "7 against 8"),
        (changed(steps=50), None, "number of steps", "fail", "2 against 50"),
        (changed(shard=(1, 4)), None, "shards", "fail", "shard 1 of 4.*name the folder that holds all"),
        (changed(weights=WEIGHTS), None, "weights", "fail", "1 of 3 parameters differ in value: 'scale'"),
        (changed(weights={"scale": "c" * 16}), None, "weights", "fail", "2 parameters on one side only"),
        (changed(inputs=EMBEDDINGS), None, "prompt embeddings", "fail", "'cond.encoder_hidden_states'.*dddd.*0000"),
        (changed(inputs=MASK), None, "prompt masks", "fail", "'cond.encoder_attention_mask'"),
        (changed(inputs={"noise": OTHER}), None, "initial noise", "fail", "ffff.* against 0000"),
        # A declared setting explains what follows from it, and nothing else.
        (changed(settings={"dtype": "bfloat16"}, weights=WEIGHTS), None, "weights", "explained", "by dtype"),
        (changed(settings={"dtype": "bfloat16"}, inputs={"noise": OTHER}), None, "initial noise", "explained", ""),
        (changed(settings={"vision_states": "none"}, inputs={"cond.image_embeds": OTHER}), None, "prompt embeddings",
         "explained", "by vision_states"),
        (changed(settings={"text.byt5_dtype": "bfloat16"}, inputs=MASK), None, "prompt masks", "fail", ""),
        (changed(weights={}), None, "weights", "explained", "not fingerprinted on the candidate"),
        (replace(CANDIDATE, inputs={}), None, "inputs", "explained", ""),
        # A checkpoint may have two names; equal weights decide.
        (changed(model="other", weights={}), None, "model", "fail", "'tiny' against 'other'"),
        (changed(model="hub/tiny", weights={}), None, "model", "explained", ""),
        (changed(model="hub/tiny", weights={}), mapped, "model", "explained", "the same by the last part of the name"),
        (changed(model="port", weights={}), same, "model", "explained", "'port': taken for the same in another"),
        (changed(model="port"), same, "model", "explained", "'port', with equal weights"),
        # Weights are compared under the reference's names; a mapped implementation may split its parameters.
        (changed(weights=LAYERS), None, "weights", "explained", ""),
        (changed(weights={**LAYERS, "layers.0.weight": OTHER}), mapped, "weights", "fail", "value: 'blocks.0.weight'"),
        (changed(weights=SPLIT), None, "weights", "fail", ""),
        (changed(weights=SPLIT), same, "weights", "explained", ""),
        (changed(modules={"layers": ""}), None, "module names", "explained", "--map auto"),
        (changed(modules={"layers": ""}), same, "module names", "", ""),
    ],
)  # fmt: skip
def test_a_difference_is_named_and_blocks_unless_it_is_explained(
    candidate: Provenance, rename: Callable[[str], str] | None, check: str, verdict: str, words: str
) -> None:
    found = find(candidate, **({} if rename is None else {"rename": rename}))
    if verdict == "":
        assert check not in found
        return
    assert found[check].verdict == verdict
    assert re.search(words, found[check].detail), found[check].detail
    assert [f.check for f in found.values() if f.verdict == "fail"] == ([check] if verdict == "fail" else [])


@pytest.mark.parametrize(
    ("ours", "theirs", "complete", "verdict", "words"),
    [
        ((0, 1, 2), (0, 1), (True, False), "explained", "candidate was not finished: compared up to step 1"),
        (
            (0, 1),
            (0,),
            (True, True),
            "explained",
            "the first 1 compared; to judge by these alone: --steps 1",
        ),
        ((-1, 0, 1), (0, 1), (True, True), "explained", "the reference alone holds what is outside the loop"),
        ((), (), (True, True), "fail", ""),
        ((0, 1), (), (True, False), "fail", ""),
    ],
)
def test_the_steps_of_both_are_compared(
    ours: tuple[int, ...], theirs: tuple[int, ...], complete: tuple[bool, bool], verdict: str, words: str
) -> None:
    found = comparable(golden(REFERENCE, ours, complete[0]), golden(CANDIDATE, theirs, complete[1]))
    check = next(f for f in found if f.check == "steps held")
    assert (check.verdict, words in check.detail) == (verdict, True)


OLDER = {name: value for name, value in CANDIDATE.settings.items() if name != "attention.mask"}
PARTS = {"dtype": "float32", "scheduler.shift": "7.0", "scheduler.kind": "euler"}


@pytest.mark.parametrize(
    ("ours", "candidate", "differing"),
    [
        (REFERENCE, CANDIDATE, []),  # each backend at its own default
        (REFERENCE, changed(settings={"attention.mask": "none", "jit": "false"}), ["attention.mask exact none"]),
        (REFERENCE, replace(CANDIDATE, settings=OLDER), []),  # a setting of another version
        (REFERENCE, replace(CANDIDATE, backend="my port", settings={}), []),
        # A component that only one script has.
        (replace(REFERENCE, settings={"dtype": "float32", "vae.e": "0", "vocoder.r": "3", "scheduler.shift": "5.0"}),
         replace(CANDIDATE, settings=PARTS), ["scheduler.kind", "scheduler.shift 5.0 7.0"]),
    ],
)  # fmt: skip
def test_differing_settings_are_listed(ours: Provenance, candidate: Provenance, differing: list[str]) -> None:
    found = settings_differences(ours, candidate)
    assert all(isinstance(d, Difference) for d in found)
    written = [f"{d.setting} {d.reference} {d.candidate}" for d in found]
    assert [text.startswith(begin) for text, begin in zip(written, differing, strict=True)] == [True] * len(written)
