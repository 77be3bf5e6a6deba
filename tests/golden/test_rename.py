"""Rename rules: what they do, and which are refused, by name."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parity.errors import UsageError
from parity.golden import Key, StepRecords
from parity.golden.patterns import MAX_OPEN
from parity.golden.rename import MAX_PATH, Rename, Renamer, decode_rename, load_rename
from parity.golden.strict import MalformedError
from tests.support.made import none


def rules(*pairs: tuple[str, str], ports: tuple[tuple[str, str], ...] = ()) -> Rename:
    document: dict[str, Any] = {"format": 1, "rules": [{"from": a, "to": b} for a, b in pairs]}
    if ports:
        document["ports"] = [{"from": a, "to": b} for a, b in ports]
    return decode_rename(document, "renames.json")


def sites(renamer: Renamer, *names: str) -> list[str]:
    step = StepRecords(0, tuple(none(name) for name in names))
    return [record.key.site for record in renamer.step(step).records]


def test_the_first_rule_that_matches_the_whole_path_decides() -> None:
    rename = rules((r"blocks\.(\d+)", r"transformer_blocks.\1"), (r"blocks\.(\d+)\.(?P<rest>.*)", r"tb.\1.\g<rest>"),
                   (r"blocks\..*", "never"))  # fmt: skip
    found = [rename.module(m) for m in ("blocks.3", "blocks.3.attn", "blocks", "xblocks.3")]
    assert found == ["transformer_blocks.3", "tb.3.attn", "blocks", "xblocks.3"]


def test_a_group_that_took_no_part_is_empty_and_a_backslash_can_be_written() -> None:
    rename = rules((r"a(\.b)?", r"x\1\\y"))
    assert rename.module("a") == "x\\y"
    assert rename.module("a.b") == "x.b\\y"


def test_sites_keep_their_port_step_branch_and_call() -> None:
    renamer = Renamer(rules((r"blocks\.(\d+)", r"tb.\1")))
    assert sites(renamer, "blocks.1:out@image@padding", "norm:in.x") == ["tb.1:out@image@padding", "norm:in.x"]
    assert renamer.key(Key("t", 3, "cond", "blocks.0:out", 2)) == Key("t", 3, "cond", "tb.0:out", 2)


def test_the_top_module_can_lose_its_wrapper() -> None:
    assert sites(Renamer(rules((r"model\.(.*)", r"\1"), ("model", ""))), "model:out", "model.a:out") == [
        ":out",
        "a:out",
    ]


def test_the_loops_own_values_are_never_renamed() -> None:
    assert sites(Renamer(rules(("(.*)", r"x.\1"), ports=((".*:sigma", "a:b"),))), "loop:sigma") == ["loop:sigma"]


def test_port_rules_work_on_the_renamed_site_without_its_part() -> None:
    rename = rules((r"blocks\.(\d+)", r"tb.\1"), ports=((r"(tb\.\d+):in\.x", r"\1:in.hidden_states"),))
    found = sites(Renamer(rename), "blocks.0:in.x@image", "blocks.0:in.y", "other:in.x")
    assert found == ["tb.0:in.hidden_states@image", "tb.0:in.y", "other:in.x"]


def test_two_modules_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match=r"renames\.json: rule 1 renames 'b\.1' to 'a', which 'b\.0' is called too"):
        sites(Renamer(rules((r"b\.\d+", "a"))), "b.0:out", "b.1:out")
    with pytest.raises(UsageError, match="which 'a' is called too"):
        sites(Renamer(rules(("b", "a"))), "a:out", "b:out")


def test_two_sites_of_one_name_are_refused() -> None:
    rename = rules(ports=((r"a:in\..*", "a:in.x"),))
    with pytest.raises(UsageError, match=r"'a:in\.y' and 'a:in\.z' are both renamed to 'a:in\.x'"):
        sites(Renamer(rename), "a:in.y", "a:in.z")
    with pytest.raises(UsageError, match="port rule 1 makes 'a', which is no module:port"):
        sites(Renamer(rules(ports=(("a:out", "a"),))), "a:out")


def test_a_rule_that_matches_nothing_is_said() -> None:
    renamer = Renamer(rules(("a", "b"), ("never", "c"), ports=(("nor:this", "d:e"),)))
    sites(renamer, "a:out")
    assert [note.partition("renames.json: ")[2] for note in renamer.unused()] == [
        "rule 2 ('never') matches nothing",
        "port rule 1 ('nor:this') matches nothing",
    ]


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"from": "a"}, "rule 1 has no 'to'"),
        ({"from": "a", "to": "b", "flags": "i"}, "rule 1 has 'flags'"),
        ({"from": 1, "to": "b"}, "rule 1: 'from' should be a string"),
        ({"from": "a(", "to": "b"}, "rule 1: 'from' is no regular expression"),
        ({"from": "[a", "to": "b"}, "rule 1: 'from' is no regular expression"),
        ({"from": "a{99999999999999999999}", "to": "b"}, "rule 1: 'from' is no regular expression"),
        ({"from": "(a)", "to": r"\2"}, "rule 1: 'to' asks for group 2"),
        ({"from": "(a)", "to": r"\g<name>"}, "rule 1: 'to' asks for group name"),
        ({"from": "(a)", "to": r"\w"}, "rule 1: 'to' may hold"),
        ({"from": "a" * 501, "to": "b"}, "rule 1: 'from' has 501 characters, more than 500"),
        ({"from": r"(a)\1", "to": "b"}, "rule 1: 'from' refers back to a group"),
        ({"from": "(?P<x>a)(?P=x)", "to": "b"}, "rule 1: 'from' may hold"),
        ({"from": "(?=a)b", "to": "b"}, "rule 1: 'from' may hold"),
        ({"from": "(?i)b", "to": "b"}, "rule 1: 'from' may hold"),
        ({"from": "(a+)+b", "to": "b"}, "rule 1: 'from' repeats a group"),
        ({"from": "((a{2,}b))*c", "to": "b"}, "rule 1: 'from' repeats a group"),
        ({"from": "(?:a|a)*b", "to": "b"}, "rule 1: 'from' repeats a group"),
        ({"from": "(a?b?){40}c", "to": "b"}, "rule 1: 'from' repeats a group"),
        ({"from": "a?" * 9 + "b", "to": "b"}, "rule 1: 'from' has 9 choices"),
        ({"from": "(a|a)" * 9 + "b", "to": "b"}, "rule 1: 'from' has 9 choices"),
        ({"from": ".*.*.*.*.*x", "to": "b"}, "rule 1: 'from' has 5 open repetitions"),
    ],
)
def test_a_bad_rule_is_refused_by_number(rule: dict[str, Any], said: str, tmp_path: Path) -> None:
    file = tmp_path / "renames.json"
    file.write_text(json.dumps({"format": 1, "rules": [{"from": "fine", "to": "fine"}, rule]}))
    with pytest.raises(UsageError) as caught:
        load_rename(file)
    assert str(file) in str(caught.value)
    assert said.replace("rule 1", "rule 2") in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [r"blocks\.(\d+)\.(.*)", r"(?:model\.)?(.*)", r"[^\]]+", r"[]a]*", r"(a|b)c", r"(a|b)?c", r"a{2}", r"x{",
     r"\(\d+\)\*+", r"(?P<name>\w+)\.x", r"((a)(b)){3}", r"\\(\w*)"],
)  # fmt: skip
def test_ordinary_patterns_are_taken(source: str) -> None:
    assert rules((source, "x")).modules[0].pattern.pattern == source


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not JSON"),
        (b"[]", "is not a JSON object"),
        (b'{"format": 1}', "has no 'rules'"),
        (b'{"format": 2, "rules": []}', "the format is 2"),
        (b'{"format": 1, "rules": {}}', "the list of rules should be a list"),
        (b'{"format": 1, "rules": [], "port": []}', "'port'"),
        (b'{"format": 1, "rules": []}' + b" " * (1 << 20), "it has more than"),
        (b"\xff\x00", "is not JSON"),
    ],
)
def test_a_bad_file_is_refused(content: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / "renames.json"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=said):
        load_rename(file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(UsageError, match="cannot read"):
            load_rename(path)


def test_rules_survive_being_saved() -> None:
    rename = rules((r"b\.(\d+)", r"tb.\1"), ports=((r"a:in\.x", "a:in.y"),))
    assert decode_rename(json.loads(rename.dumps()), "renames.json") == rename


@given(st.text(alphabet=r"ab.*+?()[]{}|\1,d^$-:P<>=", max_size=24), st.text("ab.", max_size=MAX_PATH))
def test_whatever_is_taken_matches_soon(source: str, path: str) -> None:
    try:
        rename = rules((source, "x"))
    except MalformedError:
        return
    start = time.perf_counter()
    rename.module(path)
    assert time.perf_counter() - start < 5


def test_the_worst_pattern_that_is_taken_ends() -> None:
    rename = rules((".*" * MAX_OPEN + "x", "y"))
    start = time.perf_counter()
    assert rename.module("a" * MAX_PATH) == "a" * MAX_PATH
    assert rename.module("a" * (MAX_PATH + 1)) == "a" * (MAX_PATH + 1), "longer paths are left alone"
    assert time.perf_counter() - start < 30
