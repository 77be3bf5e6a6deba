"""The comparer can fail: each promise of `tests/snapshots/compare.py` on made documents, kept and broken."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.snapshots.catalogue import Command
from tests.snapshots.compare import differences
from tests.snapshots.faults import compare_rows
from tests.snapshots.snapshot import Json, Snapshot
from tests.snapshots.tolerance import OTHER, SAME, Tolerance, texts_agree
from tests.snapshots.words import Reworded, numbers, template

DOCUMENT = {
    "verdict": "fail",
    "failed": "structure",
    "reason": "the paths part at step 0 blocks.0:out (relative L2 4.05e-01, 64384 x its floor)",
    "differing_settings": [{"setting": "attention.mask", "reference": "exact", "candidate": "none"}],
    "preflight": [{"check": "weights", "verdict": "pass", "detail": "201 parameters equal"}],
    "steps": [
        {"step": 0, "noise_pred": {"rel_l2": 0.4, "floor": 3e-5, "ratio": 13333.0}, "bits": 1.2, "bits_of": 24},
        {"step": 1, "noise_pred": {"rel_l2": 1e-6, "floor": 3e-5, "ratio": 0.033}, "bits": 18.0, "bits_of": 24},
    ],
    "sites": [
        {
            "at": "transformer 0 cond",
            "rows": [
                "blocks.0:in.x | pass - | 1.0e-07 / 3.0e-07",
                "blocks.0:out | fail module | 4.0e-01 / 6.3e-06 | 4.0e-01 / 1.3e-07",
                "blocks.1:out | pass - | 2.0e-05 / 7.0e-06 |  | shape 2x3 -> 3x2",
            ],
        }
    ],
    "inputs": "74be498933158f77",
    "origin": {"site": "blocks.0:out", "birth": "module"},
    "causes": [{"cause": "the mask", "setting": "attention.mask", "share": 0.98, "witnesses": []}],
}
SNAPSHOT = Snapshot(
    command="run",
    code=1,
    json_code=1,
    terminal=["verdict: fail", "step 0: rel L2 4.05e-01; ratio 1.3e+04x", "sites: 60 more", "took 1.2 s"],
    stderr=[],
    document=DOCUMENT,
)


def changed(change: Callable[[Json], object]) -> Snapshot:
    """The snapshot with an edit of its fields, as one dictionary."""
    fields = {name: copy.deepcopy(getattr(SNAPSHOT, name)) for name in Snapshot.__slots__}
    change(fields)
    return Snapshot(**fields)


def site(number: int, text: str) -> Callable[[Json], object]:
    return lambda s: s["document"]["sites"][0]["rows"].__setitem__(number, text)


def put(value: object, *path: str | int) -> Callable[[Json], object]:
    """Sets what stands at a path of the document."""

    def change(fields: Json) -> None:
        at = fields["document"]
        for name in path[:-1]:
            at = at[name]
        at[path[-1]] = value

    return change


STRUCTURE = {
    "exit code": lambda s: s.update(code=0),
    "document.verdict": put("pass", "verdict"),
    "document.failed": put(None, "failed"),
    "document.reason": put(DOCUMENT["reason"].replace("part", "differ"), "reason"),
    "differing_settings[0].setting": put("rope", "differing_settings", 0, "setting"),
    "preflight[0].verdict": put("fail", "preflight", 0, "verdict"),
    "parameters": put("200 parameters equal", "preflight", 0, "detail"),
    "document.preflight: 1 items -> 0": put([], "preflight"),
    "document.origin.birth": put("input", "origin", "birth"),
    "document.causes[0].setting": put(None, "causes", 0, "setting"),
    "keys gone ['failed']": lambda s: s["document"].pop("failed"),
    "another order": lambda s: s.update(document=dict(reversed(s["document"].items()))),
    "document.sites: gone: transformer 0 cond blocks.1:out": lambda s: s["document"]["sites"][0]["rows"].pop(),
    "sites in another order": lambda s: s["document"]["sites"][0]["rows"].reverse(),
    "fail module -> fail amplified": site(1, "blocks.0:out | fail amplified | 4.0e-01 / 6.3e-06 | 4.0e-01 / 1.3e-07"),
    "local 4.0e-01 -> nan": site(1, "blocks.0:out | fail module | 4.0e-01 / 6.3e-06"),
    "shape 2x3": site(2, "blocks.1:out | pass - | 2.0e-05 / 7.0e-06"),
    "terminal - verdict: fail": lambda s: s["terminal"].pop(0),
    "terminal: 'sites: 60 more'": lambda s: s["terminal"].__setitem__(2, "sites: 61 more"),
    "stderr + parity: no": lambda s: s["stderr"].append("parity: no"),
}


@pytest.mark.parametrize("tolerance", [SAME, OTHER], ids=["same", "other"])
@pytest.mark.parametrize("said", STRUCTURE)
def test_structure_is_exact_on_every_machine(said: str, tolerance: Tolerance) -> None:
    found = differences(SNAPSHOT, changed(STRUCTURE[said]), tolerance)
    assert any(said in line for line in found), found


def test_nothing_differs_from_itself() -> None:
    assert differences(SNAPSHOT, SNAPSHOT, SAME) == []


NUMBERS = {
    "a rounding under its floor": (put({"rel_l2": 2e-5, "floor": 3e-5, "ratio": 0.7}, "steps", 1, "noise_pred"), ()),
    "times": (lambda s: s["terminal"].__setitem__(3, "took 100 s"), ()),
    "a number that the document has": (lambda s: s["terminal"].__setitem__(1, "step 0: rel L2 5e-01; ratio 9x"), ()),
    "a floor of other seeds": (put({"rel_l2": 0.4, "floor": 9e-5, "ratio": 1}, "steps", 0, "noise_pred"), ("same",)),
    "a floor ten times as large": (
        put({"rel_l2": 0.4, "floor": 3e-4, "ratio": 1}, "steps", 0, "noise_pred"),
        ("same", "other"),
    ),
    "a difference twice as large": (
        put({"rel_l2": 0.8, "floor": 3e-5, "ratio": 26666}, "steps", 0, "noise_pred"),
        ("same", "other"),
    ),
    "a difference that became a rounding": (
        put({"rel_l2": 1e-6, "floor": 3e-5, "ratio": 0.03}, "steps", 0, "noise_pred"),
        ("same", "other"),
    ),
    "a difference that became NaN": (
        put({"rel_l2": "nan", "floor": 3e-5, "ratio": "nan"}, "steps", 0, "noise_pred"),
        ("same", "other"),
    ),
    "a verdict at its limit": (site(2, "blocks.1:out | fail - | 2.2e-05 / 7.0e-06 |  | shape 2x3 -> 3x2"), ("same",)),
    "a share": (put(0.9, "causes", 0, "share"), ("same",)),
    "a fingerprint": (put("74be498933158f78", "inputs"), ("same",)),
    "half the share": (put(0.5, "causes", 0, "share"), ("same", "other")),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_have_the_tolerance_of_the_machine(name: str) -> None:
    change, flagged = NUMBERS[name]
    new = changed(change)
    assert ("same" in flagged, "other" in flagged) == tuple(bool(differences(SNAPSHOT, new, t)) for t in (SAME, OTHER))


def test_a_wording_changed_on_purpose_is_entered_and_nothing_else_passes() -> None:
    new = changed(put("first divergence: blocks.0:out at step 0 (4.05e-01, 64,384x the floor)", "reason"))
    pattern = re.compile(r"the paths part at step (\d+) (\S+) \(relative L2 (\S+), (\d+) x its floor\)")
    rule = Reworded(pattern, r"first divergence: \2 at step \1 (\3, \4x the floor)")
    assert differences(SNAPSHOT, new, SAME)
    assert differences(SNAPSHOT, new, SAME, (rule,)) == []
    assert differences(SNAPSHOT, SNAPSHOT, SAME, (rule,))


@pytest.mark.parametrize(
    ("text", "masked", "found"),
    [
        ("transformer_blocks.0.attn 1x184x4 fp64", "transformer_blocks.0.attn 1x184x4 fp64", []),
        ("step 0 agrees in 18.4 of 24 bits", "step # agrees in # of # bits", ["0", "18.4", "24"]),
        ("64,384x, 977 x, 98%: -1.0e+04x", "#x, # x, #%: #x", ["64,384x", "977x", "98%", "-1.0e+04x"]),
        ("0.5 s, 3.1 MB, 74be498933158f77", "<machine> s, <machine> MB, <hash>", []),
        ("6.6/24; bits.", "#/24; bits.", ["6.6"]),
    ],
)
def test_templates(text: str, masked: str, found: list[str]) -> None:
    assert template(text) == masked
    assert numbers(text) == found


@pytest.mark.parametrize(
    ("old", "new", "agree"),
    [
        ("2.1e-07", "9.0e-06", True),
        ("4.05e-01", "4.06e-01", True),
        ("4.05e-01", "8.1e-01", False),
        ("0.1x", "2.9x", True),
        ("64384x", "64,400x", True),
        ("64384x", "1.0x", False),
        ("98%", "97%", True),
        ("98%", "50%", False),
        ("106", "107", False),
        ("12x", "12%", False),
    ],
)
def test_numbers_of_sentences(old: str, new: str, agree: bool) -> None:
    assert texts_agree(old, new, SAME) == agree


def test_a_snapshot_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(SNAPSHOT.dumps())
    assert Snapshot.load("run", tmp_path) == SNAPSHOT


def test_a_fault_that_passes_now_is_worse_and_one_at_another_place_is_named() -> None:
    row = {"verdict": "fail", "origin": "a:out", "birth": "module"}
    old = {"f/x": row, "f/y": row, "f/z": row}
    new = {"f/x": {**row, "verdict": "pass"}, "f/y": {**row, "origin": "b:out"}}
    assert compare_rows(old, new) == [
        "f/x: WORSE: fail -> pass",
        "f/y: elsewhere: a:out module -> b:out module",
        "f/z: not run",
    ]
    assert compare_rows(old, old) == []


def test_a_command_line_is_split_as_a_shell_does() -> None:
    assert Command(name="x", line="record d --values 'a.?:in'").argv == ["record", "d", "--values", "a.?:in"]
