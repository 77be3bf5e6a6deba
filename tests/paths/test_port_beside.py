"""Modules beside a port's file: there for all of its code, the same ones, and nobody else's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

from parity.paths.port.calling import guarded
from parity.paths.port.load import Entry, load_entry

PORT = """
import helpers.shapes
from helpers import shapes as first

def build(case):
    import helpers.shapes as again
    from helpers import late  # not imported so far
    assert again is first
    return late.WHOSE, again
"""


def port(folder: Path, whose: str, text: str = PORT) -> Entry:
    (folder / "helpers").mkdir(parents=True)
    for name in ("__init__", "shapes", "late"):
        (folder / "helpers" / f"{name}.py").write_text(f"WHOSE = {whose!r}\n")
    (folder / "port.py").write_text(text)
    return load_entry("--candidate-path", f"{folder / 'port.py'}:build")


def called(entry: Entry) -> Any:
    with guarded(entry):
        return entry.function(cast(Any, None))


def test_a_module_that_is_imported_within_is_the_one_that_was_imported_before(tmp_path: Path) -> None:
    one, other = port(tmp_path / "one", "one"), port(tmp_path / "other", "other")
    for entry, whose in ((one, "one"), (other, "other"), (one, "one")):
        late, shapes = called(entry)
        assert (late, shapes.WHOSE) == (whose, whose)
    assert not [name for name in sys.modules if name.partition(".")[0] == "helpers"]
    assert str(tmp_path / "one") not in sys.path


def test_a_call_within_a_call_leaves_the_outer_one_its_modules(tmp_path: Path) -> None:
    entry = port(tmp_path / "one", "one")
    with entry.running():
        assert called(entry)[0] == "one"
        assert "helpers.shapes" in sys.modules


def test_an_environment_in_the_port_s_folder_is_no_part_of_it(tmp_path: Path) -> None:
    installed = tmp_path / ".venv" / "lib" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "installed_for_a_test.py").write_text("")
    text = f"import sys\nsys.path.append({str(installed)!r})\nimport installed_for_a_test\ndef build(case): pass\n"
    (tmp_path / "port.py").write_text(text)
    before = list(sys.path)
    try:
        load_entry("--candidate-path", f"{tmp_path / 'port.py'}:build")
        assert "installed_for_a_test" in sys.modules
    finally:
        sys.modules.pop("installed_for_a_test", None)
        sys.path[:] = before
