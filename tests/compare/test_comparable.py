"""What two runs differ in is said before any number, and the incomparable is not compared."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from parity.compare.comparable import Side, comparable, settings_differences
from parity.compare.result import Check
from parity.golden import Provenance
from parity.settings import Difference
from tests.support.made import CANDIDATE, REFERENCE

STEPS = (0, 1)


def find(candidate: Provenance = CANDIDATE, reference: Provenance = REFERENCE, **more: Any) -> dict[str, Check]:
    found = comparable(Side(reference, STEPS), Side(candidate, STEPS), **more)
    assert len({f.check for f in found}) == len(found)
    return {f.check: f for f in found}


def setting(**changes: str) -> dict[str, str]:
    return {**CANDIDATE.settings, **{name.replace("_", ".", 1): value for name, value in changes.items()}}


def test_equal_runs_have_nothing_to_say() -> None:
    found = find()
    assert {f.verdict for f in found.values()} == {"pass"}
    assert {"seed", "model", "weights", "prompt embeddings", "prompt masks", "initial noise"} <= set(found)


@pytest.mark.parametrize(
    ("change", "what", "said"),
    [
        ({"seed": 8}, "seed", "7 against 8"),
        ({"steps": 50}, "number of steps", "2 against 50"),
        ({"model": "other", "weights": {}}, "model", "'tiny' against 'other'"),
        ({"shard": (1, 4)}, "shards", "candidate is shard 1 of 4.*parity merge"),
        (
            {"weights": {**REFERENCE.weights, "scale": "0" * 16}},
            "weights",
            "1 of 3 parameters differ in value: 'scale'",
        ),
        ({"weights": {"scale": "c" * 16}}, "weights", "2 parameters on one side only: 'blocks.0.weight'"),
        (
            {"inputs": {**REFERENCE.inputs, "cond.encoder_hidden_states": "0" * 16}},
            "prompt embeddings",
            "'cond.encoder_hidden_states'.*dddd.* against 0000",
        ),
        (
            {"inputs": {**REFERENCE.inputs, "cond.encoder_attention_mask": "0" * 16}},
            "prompt masks",
            "'cond.encoder_attention_mask'",
        ),
        ({"inputs": {**REFERENCE.inputs, "noise": "0" * 16}}, "initial noise", "ffff.* against 0000"),
        ({"inputs": {**REFERENCE.inputs, "depth": "0" * 16}}, "other inputs", "'depth'"),
    ],
)
def test_what_makes_runs_incomparable_is_named(change: dict[str, Any], what: str, said: str) -> None:
    found = find(replace(CANDIDATE, **change))
    assert [f.check for f in found.values() if f.verdict == "fail"] == [what]

    assert re.search(said, found[what].detail), found[what].detail


@pytest.mark.parametrize(
    ("settings", "change", "what"),
    [
        ({"dtype": "bfloat16"}, {"weights": dict.fromkeys(REFERENCE.weights, "0" * 16)}, "weights"),
        ({"dtype": "bfloat16"}, {"inputs": {**REFERENCE.inputs, "noise": "0" * 16}}, "initial noise"),
        (
            {"text.byt5_dtype": "bfloat16"},
            {"inputs": {**REFERENCE.inputs, "cond.encoder_hidden_states": "0" * 16}},
            "prompt embeddings",
        ),
        (
            {"vision_states": "none"},
            {"inputs": {**REFERENCE.inputs, "cond.image_embeds": "0" * 16}},
            "prompt embeddings",
        ),
    ],
)
def test_a_declared_setting_explains_what_follows_from_it(
    settings: dict[str, str], change: dict[str, Any], what: str
) -> None:
    declared = replace(CANDIDATE, settings={**CANDIDATE.settings, **settings}, **change)
    found = find(declared)[what]
    assert found.verdict == "explained"
    assert f"explained by {next(iter(settings))}" in found.detail
    assert find(replace(CANDIDATE, **change))[what].verdict == "fail"


def test_a_setting_explains_only_what_it_can() -> None:
    inputs = {**REFERENCE.inputs, "cond.encoder_attention_mask": "0" * 16}
    declared = replace(CANDIDATE, settings={**CANDIDATE.settings, "text.byt5_dtype": "bfloat16"}, inputs=inputs)
    assert find(declared)["prompt masks"].verdict == "fail"


def test_unknown_fingerprints_are_said() -> None:
    found = find(replace(CANDIDATE, weights={}, inputs={}))
    assert found["weights"].verdict == found["inputs"].verdict == "explained"
    assert "not fingerprinted on the candidate" in found["weights"].detail


def test_the_same_checkpoint_may_have_two_names() -> None:
    assert find(replace(CANDIDATE, model="hub/tiny"))["model"].verdict == "explained"
    assert find(replace(CANDIDATE, model="elsewhere"))["model"].verdict == "explained", "equal weights decide"
    unknown = replace(CANDIDATE, weights={})
    assert find(replace(unknown, model="hub/tiny"))["model"].verdict == "explained"
    assert find(replace(unknown, model="elsewhere"))["model"].verdict == "fail"


def test_weights_are_compared_under_the_references_names() -> None:
    own = {name.replace("blocks", "layers"): value for name, value in REFERENCE.weights.items()}
    assert find(replace(CANDIDATE, weights=own))["weights"].verdict == "explained", "the same values"
    own["layers.0.weight"] = "0" * 16
    assert find(replace(CANDIDATE, weights=own))["weights"].verdict == "fail"
    found = find(replace(CANDIDATE, weights=own), rename=lambda m: m.replace("layers", "blocks"))["weights"]
    assert found.verdict == "fail"
    assert "differ in value: 'blocks.0.weight'" in found.detail


def test_mapped_implementations_may_split_their_parameters() -> None:
    own = {"scale": "c" * 16, "layers.qkv.weight": "0" * 16}
    assert find(replace(CANDIDATE, weights=own), rename=lambda m: m)["weights"].verdict == "explained"
    assert find(replace(CANDIDATE, weights=own))["weights"].verdict == "fail"


def held(ours: tuple[int, ...], theirs: tuple[int, ...], *, complete: tuple[bool, bool] = (True, True)) -> Check:
    found = comparable(Side(REFERENCE, ours, complete[0]), Side(CANDIDATE, theirs, complete[1]))
    return next(f for f in found if f.check == "steps held")


def test_an_unfinished_recording_is_compared_up_to_its_last_step() -> None:
    found = held((0, 1, 2), (0, 1), complete=(True, False))
    assert found.verdict == "explained"
    assert "of the candidate was not finished: compared up to step 1 (2 steps)" in found.detail


@pytest.mark.parametrize(
    ("ours", "theirs", "complete"),
    [((), (), (True, True)), ((0,), (1,), (True, True)), ((0, 1), (), (True, False))],
)
def test_steps_that_do_not_match_block(
    ours: tuple[int, ...], theirs: tuple[int, ...], complete: tuple[bool, bool]
) -> None:
    assert held(ours, theirs, complete=complete).verdict == "fail"


def test_a_loop_that_made_fewer_steps_is_compared_as_far_as_it_went() -> None:
    found = held((0, 1), (0,), complete=(True, True))
    assert (found.verdict, found.detail) == (
        "explained", "the reference's loop made 2 steps, the candidate's 1: the shorter compared"
    )  # fmt: skip


def test_what_only_one_recording_holds_outside_the_loop_does_not_block() -> None:
    found = held((-1, 0, 1), (0, 1), complete=(True, True))
    assert found.verdict == "explained"
    assert found.detail == "the reference alone holds what is outside the loop: 2 steps of the loop compared"


def test_the_config_of_a_component_that_only_one_script_has_is_no_difference() -> None:
    ours = replace(REFERENCE, settings={"dtype": "float32", "vae.norm_eps": "1e-06", "scheduler.shift": "5.0"})
    theirs = replace(CANDIDATE, settings={"dtype": "float32", "scheduler.shift": "7.0", "scheduler.kind": "euler"})
    assert [d.setting for d in settings_differences(ours, theirs)] == ["scheduler.kind", "scheduler.shift"]


def test_each_backend_at_its_own_default_is_no_difference() -> None:
    assert settings_differences(REFERENCE, CANDIDATE) == ()


def test_differing_settings_are_listed_as_written() -> None:
    other = replace(CANDIDATE, settings={**CANDIDATE.settings, "attention.mask": "none", "jit": "false"})
    assert settings_differences(REFERENCE, other) == (Difference("attention.mask", "exact", "none"),)
    # jit=false equals the reference's value, though it is no default of the candidate's


def test_a_setting_of_an_older_or_newer_parity() -> None:
    older = {name: value for name, value in CANDIDATE.settings.items() if name != "attention.mask"}
    assert settings_differences(REFERENCE, replace(CANDIDATE, settings=older)) == ()
    newer = {**CANDIDATE.settings, "zz.new": "on"}
    found = settings_differences(REFERENCE, replace(CANDIDATE, settings=newer))
    assert found == (Difference("zz.new", "not recorded", "on"),)


def test_a_users_own_backend_has_no_defaults() -> None:
    own = replace(CANDIDATE, backend="my port")
    names = [d.setting for d in settings_differences(REFERENCE, own)]
    assert "attention.kernel" in names
    assert settings_differences(REFERENCE, replace(own, settings={})) == ()


def test_other_module_names_are_said_with_the_remedy() -> None:
    found = find(replace(CANDIDATE, modules={"layers": ""}))["module names"]
    assert found.verdict == "explained"
    assert "--map auto" in found.detail
    assert "module names" not in find(replace(CANDIDATE, modules={"layers": ""}), rename=lambda m: m)


@pytest.mark.parametrize(
    ("devices", "theirs", "ours", "chip"),
    [
        (("cpu x 1",), "none", "none", ""),
        (("cpu x 1",), "v6e", "none", "v6e"),
        (("cpu x 1",), "v6e", "v6e", ""),
        (("TPU v6 lite x 8",), "none", "none", "v6e"),
        (("TPU v5 lite x 4", "TPU v5 lite x 4"), "none", "v4", "v5e"),
        (("TPU v5 x 4",), "v5p", "v5e", ""),  # one unit, one set of bounds
        (("TPU v99 x 4",), "v99", "none", ""),
        ((), "a golden may hold anything", "none", ""),
    ],
)
def test_floors_that_do_not_allow_for_the_candidates_chip_are_told(
    devices: tuple[str, ...], theirs: str, ours: str, chip: str
) -> None:
    found = find(
        replace(CANDIDATE, devices=devices, settings={**CANDIDATE.settings, "tpu": theirs}),
        replace(REFERENCE, settings={**REFERENCE.settings, "tpu": ours}),
    )
    assert ("elementary functions" in found) == bool(chip)
    if chip:
        said = found["elementary functions"]
        assert said.verdict == "explained"
        assert f"--setting tpu={chip} has floors that do" in said.detail
