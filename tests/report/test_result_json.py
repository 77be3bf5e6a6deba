"""The JSON document is a contract: its keys, its numbers, its order."""

from __future__ import annotations

import json
from typing import Any

import pytest

from parity.compare.result import Result
from parity.report.formats.json import dumps
from parity.report.result_json import to_json
from tests.support.made import RESULT, RESULT_KEY, because

FAR = {"rel_l2": 6.7e-2, "floor": 1 / 3, "ratio": "inf"}


def document(result: Result = RESULT) -> dict[str, Any]:
    parsed = json.loads(dumps(to_json(result)))
    assert parsed == to_json(result)
    return dict(parsed)


def test_every_key_of_the_contract_is_there_in_order() -> None:
    assert list(document()) == [
        "format", "verdict", "failed", "reason", "model", "differing_settings", "preflight", "steps", "sites",
        "origin", "causes", "rounds", "stages", "frames", "closer", "notes",
    ]  # fmt: skip


def test_the_verdict_and_what_leads_to_it() -> None:
    found = document()
    assert (found["format"], found["verdict"], found["failed"]) == (1, "fail", "structure")
    assert (found["reason"], found["model"], found["notes"]) == ("attention parts first", "tiny", ["one", "two"])
    assert found["differing_settings"] == [{"setting": "attention.mask", "reference": "exact", "candidate": "none"}]
    assert found["preflight"] == [{"check": "weights", "verdict": "pass", "detail": "812 tensors"}]


def test_a_step() -> None:
    assert document()["steps"] == [
        {
            "step": 0, "timestep": 999.0, "sigma": 1.0, "dt": -0.1,
            "candidate": {"timestep": 1000.0, "sigma": 0.9, "dt": "nan"},
            "latents_before": FAR, "noise_pred": FAR, "branches": {"cond": FAR},
            "latents": {"rel_l2": 1.0, "floor": 2.0, "ratio": 0.5}, "bits": "nan", "bits_of": 0,
        }
    ]  # fmt: skip


def test_a_site() -> None:
    first, second = document()["sites"]
    assert first == {
        "stage": "transformer", "step": 0, "branch": "cond", "site": RESULT_KEY.site, "call": 1, **FAR,
        "local_rel_l2": "nan", "local_floor": "nan", "local_ratio": "nan",
        "cosine": 0.5, "max_abs": "-inf", "linf_ratio": "nan", "shapes": [[1, 2], [1, 3]],
        "dtypes": ["float32", "bfloat16"], "nonfinite": [0, 2], "birth": "module", "verdict": "fail",
        "note": "q, k, v agree", "bins": [1.0, "nan"],
    }  # fmt: skip
    assert (second["step"], second["birth"], second["floor"], second["verdict"]) == (-1, None, "nan", "pass")
    assert "bins" not in second  # of a site that passes nobody asks where in it the difference lies


def test_origin_and_causes() -> None:
    found = document()
    place = {"stage": "transformer", "step": 0, "branch": "cond", "site": RESULT_KEY.site, "call": 1}
    assert found["origin"] == {**place, "birth": "module"}
    assert found["causes"] == [
        {
            "cause": "mask", "setting": "attention.mask", "reference": "exact", "candidate": "none", "share": 0.98,
                "half": "nan", "alike": [],
            "witnesses": [{"kind": "gauge", "value": 64.0, "detail": "phantom keys"}],
        }
    ]  # fmt: skip


def test_an_empty_result_is_a_whole_document() -> None:
    found = document(Result("unjudged", None, because("nothing in common")))
    assert (found["verdict"], found["failed"], found["origin"], found["steps"]) == ("unjudged", None, None, [])


def test_it_is_strict_json_and_deterministic() -> None:
    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is no JSON number")

    json.loads(dumps(to_json(RESULT)), parse_constant=refuse)
    assert dumps(to_json(RESULT)) == dumps(to_json(RESULT))
    assert dumps(to_json(Result("pass", None, because("3 × 4 \u2028")))).isascii()


def test_each_item_of_a_list_has_a_line_of_its_own() -> None:
    held = [line for line in dumps(to_json(RESULT)).splitlines() if RESULT_KEY.site in line and '"cosine"' in line]
    assert [json.loads(line.rstrip(","))["site"] for line in held] == [RESULT_KEY.site]
