"""`parity diff` as it is called: exit codes, files for CI; nothing that a file can hold is a traceback or a pass."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parity.commands.diff import diff
from parity.errors import ParityError
from parity.golden.disk.format import own_checksum
from tests.support.made import CANDIDATE, REFERENCE, pair, renamed, walk, write

FAR = 1e4
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def parity(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "parity.cli", "diff", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def call(reference: object, candidate: object = None, **options: Any) -> int:
    """The exit code, without a process."""
    try:
        return diff(reference=str(reference), candidate=None if candidate is None else str(candidate), **options)
    except ParityError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def test_a_terminal_is_told_of_details(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The places that follow from a fault are counted, and listed with --details."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    apart = pair(tmp_path / "apart", fault=FAR, steps=5)
    short, whole = parity(*apart).stdout, parity(*apart, "--details").stdout
    assert re.search(r"\+\d+ carried over: --details", short)
    assert "--details" not in whole
    later = re.compile(r"loop:noise_pred +step 4 cond")
    assert later.search(whole)
    assert not later.search(short)


def test_the_exit_codes_of_a_process(tmp_path: Path) -> None:
    same, apart = pair(tmp_path / "same"), pair(tmp_path / "apart", fault=FAR)
    passed = parity(*same)
    assert (passed.returncode, passed.stderr) == (0, "")
    assert passed.stdout.splitlines()[-2] == "verdict: pass: tiny"
    failed = parity(*apart)
    assert failed.returncode == 1
    assert "first divergence: step 1 cond blocks.1:out, introduced in the module" in failed.stdout
    other = write(tmp_path / "seed", replace(CANDIDATE, seed=8), [walk(0).steps()[1], walk(1).steps()[1]])
    unjudged = parity(same[0], other)
    assert unjudged.returncode == 125
    assert "reason: not comparable: seed: 7 against 8" in unjudged.stdout
    wrong = parity(same[0], tmp_path / "nowhere")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith(f"parity: {tmp_path}/nowhere: there is no golden here")


def test_json_is_one_document_and_nothing_else(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert call(*pair(tmp_path, fault=FAR), as_json=True) == 1
    out, err = capfd.readouterr()
    document = json.loads(out)
    assert err == ""
    assert (document["verdict"], document["failed"]) == ("fail", "structure")
    assert document["origin"]["site"] == "blocks.1:out"
    assert len(document["steps"]) == 2


def test_a_kept_run_is_diffed_by_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair(tmp_path / "run", fault=FAR)
    assert call(tmp_path / "run") == 1
    assert call(f"{tmp_path}/run/") == 1
    assert call(tmp_path) == 2
    assert "holds no reference/ and candidate/" in capsys.readouterr().err


def test_files_for_ci(tmp_path: Path) -> None:
    sides = pair(tmp_path, fault=FAR)
    junit, markdown = tmp_path / "ci" / "parity.xml", tmp_path / "ci" / "parity.md"
    assert call(*sides, junit=junit, markdown=markdown) == 1
    suite = ElementTree.parse(junit).getroot()[0]
    assert int(suite.get("failures") or 0) > 0
    failures = [case for case in suite if case.find("failure") is not None]
    assert {case.get("name") for case in failures} >= {"verdict", "blocks.1", "loop"}
    assert "blocks.0" not in {case.get("name") for case in failures}
    assert markdown.read_text(encoding="utf-8").startswith("## ❌ parity: fail (structure)\n")


def test_a_file_that_cannot_be_written_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sides = pair(tmp_path)
    for option in ("junit", "markdown"):
        assert call(*sides, **{option: tmp_path}) == 2
        assert f"--{option}: cannot write '{tmp_path}'" in capsys.readouterr().err


def other_names(folder: Path) -> tuple[str, str]:
    own = replace(CANDIDATE, weights={}, modules={})
    steps = [walk(step).steps() for step in (0, 1)]
    theirs = [renamed(b, lambda site: site.replace("blocks", "layers")) for _, b in steps]
    return write(folder / "a", REFERENCE, [a for a, _ in steps]), write(folder / "b", own, theirs)


def test_auto_saves_rules_that_work_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sides = other_names(tmp_path)
    rules = tmp_path / "renames.json"
    assert call(*sides) == 1, "what only one side has is a difference"
    assert call(*sides, rules="auto", map_out=rules) == 0
    capsys.readouterr()
    assert call(*sides, rules=str(rules)) == 0
    assert json.loads(rules.read_text())["rules"] == [{"from": r"layers\.(\d+)", "to": r"blocks.\g<1>"}]
    assert call(*sides, rules="auto") == 0
    assert capsys.readouterr().err == rules.read_text(), "without --map-out they are printed beside the result"


def test_wrong_usage_of_maps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sides = pair(tmp_path)
    bad = tmp_path / "bad.json"
    bad.write_text('{"format": 1, "rules": [{"from": "(a+)+", "to": "b"}]}')
    for options, said in (
        ({"map_out": tmp_path / "x"}, "--map-out saves what --map auto proposes"),
        ({"rules": str(bad)}, f"{bad}: rule 1: 'from' repeats a group"),
        ({"rules": str(tmp_path / "none.json")}, "--map: cannot read"),
    ):
        assert call(*sides, **options) == 2
        assert said in capsys.readouterr().err


def test_urls_are_read_part_by_part() -> None:
    pytest.importorskip("fsspec")
    steps = [walk(step).steps() for step in (0, 1)]
    reference = write("memory://diff/reference", REFERENCE, [a for a, _ in steps])
    candidate = write("memory://diff/candidate", CANDIDATE, [b for _, b in steps])
    assert call(reference, candidate) == 0
    assert call("memory://diff") == 0


# --- whatever a file holds -------------------------------------------------------------------------------------

QUIET = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
NAMES = ("golden.json", "step-0000.safetensors", "step-0001.safetensors")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    pair(folder / "run")
    assert call(folder / "run") == 0
    return folder / "run"


def broken(sound: Path, folder: Path, side: str, name: str, change: Callable[[bytes], bytes]) -> Path:
    """A copy of the run with one file changed."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sound, folder)
    file = folder / side / name
    content = change(file.read_bytes())
    file.write_bytes(content)
    return folder


