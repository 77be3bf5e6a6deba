"""The schemas: those of the types, what the commands write is of them, and no command writes what has none."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer.main
from typer.testing import CliRunner

from benchmarks.schemas import FOLDER, made
from parity.cli import app
from parity.commands.parts.keep import KeepRun
from parity.errors import UsageError
from parity.golden import Golden
from parity.golden.disk.format import decode_manifest, own_checksum
from parity.golden.facts import Facts
from parity.golden.rename import Rename, decode_rename
from parity.golden.strict import MalformedError
from parity.paths.side import Pair
from parity.report.documents.schema import DOCUMENTS, schema
from parity.runs.request import Request
from parity.settings import parse
from tests.compare.make_goldens import pair
from tests.schemas import wrong


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_schema_is_that_of_its_type(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(schema(name)))
    assert schema(name) == made(name, DOCUMENTS[name]), "make schemas"
    assert {file.stem for file in FOLDER.iterdir()} == set(DOCUMENTS)


@pytest.mark.parametrize("arguments", [["models"], ["doctor"], ["cache"]])
def test_what_a_command_writes_here(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert wrong(arguments[0], json.loads(done.stdout)) == []


def test_documents_of_goldens(tmp_path: Path) -> None:
    reference, candidate = pair(tmp_path, fault=9.0)
    inspected = CliRunner().invoke(app, ["inspect", reference, "--verify", "--step", "1", "--json"])
    assert wrong("inspect", json.loads(inspected.stdout)) == []
    told = json.loads(CliRunner().invoke(app, ["diff", reference, candidate, "--json"]).stdout)
    assert told["origin"] is not None
    assert wrong("diff", told) == []
    assert wrong("golden.json", _manifest(reference)) == []


def test_the_schema_of_a_golden_refuses_what_its_reader_refuses(tmp_path: Path) -> None:
    """Each name taken away, and each value of another type; names that have defaults may be missing in both."""
    whole = _manifest(pair(tmp_path)[0])
    for place in ((), ("provenance",), ("parts", 0)):
        for name in _at(whole, place):
            for damage in ("missing", "another"):
                document = copy.deepcopy(whole)
                entry = _at(document, place)
                if damage == "missing":
                    del entry[name]
                else:
                    entry[name] = {"odd": [None]}
                assert bool(wrong("golden", document)) == _refused(document), (place, name, damage)


def _manifest(where: str) -> dict[str, Any]:
    return dict(json.loads((Path(where) / "golden.json").read_text("utf-8")))


def _at(document: Any, place: tuple[Any, ...]) -> Any:
    for step in place:
        document = document[step]
    return document


def _refused(document: dict[str, Any]) -> bool:
    if isinstance(document.get("sha256"), str):
        document = {**document, "sha256": own_checksum(document)}
    try:
        decode_manifest(json.dumps(document).encode(), "golden.json")
    except UsageError:
        return True
    return False


def test_request_of_a_kept_run(tmp_path: Path) -> None:
    kept = KeepRun(tmp_path / "run", Request("tiny", parse("torch", []), parse("torchax", [])))
    reference, candidate = (Facts({}, {}, {}, {}, provenance=Golden.open(where).provenance) for where in pair(tmp_path))
    kept.begin(Pair(reference, candidate), "structure")
    assert wrong("request.json", json.loads((tmp_path / "run" / "request.json").read_text("utf-8"))) == []


def test_renames() -> None:
    rules = {"format": 1, "rules": [{"from": "a", "to": "b"}], "ports": [{"from": "in", "to": "out"}]}
    assert isinstance(decode_rename(rules), Rename)
    assert wrong("rename", decode_rename(rules).document()) == []
    with pytest.raises(MalformedError):
        decode_rename({**rules, "format": 2})
    assert wrong("rename", {**rules, "format": 2}) != []


def test_every_command_that_writes_json_has_a_schema() -> None:
    group = typer.main.get_command(app)
    commands = dict(group.commands)  # type: ignore[attr-defined]
    searches = commands.pop("bisect").commands
    commands |= {f"bisect-{name}": command for name, command in searches.items()}
    writing = [name for name, command in commands.items() if any("--json" in p.opts for p in command.params)]
    assert len(writing) > 10
    for name in writing:
        assert json.loads(schema(name))["title"].startswith("parity: ")


def test_help_schema() -> None:
    listed = CliRunner().invoke(app, ["help", "schema"]).stdout
    assert all(f"document {name}: " in listed for name in DOCUMENTS)
    printed = CliRunner().invoke(app, ["help", "schema", "result.json"])
    assert (printed.exit_code, printed.stdout) == (0, schema("comparison"))
    for arguments in (["schema", "nothing"], ["run", "extra"]):
        done = CliRunner().invoke(app, ["help", *arguments])
        assert (done.exit_code, "parity help schema" in done.stderr) == (2, True)
