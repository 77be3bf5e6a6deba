"""`parity diff` as it is called: exit codes, documents, files for CI, renames."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import parity
from parity.errors import UsageError
from tests.support.cli import cli
from tests.support.made import CANDIDATE, REFERENCE, pair, renamed, walk, write

FAR = 1e4


@pytest.mark.parametrize("github", [False, True])
def test_the_exit_codes(github: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true" if github else "")
    same, apart = pair(tmp_path / "same"), pair(tmp_path / "apart", fault=FAR)
    other = write(tmp_path / "seed", replace(CANDIDATE, seed=8), [walk(0).steps()[1], walk(1).steps()[1]])
    first = "first divergence: blocks.1 output (step 1, cond): inputs match, output differs"
    not_comparable = "not comparable: seed: 7 against 8"
    for sides, code, said, annotated in (
        (same, 0, "verdict: pass: tiny", ""),
        (apart, 1, first, f"::error title=parity%3A fail (logic)::{first}"),
        ((same[0], other), 125, f"reason: {not_comparable}", f"::error title=parity%3A inconclusive::{not_comparable}"),
        ((same[0], tmp_path), 2, "", f"::error title=parity%3A error::{tmp_path}: there is no golden here"),
        ((same[0], "port.py"), 2, "", "::error title=parity%3A error::'port.py' is a file"),
    ):
        ran = cli("diff", *sides, code=code)
        assert said in ran.out
        lines = [line for line in ran.err.splitlines() if code != 2 or line.startswith("::")]
        assert [line[: len(annotated)] for line in lines] == [annotated] * (github and code > 0)


@pytest.mark.parametrize(
    ("function", "arguments", "options", "said"),
    [
        (parity.diff, [None], {}, "parity.diff: reference takes str, found None"),
        (parity.diff, ["a"], {"steps": "2"}, "parity.diff: steps takes int, found '2'"),
        (parity.diff, ["a"], {"steps": -1}, "--steps -1: a holds 2 steps of the loop"),
        (parity.diff, ["a"], {"candidate": "port.py:build"}, "port.py:build: this is code and no golden"),
        (parity.run, [5], {}, "parity.run: model takes str, found 5"),
        (parity.run, [], {"values": "a"}, "parity.run: values takes Sequence[str], found 'a'"),
        (parity.run, [], {"reference": {"jit": None}}, "parity.run: reference takes Mapping[str, str"),
        (parity.run, [], {"isolate": "x"}, "parity.run: isolate takes none, steps, found 'x'"),
        (parity.explain, ["a"], {"port": 3}, "parity.explain: port takes str, found 3"),
    ],
)
def test_wrong_arguments_in_python(
    function: Callable[..., object], arguments: list[object], options: dict[str, object], said: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    reference, candidate = pair(tmp_path)
    Path(reference).rename(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    own = {"candidate": candidate} if function is parity.diff else {}
    with pytest.raises(UsageError, match=re.escape(said)):
        function(*arguments, **own | options)
    assert parity.diff(Path("a"), candidate, steps=np.int64(1)).passed


def test_what_comes_next_is_a_command(tmp_path: Path) -> None:
    sides = pair(tmp_path / "my run", fault=FAR)
    both = " ".join(f"'{side}'" for side in sides)
    assert f"next: parity explain {both} " in cli("diff", *sides, code=1).out


def test_files_for_ci(tmp_path: Path) -> None:
    junit, markdown = tmp_path / "ci" / "parity.xml", tmp_path / "ci" / "parity.md"
    cli("diff", *pair(tmp_path, fault=FAR), "--junit", junit, "--markdown", markdown, code=1)
    cases = list(ElementTree.parse(junit).getroot().iter("testcase"))
    failed = {case.get("name") for case in cases if case.find("failure") is not None}
    assert failed >= {"verdict", "blocks.1", "loop"}
    assert "blocks.0" not in failed
    assert markdown.read_text(encoding="utf-8").startswith("## ❌ parity: fail (logic)\n")


def test_names_are_proposed_saved_and_used(tmp_path: Path) -> None:
    steps = [walk(step).steps() for step in (0, 1)]
    theirs = [renamed(b, lambda site: site.replace("blocks", "layers")) for _, b in steps]
    own = replace(CANDIDATE, weights={}, modules={})
    sides = write(tmp_path / "a", REFERENCE, [a for a, _ in steps]), write(tmp_path / "b", own, theirs)
    rules = tmp_path / "renames.json"
    cli("diff", *sides, code=1)
    cli("diff", *sides, "--map", "auto", "--map-out", rules, code=0)
    assert json.loads(rules.read_text()) == {r"layers\.(\d+)": r"blocks.\g<1>"}
    cli("diff", *sides, "--map", rules, code=0)
    assert cli("diff", *sides, "--map", "auto", code=0).err == rules.read_text()
    rules.write_text('{"a(": "b"}')
    assert "rule 1, 'a(' -> 'b'" in cli("diff", *sides, "--map", rules, code=2).err


def test_urls_are_read() -> None:
    pytest.importorskip("fsspec")
    steps = [walk(step).steps() for step in (0, 1)]
    sides = (
        write("memory://diff/reference", REFERENCE, [a for a, _ in steps]),
        write("memory://diff/candidate", CANDIDATE, [b for _, b in steps]),
    )
    cli("diff", *sides, code=0)


def test_what_to_type_next_takes_a_name_with_a_dash_for_a_place(tmp_path: Path) -> None:
    for golden, name in zip(pair(tmp_path / "goldens", fault=1e4), ("-r", "-c"), strict=True):
        Path(golden).rename(tmp_path / name)
    following = cli("diff", "--format", "json", "--", "-r", "-c", cwd=tmp_path, code=1).json["next"]
    assert following == ["parity explain ./-r ./-c", "parity diff --format html ./-r ./-c > diff.html"]