@QUIET
@given(data=st.data())
def test_a_damaged_golden_is_exit_2(data: st.DataObject, sound: Path, tmp_path: Path) -> None:
    side = data.draw(st.sampled_from(["reference", "candidate"]))
    name = data.draw(st.sampled_from(NAMES))

    def change(content: bytes) -> bytes:
        at = data.draw(st.integers(0, len(content) - 1))
        if data.draw(st.booleans()):
            return content[:at]
        bit = 1 << data.draw(st.integers(0, 7))
        return content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :]

    run = broken(sound, tmp_path / "run", side, name, change)
    rules = data.draw(st.sampled_from([None, "auto"]))
    # A changed space of golden.json changes nothing that it says; anything else is found.
    said = json.loads((sound / side / "golden.json").read_bytes())
    try:
        harmless = name == "golden.json" and json.loads((run / side / name).read_bytes()) == said
    except ValueError:
        harmless = False
    assert call(run, rules=rules) == (0 if harmless else 2)


@QUIET
@given(data=st.data())
def test_a_forged_golden_is_never_a_traceback(data: st.DataObject, sound: Path, tmp_path: Path) -> None:
    """Any byte of a part changed, and every checksum made right again."""
    side = data.draw(st.sampled_from(["reference", "candidate"]))
    index = data.draw(st.integers(0, 1))

    def change(content: bytes) -> bytes:
        length = int.from_bytes(content[:8], "little")
        header = content[8 : 8 + length]
        if data.draw(st.booleans()):
            start = data.draw(st.integers(0, len(header) - 1))
            fill = data.draw(
                st.sampled_from([b"0", b"9", b"-1", b'"', b"nan", b"{", b"1e999", b"null", b"\\u0000", b""])
            )
            header = header[:start] + fill + header[start + data.draw(st.integers(0, 12)) :]
            return len(header).to_bytes(8, "little") + header + content[8 + length :]
        at = 8 + length + data.draw(st.integers(0, len(content) - length - 9))
        return content[:at] + data.draw(st.binary(min_size=1, max_size=8)) + content[at + 8 :]

    run = broken(sound, tmp_path / "run", side, NAMES[1 + index], change)
    content = (run / side / NAMES[1 + index]).read_bytes()
    manifest = run / side / "golden.json"
    document = json.loads(manifest.read_text())
    document["parts"][index] |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    document["sha256"] = own_checksum(document)
    manifest.write_text(json.dumps(document))
    files = {"junit": tmp_path / "x.xml", "markdown": tmp_path / "x.md"}
    assert call(run, as_json=data.draw(st.booleans()), **files) in (0, 1, 2, 125)


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3),
    st.sampled_from(["float32", "bfloat16", "0"]),
)  # fmt: skip


@QUIET
@given(data=st.data())
def test_a_forged_provenance_is_never_a_traceback(data: st.DataObject, sound: Path, tmp_path: Path) -> None:
    run = broken(sound, tmp_path / "run", "candidate", NAMES[0], lambda content: content)
    manifest = run / "candidate" / "golden.json"
    document = json.loads(manifest.read_text())
    provenance = document["provenance"]
    name = data.draw(st.sampled_from(sorted(provenance)))
    if isinstance(provenance[name], dict) and data.draw(st.booleans()):
        provenance[name][data.draw(st.sampled_from([*provenance[name], "new", "\x00|<"]))] = data.draw(VALUES)
    else:
        provenance[name] = data.draw(VALUES)
    document["sha256"] = own_checksum(document)
    manifest.write_text(json.dumps(document))
    files = {"junit": tmp_path / "x.xml", "markdown": tmp_path / "x.md"}
    code = call(run, rules=data.draw(st.sampled_from([None, "auto"])), **files)
    assert code in (0, 2, 125), "the records agree: nothing can have diverged"
    ElementTree.parse(files["junit"]) if code != 2 else None


def test_what_to_type_next_is_a_command_of_what_was_given(tmp_path: Path) -> None:
    """Two goldens are explained as such; a folder of `run --out` by its own name."""
    reference, candidate = pair(tmp_path / "my run", fault=FAR)
    assert (Path(reference).name, Path(candidate).name) == ("reference", "candidate")
    run = Path(reference).parent
    both = f"'{reference}' '{candidate}'"
    told = [f"next: parity explain {both}   # why", f"next: parity diff {both} --format html > diff.html   # the page"]
    assert parity(reference, candidate).stdout.splitlines()[-2:] == told
    assert parity(run).stdout.splitlines()[-2:] == told  # goldens beside each other are no kept run
    (run / "result.json").write_text("{}")
    kept = [f"next: parity explain '{run}'   # why", f"next: parity report '{run}'   # the page"]
    assert parity(run).stdout.splitlines()[-2:] == kept
