"""Every independent difference of two recordings is listed, in order, and none is invented."""

from __future__ import annotations

import json
import math
import types
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("diffusers")
import diffusers

from parity.compare.diff import diff
from parity.compare.independent import differences, settled
from parity.compare.preflight import ROUNDING, VALUES
from parity.compare.reason import UNKNOWN, Reason
from parity.compare.result import Birth, Check, Distance, Group, Origin, Result, SettingDifference, SiteDiff, measured
from parity.records import Key
from tests.support.cli import cli
from tests.support.scripts import drawn, recorded, referenced, tame

TOKENS, HELD = 16, 10


def other_order(self: Any, *args: Any, **kwargs: Any) -> Any:
    """The model's own forward, its patches laid out as rows x columns x channels for channels x rows x columns."""
    (x,) = type(self).forward(self, *args, **kwargs)
    b, c, t, h, w = x.shape
    laid = x.reshape(b, c, t, h // 2, 2, w // 2, 2).permute(0, 2, 3, 5, 4, 6, 1)
    read = laid.reshape(b, t, h // 2, w // 2, c, 2, 2)
    return (read.permute(0, 4, 1, 2, 5, 3, 6).reshape(x.shape),)


def script(faults: Collection[str]) -> tuple[Callable[[], Any], dict[str, Any]]:
    """A loop around a tiny Wan with these faults, and its parts."""
    model = tame(
        diffusers.WanTransformer3DModel(
            patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=24, in_channels=4, out_channels=4,
            text_dim=32, freq_dim=32, ffn_dim=64, num_layers=1, rope_max_seq_len=32,
        )
    )  # fmt: skip
    if "order" in faults:
        model.forward = types.MethodType(other_order, model)
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=1.0 if "schedule" in faults else 5.0)
    held = (torch.arange(TOKENS) < HELD)[None, :, None]
    text, negative = drawn(1, TOKENS, 32, seed=3), drawn(1, TOKENS, 32, seed=4) * held
    text = text if "t5 mask" in faults else text * held
    negative = torch.zeros_like(negative) if "null prompt" in faults else negative
    swapped = 1 if "swapped from step 1" in faults else 2
    scale = 4.0 if "guidance" in faults else 5.0

    def go() -> torch.Tensor:
        scheduler.set_timesteps(2)
        x = drawn(1, 4, 3, 8, 12, seed=5)
        for i, t in enumerate(scheduler.timesteps):
            given = {"hidden_states": x, "timestep": t.expand(1), "return_dict": False}
            texts = (text, negative) if i < swapped else (negative, text)
            cond, uncond = (model(**given, encoder_hidden_states=y)[0] for y in texts)
            x = scheduler.step(uncond + scale * (cond - uncond), t, x, return_dict=False)[0]
        return x

    return go, {"transformer": model, "scheduler": scheduler}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("independent") / "reference"
    go, parts = script(())
    referenced(where, go, **parts)
    return where


TEXT = "the argument encoder_hidden_states"


@pytest.mark.parametrize(
    ("faults", "listed"),
    [
        ((), []),
        (("schedule",), ["the schedule"]),
        (("t5 mask",), [f"{TEXT} (cond)"]),
        (("order",), ["the model's output (cond, uncond)"]),
        (("guidance",), ["guidance"]),
        (("swapped from step 1",), [f"{TEXT} (cond, uncond)"]),
        (("order", "guidance"), ["the model's output (cond, uncond)", "guidance"]),
        (("schedule", "null prompt"), ["the schedule", f"{TEXT} (uncond)"]),
        (
            ("schedule", "null prompt", "order", "t5 mask", "guidance"),
            ["the schedule", f"{TEXT} (cond, uncond)", "the model's output", "guidance"],
        ),
    ],
)
def test_each_fault_is_listed_and_no_other(
    reference: Path, faults: tuple[str, ...], listed: list[str], tmp_path: Path
) -> None:
    go, parts = script(faults)
    recorded(tmp_path / "candidate", go, like=reference, **parts)
    found = diff(reference, tmp_path / "candidate")
    assert found.verdict == ("fail" if faults else "pass"), found.reason
    assert list(map(str, differences(found))) == listed
    shown = cli("diff", reference, tmp_path / "candidate", code=1 if faults else 0)
    assert (f"{len(listed)} independent ones: {'; '.join(listed)}" in " ".join(shown.out.split())) == (len(listed) > 1)
    document = json.loads(cli("diff", "--format", "json", reference, tmp_path / "candidate").out)
    assert len(document["differences"]) == len(listed)
    known = {place for place in listed if place.split(" (")[0] != TEXT}
    named = {d["place"] for d in document["differences"] if d["causes"]}
    assert named == {place.split(" (")[0] for place in known}


@pytest.mark.parametrize("branch", ["cond", "uncond"])
@pytest.mark.parametrize(("site", "listed"), [("blocks.0:out", 1), ("blocks.1:out", 2), ("blocks.0:in.x", 2)])
def test_what_hands_on_what_begins_inside_it_is_no_other_difference(site: str, listed: int, branch: str) -> None:
    origin = Origin(Key("transformer", 0, "cond", "blocks.0.ffn:out"), "module")
    at = SiteDiff(Key("transformer", 0, branch, site), Distance(1.0, 1e-6, 1e6), verdict="fail", birth="module")
    result = Result("fail", "logic", Reason(kind="first_divergence"), sites=(at,), origin=origin)
    assert len(differences(result)) == listed


def listed_of(*sites: tuple[str, str], far: float = 0.5) -> list[str]:
    """The differences of sites (site, whose values it has) that a divergence is introduced at, the first its origin."""
    births: dict[bool, Birth] = {True: "input", False: "module"}
    keys = [Key("transformer", 0, "", site) for site, _ in sites]
    at = tuple(
        SiteDiff(key, Distance(far, 0.0, 1e9), verdict="fail", birth=births[key.is_input], same=of)
        for key, (_, of) in zip(keys, sites, strict=True)
    )
    origin = Origin(keys[0], births[keys[0].is_input])
    found = differences(Result("fail", "logic", Reason(kind="first_divergence"), sites=at, origin=origin))
    return [d.place for d in found]


def test_what_begins_inside_a_module_in_one_branch_is_none_of_its_own_faults_in_another() -> None:
    origin = Origin(Key("transformer", 0, "cond", "blocks.0.ffn:out"), "module")
    agrees = SiteDiff(replace(origin.key, branch="uncond"), Distance(1e-7, 1e-6, 0.1), verdict="pass")
    own = SiteDiff(
        Key("transformer", 0, "uncond", "blocks.0:out"), Distance(1.0, 1e-6, 1e6), verdict="fail", birth="module"
    )
    result = Result("fail", "logic", Reason(kind="first_divergence"), sites=(agrees, own), origin=origin)
    assert [d.place for d in differences(result)] == ["blocks.0.ffn", "blocks.0"]


@pytest.mark.parametrize(("shape", "listed"), [((1, 8, 12, 4), 0), ((1, 4, 8, 6), 1), ((1, 4, 12, 8), 1)])
def test_an_argument_with_its_channels_elsewhere_is_no_difference(shape: tuple[int, ...], listed: int) -> None:
    key = Key("transformer", 0, "cond", ":in.hidden_states")
    shapes, dtypes = ((1, 4, 8, 12), shape), ("float32", "float32")
    at = SiteDiff(key, UNKNOWN, verdict="not compared", shapes=shapes, dtypes=dtypes)
    result = Result("fail", "logic", Reason(kind="first_divergence"), sites=(at,))
    assert len(differences(result)) == listed


def test_a_video_of_another_size_is_one_difference_and_a_table_of_two_parts_is_another() -> None:
    births: tuple[Birth, ...] = ("input", "input", "input", "propagated")
    sites = ("loop:latents.before", ":in.table.0", ":in.table.1", "decode:in.z")
    shapes = ((1, 16, 3, 4, 4), (1, 16, 2, 4, 4)), ((96, 8), (96, 8)), ((96, 8), (96, 8)), ((16, 3, 16), (16, 2, 16))
    keys = [Key("transformer", 0, "", site) for site in sites]
    at = [
        SiteDiff(key, UNKNOWN, verdict="fail", birth=birth, shapes=shape)
        for key, birth, shape in zip(keys, births, shapes, strict=True)
    ]
    given = SiteDiff(Key("transformer", 0, "", ":in.x"), UNKNOWN, verdict="not compared", shapes=shapes[0])
    cause = measured("2 latent frames", at="decode:in.z")
    result = Result(
        "fail",
        "logic",
        Reason(kind="first_divergence"),
        sites=(*at, given),
        origin=Origin(keys[0], "input"),
        causes=(cause,),
    )
    assert [(d.place, d.causes) for d in differences(result)] == [
        ("the latents", ["2 latent frames"]),
        ("the argument table", []),
    ]


def test_what_has_another_size_is_none_of_a_first_difference_that_the_weights_explain() -> None:
    keys = [Key("transformer", 0, "", site) for site in ("blocks.0:out", "loop:latents.before", "decode:in.z")]
    sizes = ((1, 8), (1, 8)), ((1, 16, 3), (1, 16, 2)), ((1, 3, 16), (1, 2, 16))
    at = [
        SiteDiff(key, UNKNOWN, verdict="fail", birth="module", shapes=shapes)
        for key, shapes in zip(keys, sizes, strict=True)
    ]
    weights = Check("weights", "fail", "others", computed=True, at=("blocks.0.weight",))
    why, cause = Reason(kind="first_divergence"), measured("2 latent frames", at="decode:in.z")
    origin = Origin(keys[0], "module")
    result = Result("fail", "logic", why, sites=at, origin=origin, causes=(cause,), preflight=(weights,))
    assert [d.place for d in differences(result)] == ["the weights", "the latents", "what is decoded"]


@pytest.mark.parametrize("far", [0.5, math.nan])
@pytest.mark.parametrize(("same", "listed"), [("blocks.0:in.mask", 1), ("", 2)])
@pytest.mark.parametrize("port", ["in.mask", "in.x"])
def test_one_value_that_is_handed_to_several_modules_is_one_difference(
    port: str, same: str, listed: int, far: float
) -> None:
    found = listed_of(("blocks.0:in.mask", ""), (f"single_blocks.0:{port}", same), far=far)
    assert len(found) == listed


@pytest.mark.parametrize(
    ("floors", "listed"),
    [
        ((193, 300, 250), ["attn.norm_q's input"]),
        ((193, 16139, 15000), ["attn.norm_q's input", "attn.to_out's input"]),  # of which the last is made too
        ((16139, 193, 190), ["attn.norm_q's input"]),
    ],
)
def test_a_far_greater_difference_in_one_call_s_code_is_one_by_itself(
    floors: tuple[float, ...], listed: list[str]
) -> None:
    keys = [Key("transformer", 0, "", f"attn.{name}:in.input") for name in ("norm_q", "to_out", "to_add_out")]
    sites = tuple(
        SiteDiff(key, UNKNOWN, verdict="fail", birth="input", local=Distance(1e-6 * far, 1e-6, far))
        for key, far in zip(keys, floors, strict=True)
    )
    result = Result("fail", "logic", Reason(kind="first_divergence"), sites=sites, origin=Origin(keys[0], "input"))
    assert [d.place for d in differences(result)] == listed


@pytest.mark.parametrize(
    ("sites", "listed"),
    [
        (("blocks.0.attn.attention:in.key", "blocks.1.attn.to_out.0:in.input"), "blocks.*.attn.attention's input key"),
        (("blocks.0.attn.to_out.0:out", "blocks.3.attn.to_out.0:out"), "blocks.*.attn.to_out.0"),
        (("blocks.2.attn.to_out.0:out", "blocks.2.attn.to_out.1:out"), "blocks.2.attn.to_out.*"),
        (("blocks.2.attn.norm:out", "blocks.2.attn.norm:out"), "blocks.2.attn.norm"),
        ((":in.text", "transformer_2:in.text"), "the argument text"),  # which a loop gives to both its models
    ],
)
def test_what_the_same_code_does_in_several_blocks_is_one_difference_in_all(sites: Sequence[str], listed: str) -> None:
    assert listed_of(*((site, "") for site in sites)) == [listed]


@pytest.mark.parametrize(("step", "listed"), [(1, 1), (0, 1), (None, 2)])
def test_a_block_at_another_step_is_what_begins_inside_it(step: int | None, listed: int) -> None:
    """Of the first step alone it is known where in the block."""
    origin = Key("transformer", 0, "cond", "blocks.2.ffn:out")
    other = replace(origin, step=step or 0, branch="uncond", site=f"blocks.{2 if step is not None else 1}:out")
    keys = [origin, other] if step != 0 else [origin]
    at = tuple(SiteDiff(key, Distance(0.5, 0.0, 1e9), verdict="fail", birth="module") for key in keys)
    why = Reason(kind="first_divergence")
    assert len(differences(Result("fail", "logic", why, sites=at, origin=Origin(origin, "module")))) == listed


ATTENDED, MADE, OUT, NORM = "attn.attention:in.key", "attn.attention:out", "attn.to_out.0:in.input", "attn.norm_q:in.x"


@pytest.mark.parametrize(
    ("sites", "closer", "listed"),
    [
        # The code of one module has two faults, each in other blocks; what its call gives next is off with the first.
        ([f"blocks.0.{OUT}", f"blocks.1.{NORM}", f"blocks.1.{OUT}"], (), 2),
        ([f"blocks.0.{NORM}", f"blocks.0.{OUT}", f"blocks.1.{NORM}"], (), 1),
        # An attention call is seen in the block of the first divergence alone.
        ([f"blocks.0.{ATTENDED}", f"blocks.1.{OUT}"], (NORM, ATTENDED, OUT), 1),
        ([f"blocks.0.{MADE}", f"blocks.1.{OUT}"], (NORM, ATTENDED, MADE, OUT), 1),
        ([f"blocks.0.{ATTENDED}", f"blocks.1.{NORM}"], (NORM, ATTENDED, OUT), 2),
    ],
)
def test_two_faults_of_one_module_s_code_in_other_blocks_are_two(
    sites: Sequence[str], closer: Sequence[str], listed: int
) -> None:
    origin, *_ = keys = [Key("transformer", 0, "", site) for site in sites]
    births: dict[bool, Birth] = {True: "input", False: "module"}
    at = tuple(SiteDiff(key, Distance(0.5, 0.0, 1e9), verdict="fail", birth=births[key.is_input]) for key in keys)
    looked = tuple(SiteDiff(replace(origin, site=f"blocks.0.{site}"), UNKNOWN) for site in closer)
    why = Reason(kind="first_divergence")
    result = Result("fail", "logic", why, sites=at, origin=Origin(origin, births[origin.is_input]), closer=looked)
    assert len(differences(result)) == listed


@pytest.mark.parametrize(("same", "listed"), [("blocks.1:out", 1), ("", 2)])
def test_what_is_given_the_output_that_the_origin_lies_in_is_no_other_difference(same: str, listed: int) -> None:
    found = listed_of(("blocks.1.norm:in.x", ""), ("blocks.1:out", ""), ("norm_out:in.x", same))
    assert len(found) == listed


@pytest.mark.parametrize(
    ("site", "listed"),
    [
        ("blocks.1:out", []),
        ("blocks.0:out", ["blocks.0"]),
        ("out:in.x", []),  # the model has a parameter of its own
        ("out:in.mask", ["out's input mask"]),  # which is an argument
        ("blocks.1.ff.net:in.x", []),  # which the parameters of its caller are in
        ("blocks.1.attn:in.x", ["blocks.1.attn's input x"]),
        ("rope:in.frequencies", []),
        ("blocks.1.ff.net:out", []),  # of which no input is compared
        ("blocks.1.attn:out", ["blocks.1.attn"]),
        ("blocks.1.cross.attention:in.query", []),  # by a projection at which nothing was observed
        ("blocks.1.attn.attention:in.query", ["blocks.1.attn.attention's input query"]),
    ],
)
def test_a_module_beside_one_with_other_weights_is_listed(site: str, listed: list[str]) -> None:
    at = SiteDiff(Key("transformer", 0, "", site), Distance(0.5, 0.0, 1e9), verdict="fail", birth="module")
    which = ("blocks.1.ff.weight", "blocks.1.ff.bias", "frequencies", "blocks.1.cross.to_q.weight")
    weights = Check("weights", "fail", "4 of 9", computed=True, at=which)
    mask = SiteDiff(Key("transformer", 0, "", ":in.mask"), UNKNOWN)
    result = Result("fail", "preflight", Reason(kind="first_divergence"), sites=(mask, at), preflight=(weights,))
    assert [d.place for d in differences(result)] == ["the weights", *listed]


@pytest.mark.parametrize(
    ("others", "ports", "listed"),
    [
        (["to_q"], ["query"], []),
        (["to_q", "to_v"], ["query", "value"], []),
        (["to_v"], ["query", "value"], ["blocks.1.attn.attention's input query"]),  # one of them is off by itself
        (["to_out.0"], ["query"], ["blocks.1.attn.attention's input query"]),  # which is behind the call
    ],
)
def test_other_weights_account_for_as_many_inputs_of_an_attention_call_as_they_make(
    others: list[str], ports: list[str], listed: list[str]
) -> None:
    keys = [Key("transformer", 0, "", f"blocks.1.attn.attention:in.{port}") for port in ports]
    first = SiteDiff(keys[0], UNKNOWN, verdict="fail", birth="input")
    sites = (first, *(SiteDiff(key, UNKNOWN, verdict="fail", birth="propagated") for key in keys[1:]))
    at = tuple(f"blocks.1.attn.{name}.weight" for name in others)
    weights = Check("weights", "fail", f"{len(at)} of 9", computed=True, at=at)
    result = Result("fail", "preflight", Reason(kind="first_divergence"), sites=sites, preflight=(weights,))
    assert [d.place for d in differences(result)] == ["the weights", *listed]


@pytest.mark.parametrize(
    ("within", "beyond", "local", "listed"),
    [
        (2.0, 4.0, math.nan, []),
        (2.0, 4000.0, math.nan, ["norm_out's input"]),  # far more than that
        (2.0, 4.0, 4.0, ["norm_out's input"]),  # off by itself
        (0.0, 4.0, math.nan, ["norm_out's input"]),
    ],
)
def test_what_other_weights_make_within_its_floor_is_handed_on(
    within: float, beyond: float, local: float, listed: list[str]
) -> None:
    held = SiteDiff(Key("transformer", 0, "", "blocks.1:out"), Distance(1e-3 * within, 1e-3, within))
    far = Distance(1e-3 * beyond, 1e-3, beyond)
    behind = SiteDiff(Key("transformer", 0, "", "norm_out:in.input"), far, verdict="fail", birth="input")
    behind = replace(behind, local=Distance(1e-3, 1e-3, local))
    weights = Check("weights", "fail", "1 of 9", computed=True, at=("blocks.1.ff.weight",))
    result = Result("fail", "preflight", Reason(kind="first_divergence"), sites=(held, behind), preflight=(weights,))
    assert [d.place for d in differences(result)] == ["the weights", *listed]


@pytest.mark.parametrize(
    ("setting", "near", "local", "listed"),
    [
        ("seed", "bfloat16", 0.002, ["the weights"]),
        ("seed", "bfloat16", 0.5, ["the weights", "embed"]),  # far more than rounding makes of it
        ("dtype", "bfloat16", 0.5, ["embed"]),
        ("dtype", VALUES, 0.002, ["the weights"]),  # of another step of the training
        ("seed", ROUNDING, 0.002, ["embed"]),
    ],
)
def test_weights_that_are_nearly_the_reference_s_are_one_difference(
    setting: str, near: str, local: float, listed: list[str]
) -> None:
    far = Distance(local, 0.0, 1e9)
    at = SiteDiff(Key("transformer", 0, "", "embed:out"), far, verdict="fail", birth="module", local=far)
    weights = Check("weights", "explained", "2 of 2", at=("embed.weight", "out.weight"), near=near)
    differing = (SettingDifference(setting, "float32", "bfloat16"),)
    result = Result("fail", "logic", Reason(kind="first_divergence"), sites=(at,), preflight=(weights,))
    found = differences(replace(result, differing_settings=differing, origin=Origin(at.key, "module")))
    assert [d.place for d in found] == listed


WEIGHT = "blocks.1.ff.fc.weight"


@pytest.mark.parametrize(
    ("sites", "shown", "fails"),
    [
        ({"blocks.1:out": "pass"}, ["blocks.1"], False),
        ({"blocks.1:out": "pass"}, [], True),  # within a floor of 16 bits, or its gates are zero
        ({"blocks.1:out": "pass", "blocks.1.ff:out": "pass"}, ["blocks.1"], True),  # that is given zeros
        ({"blocks.1:out": "pass", "blocks.1.ff:out": "not compared"}, ["blocks.1"], False),  # folded into what is next
        ({"blocks.1:out": "fail"}, ["blocks.1"], True),
        ({"blocks.0:out": "pass", ":out": "pass"}, ["blocks.0"], True),  # the model's own output alone
    ],
)
def test_a_port_holds_a_parameter_in_another_form_where_what_is_made_of_it_agrees(
    sites: dict[str, Any], shown: list[str], fails: bool
) -> None:
    far = {"pass": Distance(1e-7, 1e-6, 0.1), "fail": Distance(0.5, 1e-6, 5e5)}
    at = [
        SiteDiff(Key("transformer", 0, "", site), far.get(verdict, UNKNOWN), verdict=verdict, dtypes=("float32",) * 2)
        for site, verdict in sites.items()
    ]
    at = [replace(d, birth="module") if d.verdict == "fail" else d for d in at]
    others = Group(
        "other values",
        "have other values",
        (WEIGHT, "top.weight"),
        ("by 90.0%", "by 80.0%"),
        True,
        (WEIGHT, "top.weight"),
    )
    weights = Check("weights", "fail", "", computed=True, at=others.names, groups=(others,), of=9)
    result = Result("pass", None, Reason(kind="agrees"), sites=at, preflight=(weights,), shown=(*shown, "top"))
    (found,) = settled(
        replace(result, sites=[*at, SiteDiff(Key("transformer", 0, "", "top:out"), far["pass"])])
    ).preflight
    said = f"1 of 9 parameters have other values, '{WEIGHT}' by 90.0%: '{WEIGHT}'; 1 more are held in a form"
    assert (found.verdict, found.at, found.detail.startswith(said)) == (
        ("fail", (WEIGHT,), True) if fails else ("explained", (), False)
    )


def test_parameters_that_differ_in_several_ways_are_a_difference_each() -> None:
    groups = (
        Group("of others", "hold others of the reference's", ("a.weight",), ("those of 'b.weight'",), firm=True),
        Group("zeros", "are zeros", ("c.bias", "d.bias"), firm=True),
        Group("", "parameters on one side only", ("e",)),
    )
    at = ("a.weight", "c.bias", "d.bias")
    weights = Check("weights", "fail", "", computed=True, at=at, groups=groups, of=9)
    found = differences(Result("fail", "preflight", Reason(kind="preflight"), preflight=(weights,)))
    assert {d.place: d.causes for d in found} == {
        "the weights (of others)": [
            "1 of 9 parameters hold others of the reference's, 'a.weight' those of 'b.weight': 'a.weight'"
        ],
        "the weights (zeros)": ["2 of 9 parameters are zeros: 'c.bias', 'd.bias'"],
    }


@pytest.mark.parametrize("looked", [True, False])
def test_what_the_closer_look_has_explained_is_no_difference(looked: bool) -> None:
    """At first nobody saw what makes the input of the next block."""
    start, given = (Key("transformer", 0, "cond", site) for site in ("entry:out", "blocks.0:in.x"))
    coarse = SiteDiff(given, UNKNOWN, verdict="fail", birth="input")
    closer = (SiteDiff(start, UNKNOWN, verdict="fail", birth="module"), replace(coarse, birth="propagated"))
    found = Result("fail", "logic", Reason(kind="first_divergence"), sites=(coarse,), origin=Origin(start, "module"))
    listed = [str(d) for d in differences(replace(found, closer=closer if looked else ()))]
    assert listed == (["entry (cond)"] if looked else ["entry (cond)", "blocks.0's input x (cond)"])


def test_what_following_has_measured_is_a_difference_whatever_the_closer_look_says() -> None:
    """A second fault in the block of the first: its inputs differ, and so does what the reference makes of them."""
    first, second = (Key("transformer", 0, "cond", f"blocks.0.{name}:out") for name in ("norm1", "norm2"))
    local = Distance(0.9, 1e-6, 9e5)
    sites = tuple(SiteDiff(key, local, verdict="fail", birth="module", local=local) for key in (first, second))
    closer = (sites[0], replace(sites[1], birth="propagated", local=UNKNOWN))
    result = Result(
        "fail", "logic", Reason(kind="first_divergence"), sites=sites, origin=Origin(first, "module"), closer=closer
    )
    assert [d.place for d in differences(result)] == ["blocks.0.norm1", "blocks.0.norm2"]


@pytest.mark.parametrize(
    ("seen", "listed"), [(True, {"block.ff": [], "block": ["why"]}), (False, {"block.ff": ["why"]})]
)
def test_a_block_differs_beside_its_module_where_the_candidate_hands_out_both(
    seen: bool, listed: dict[str, list[str]]
) -> None:
    """Of a module that it does not hand out, the block's own value holds the difference, and shows why."""
    inner, outer = (Key("transformer", 0, "cond", f"{module}:out") for module in ("block.ff", "block"))
    local = Distance(0.9, 1e-6, 9e5)
    sites = [SiteDiff(key, local, verdict="fail", birth="module", local=local) for key in (inner, outer)]
    sites[0] = sites[0] if seen else replace(sites[0], local=UNKNOWN)
    why, causes = Reason(kind="first_divergence"), (measured("why", at=outer.site),)
    result = Result("fail", "logic", why, sites=tuple(sites), origin=Origin(inner, "module"), causes=causes)
    assert {d.place: d.causes for d in differences(result)} == listed
