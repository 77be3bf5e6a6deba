"""Inputs that are the other side's, made otherwise, or that belong elsewhere; and arguments of one side alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from parity.causes.witness import witnesses
from parity.causes.witnesses.input_values import arguments_alone, input_values
from parity.compare.detect.held import bfloat16
from parity.golden import Key, Record
from parity.golden.records import PORT
from tests.support.made import evidence, tensor

TIMES = np.array([751.12, 600.9, 3.0])
SITE = ":in.timestep"


def told(ours: Sequence[Record], theirs: Sequence[Record], site: str = SITE) -> list[str]:
    origin = next((r.key for r in ours if r.key.site == site), Key("transformer", 0, "cond", site))
    return [cause.cause for cause in input_values(evidence(ours, theirs, origin=origin))]


def given(x: np.ndarray, site: str = SITE) -> Record:
    return tensor(site, np.asarray(x, np.float32))


@pytest.mark.parametrize(
    ("how", "other"),
    [
        ("rounded down to integers", np.floor(TIMES)),
        ("rounded to integers", np.round(TIMES)),
        ("rounded to bfloat16", bfloat16(TIMES)),
        ("divided by 1000", TIMES / 1000),
        ("subtracted from 1000", 1000 - TIMES),
    ],
)
def test_what_was_done_to_an_argument_is_named_on_either_side(how: str, other: np.ndarray) -> None:
    (text,) = told([given(TIMES)], [given(other)])
    assert text == f"the argument timestep of the model: the candidate's is the reference's {how}"
    (text,) = told([given(other)], [given(TIMES)])
    assert " is the " in text


def test_another_argument_is_not_named() -> None:
    assert told([given(TIMES)], [given(TIMES * 1.3)]) == []
    assert told([given(TIMES)], [given(np.zeros(3))]) == [], "zeros are the rounding of anything small"
    assert told([given(TIMES)], [given(np.append(TIMES, 1.0))]) == []
    assert told([given(np.round(TIMES))], [given(np.round(TIMES))]) == [], "equal values were not rounded"
    nan = np.array([np.nan, 1.0, 2.0])
    assert told([given(TIMES)], [given(nan)]) == []


def test_an_argument_that_is_the_reference_s_other_one_is_named() -> None:
    ours = [given(TIMES), given(TIMES * 0.5, "cross:in.timestep")]
    theirs = [given(TIMES), given(TIMES, "cross:in.timestep")]
    (text,) = told(ours, theirs, "cross:in.timestep")
    assert text == "the argument timestep of cross: the candidate's is what the reference has at :in.timestep"
    same = [given(np.ones(3)), given(2 * np.ones(3), "cross:in.timestep")]
    assert told(same, [given(np.ones(3)), given(np.ones(3), "cross:in.timestep")], "cross:in.timestep") == []


def test_an_argument_of_python_s_is_named_and_an_output_is_not() -> None:
    key = Key("transformer", 0, "cond", ":in.flag")
    ours, theirs = (Record(key, "scalar", dtype="bool", value=x) for x in (True, False))
    assert told([ours], [theirs], ":in.flag") == [
        "the argument flag of the model is False on the candidate, True on the reference"
    ]
    assert told([given(TIMES, "m:out")], [given(np.floor(TIMES), "m:out")], "m:out") == []


def test_an_argument_of_one_side_alone_is_said() -> None:
    flag = Record(Key("transformer", 0, "cond", ":in.use_cross_timestep"), "scalar", dtype="bool", value=True)
    (note,) = arguments_alone(evidence([flag], []))
    assert note.text == "only the reference's call of the model is given use_cross_timestep=True"
    assert list(arguments_alone(evidence([flag], [flag]))) == []


def test_what_a_port_hands_its_own_model_and_how_a_result_is_wrapped_say_nothing() -> None:
    """The reference is given a video's sizes too, bound to its forward, where no hook sees them."""
    frames, wrapped = (
        Record(Key("transformer", 0, "cond", f":in.{name}"), "scalar", dtype="int", value=2)
        for name in ("num_frames", "return_dict")
    )
    given = evidence([wrapped], [frames])
    assert [n.text for n in arguments_alone(given)] == ["only the candidate's call of the model is given num_frames=2"]
    assert list(arguments_alone(replace(given, declared=replace(given.declared, backend=PORT)))) == []


def test_they_are_asked() -> None:
    assert {"input_values", "arguments_alone"} <= {w.name for w in witnesses()}
