"""Sentences of reasons: one for each kind, in every place of a run, and none that reads another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parity.compare.reason import FLOORS, Distance, Output, Reason, sentence
from parity.golden import Key

KEY = Key("transformer", 0, "cond", "block:out")
AGREES = Reason(kind="agrees", sites=12, steps=2, output=Output("noise_pred", Distance(1e-6, 2e-6, 0.5)))
PARTS = Reason(kind="first_divergence", first=KEY, distance=Distance(4.05e-1, 6.3e-6, 64384.0), outputs_match=True)
ENCODED = Reason(kind="agrees", stage="text", sites=7, output=Output("states", Distance(1e-7, 2e-7, 0.5)))
FRAMES = Reason(kind="output", stage="vae", output=Output("frames", Distance(1e-2, 1e-5, 1000.0)))


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (Reason(kind="agrees"), ""),
        (AGREES, "12 sites of 2 steps agree within their floors; noise_pred relative L2 1.00e-06 at most, floor"),
        (replace(AGREES, precision=True), "structure agrees; precision: 12 sites of 2 steps agree"),
        (ENCODED, "text: 7 sites agree within their floors; states relative L2 1.00e-07, floor 2.00e-07"),
        (replace(ENCODED, output=None), "text: within its floors at 7 sites"),
        (replace(AGREES, fed="recorded", distance=Distance(1.0, 1.0, 1.04)), "fed the recorded inputs; at most 1.0 x"),
        (Reason(kind="preflight", check="weights", detail="two differ"), "preflight: weights: two differ"),
        (Reason(kind="preflight", stage="vae", check="frames", detail="9 of 10"), "frames: 9 of 10"),
        (FRAMES, "the frames of the whole chain are beyond their floor (relative L2 1.00e-02, 1000 x their floor)"),
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
        ({}, "its inputs agree and its output does not (relative L2 4.05e-01, 64384 x its floor)"),
        ({"birth": "input"}, "this input differs although everything before it agrees (relative"),
        ({"birth": "amplified"}, "the difference only grew there (relative"),
        ({"note": "None against a tensor"}, "its output does not (None against a tensor)"),
        (
            {"local": True, "fed": "reference"},
            "fed the reference's inputs its output differs (local relative L2 4.05e-01",
        ),
        ({"distance": Distance(1.0, 1.0, 1.2), "element": 7.0}, "1.2 x its floor; its largest element 7 x"),
        ({"distance": Distance(1.0, 1.0, 1.2), "part": 8.0}, "1.2 x its floor; in one part of its rows 8 x"),
    ],
)
def test_a_first_divergence_is_placed_and_measured(changes: dict[str, object], words: str) -> None:
    found = sentence(replace(PARTS, **changes))  # type: ignore[arg-type]
    assert f"{KEY}: " in found
    assert words in found
    assert found.endswith("; noise_pred and latents are still within their floors")


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
