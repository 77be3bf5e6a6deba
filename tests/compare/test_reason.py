"""Sentences of reasons: one for each kind, in every place of a run, and none that reads another."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from parity.compare.reason import FLOORS, UNKNOWN, Distance, Output, Reason, place, sentence
from parity.golden import Key

KEY = Key("transformer", 0, "cond", "block:out")
AGREES = Reason(kind="agrees", sites=12, steps=2, output=Output("noise_pred", Distance(1e-6, 2e-6, 0.5)))
INPUT = Key("transformer", 0, "cond", "block:in.x")
BEFORE = Key("transformer", 0, "cond", "embed:out")
PARTS = Reason(
    kind="first_divergence",
    first=KEY,
    after=(INPUT,),
    distance=Distance(4.05e-1, 6.3e-6, 64384.0),
    outputs_match=True,
)
ENCODED = Reason(kind="agrees", stage="text", sites=7, output=Output("states", Distance(1e-7, 2e-7, 0.5)))
FRAMES = Reason(kind="output", stage="vae", output=Output("frames", Distance(1e-2, 1e-5, 1000.0)))


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (Reason(kind="agrees"), ""),
        (AGREES, "12 sites of 2 steps agree within their floors; noise_pred relative L2 1.00e-06 at most, floor"),
        (replace(AGREES, steps=1), "12 sites of 1 step agree within their floors"),
        (replace(AGREES, steps=0), "12 sites agree within their floors"),
        (replace(AGREES, precision=True), "structure agrees; precision: 12 sites of 2 steps agree"),
        (ENCODED, "text: 7 sites agree within their floors; states relative L2 1.00e-07, floor 2.00e-07"),
        (replace(ENCODED, output=None), "text: within its floors at 7 sites"),
        (Reason(kind="preflight", check="weights", detail="two differ"), "preflight: weights: two differ"),
        (Reason(kind="preflight", stage="vae", check="frames", detail="9 of 10"), "frames: 9 of 10"),
        (FRAMES, "the frames of the whole chain differ by 1.00e-02 relative L2, 1,000x the rounding floor"),
        (replace(FRAMES, output=None, sites=3), "vae: beyond its floors at 3 sites"),
        (Reason(kind="unjudged", problem="no_tensor", detail="sides"), "the two sides have no tensor in common"),
        (Reason(kind="unjudged", problem="not_finite", first=KEY), f"the reference itself is not finite at {KEY}"),
        (Reason(kind="unjudged", problem="no_floors", first=KEY, note="None against a tensor"), FLOORS),
        (Reason(kind="unjudged", problem="some_floors", first=KEY, sites=4), "4 sites differ whose floors"),
        (Reason(kind="unjudged", detail="as it is"), "as it is"),
    ],
)
def test_each_kind_has_its_words(reason: Reason, words: str) -> None:
    assert words in sentence(reason)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "inputs match, output differs by 4.05e-01 relative L2, 64,384x the rounding floor"),
        (
            {"after": (BEFORE,)},
            "its own inputs were not compared, embed output (step 0, cond) before it",
        ),
        ({"after": ()}, "nothing before it was compared, output differs by 4.05e-01"),
        ({"birth": "input"}, "everything before it matches, this input differs by"),
        ({"birth": "amplified"}, "grown from smaller differences before it, this value differs by"),
        ({"note": "None against a tensor"}, "output differs (None against a tensor)"),
        ({"fed": "reference"}, "on the reference's inputs, output differs by 4.05e-01 relative L2"),
        ({"distance": Distance(1.0, 1.0, 1.2), "element": 7.0}, "1.2x the rounding floor; its largest element 7x"),
        ({"distance": Distance(1.0, 1.0, 1.2), "part": 8.0}, "1.2x the rounding floor; one part of its rows 8x"),
        ({"distance": UNKNOWN}, "output differs: NaN or infinite on one side"),
        ({"distance": Distance(1.0, math.nan, math.nan)}, "and no rounding floor was measured"),
        ({"distance": Distance(1.0, 0.0, math.inf)}, "where rounding explains none"),
    ],
)
def test_a_first_divergence_is_placed_and_measured(changes: dict[str, object], words: str) -> None:
    found = sentence(replace(PARTS, **changes))  # type: ignore[arg-type]
    assert found.startswith("first divergence: block output (step 0, cond): ")
    assert words in found
    assert found.endswith("; noise_pred and latents still match")


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (
            Key("transformer", 1, "uncond", "a:out@image", 2),
            "a output, image tokens (step 1, uncond, call 2)",
        ),
        (Key("transformer", 0, "cond", "a:in.hidden_states"), "a input hidden_states (step 0, cond)"),
        (Key("transformer", 0, "cond", ":out.1"), "model output 1 (step 0, cond)"),
        (Key("transformer", 3, "", "loop:latents.after"), "latents after the step (step 3)"),
        (Key("vae", -1, "", "loop:frames"), "frames (vae)"),
        (Key("text", -1, "cond", "layers.0:out"), "layers.0 output (text, cond)"),
    ],
)
def test_a_place_is_named_in_words(key: Key, words: str) -> None:
    assert place(key) == words


def test_a_stage_ends_with_its_worst_output_in_place_of_the_loops() -> None:
    found = sentence(
        replace(PARTS, stage="vae", outputs_match=False, output=Output("frames", Distance(1e-2, 1e-5, 1e3)))
    )
    assert found.endswith("; frames relative L2 1.00e-02, floor 1.00e-05")


def test_stages_and_encoders_that_agree_are_named_together() -> None:
    text = Reason(
        kind="agrees", stage="text", together=(replace(ENCODED, encoder="t5"), replace(ENCODED, encoder="byt5"))
    )
    assert sentence(text).startswith("text: t5, 7 sites agree")
    assert "; byt5, 7 sites agree" in sentence(text)
    every = Reason(kind="agrees", together=(text, replace(AGREES, precision=True)))
    assert sentence(every) == f"{sentence(text)}; {sentence(replace(AGREES, precision=True))}"
