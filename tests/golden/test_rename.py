"""Rename rules: what they do, and which are refused, by number."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parity.errors import UsageError
from parity.golden.rename import Rename, Renamer, decode_rename, load_rename
from parity.records import StepRecords
from tests.support.made import none

Pairs = list[tuple[str, str]]


def rules(modules: Pairs, ports: Pairs | None = None) -> Rename:
    return decode_rename(dict([*modules, *(ports or ())]), "renames.json")


def sites(renamer: Renamer, *names: str) -> list[str]:
    return [record.key.site for record in renamer.step(StepRecords(0, tuple(map(none, names)))).records]


TB = (r"blocks\.(\d+)", r"tb.\1")


@pytest.mark.parametrize(
    ("modules", "ports", "renamed"),
    [
        # The first rule that matches the whole path decides.
        (
            [TB, (r"blocks\.(\d+)\.(?P<rest>.*)", r"x.\1.\g<rest>"), (r"blocks\..*", "never")],
            [],
            {"blocks.3:out": "tb.3:out", "blocks.3.attn:out": "x.3.attn:out", "xblocks.3:out": "xblocks.3:out"},
        ),
        # A group that took no part is empty; a backslash can be written.
        ([(r"a(\.b)?", r"x\1\\y")], [], {"a:out": "x\\y:out", "a.b:out": "x.b\\y:out"}),
        ([TB], [], {"blocks.1:out@image@padding": "tb.1:out@image@padding", "norm:in.x": "norm:in.x"}),
        ([(r"model\.(.*)", r"\1"), ("model", "")], [], {"model:out": ":out", "model.a:out": "a:out"}),
        # The loop's own values are never renamed.
        ([("(.*)", r"x.\1")], [(".*:sigma", "a:b")], {"loop:sigma": "loop:sigma"}),
        # Rules for ports work on the renamed site without its part.
        (
            [TB],
            [(r"(tb\.\d+):in\.x", r"\1:in.hidden_states")],
            {"blocks.0:in.x@image": "tb.0:in.hidden_states@image", "blocks.0:in.y": "tb.0:in.y", "o:in.x": "o:in.x"},
        ),
    ],
)
def test_sites_are_renamed(modules: Pairs, ports: Pairs, renamed: dict[str, str]) -> None:
    rename = rules(modules, ports)
    assert sites(Renamer(rename), *renamed) == list(renamed.values())
    assert decode_rename(json.loads(rename.dumps()), "renames.json") == rename


@pytest.mark.parametrize(
    ("modules", "ports", "names", "word"),
    [
        (
            [(r"b\.\d+", "a")],
            [],
            ["b.0:out", "b.1:out"],
            r"renames\.json: 'b\.0:out' and 'b\.1:out' would both be called 'a",
        ),
        ([("b", "a")], [], ["a:out", "b:out"], "'a:out'"),
        ([], [(r"a:in\..*", "a:in.x")], ["a:in.y", "a:in.z"], r"'a:in\.y' and 'a:in\.z' .*'a:in\.x'"),
    ],
)
def test_two_sites_of_one_name_are_refused(modules: Pairs, ports: Pairs, names: list[str], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        sites(Renamer(rules(modules, ports)), *names)


def test_rules_that_match_nothing_are_listed() -> None:
    renamer = Renamer(rules([("a", "b"), ("never", "c")], [("nor:this", "d:e")]))
    sites(renamer, "a:out")
    rule, port = renamer.unused()
    assert "the rule 'never'" in rule
    assert "the rule 'nor:this'" in port


@pytest.mark.parametrize(
    ("source", "target", "word"),
    [
        ("a(", "b", "unterminated"),
        ("(a)", r"\2", "invalid group reference 2"),
        ("(a)", r"\g<name>", "unknown group name"),
        ("a:in.x", "b", "its target 'b' is none"),
    ],
)
def test_a_bad_rule_is_refused_by_number(source: str, target: str, word: str, tmp_path: Path) -> None:
    file = tmp_path / "renames.json"
    file.write_text(json.dumps({"fine": "fine", source: target}))
    with pytest.raises(UsageError) as caught:
        load_rename(file)
    assert all(text in str(caught.value) for text in (str(file), "rule 2", word))


@pytest.mark.parametrize("content", ["[]", '{"a": 1}', "{", "\x00"])
def test_what_is_no_mapping_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "renames.json").write_text(content)
    with pytest.raises(UsageError, match=r"renames\.json"):
        load_rename(tmp_path / "renames.json")
