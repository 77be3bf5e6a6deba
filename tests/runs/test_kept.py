"""A kept run does not decide which port is executed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from msgspec.structs import replace

from parity.errors import UsageError
from parity.runs.request import ports_of
from tests.runs.test_spec import PLAIN


class Never:
    """Openers that must not be asked."""

    def of(self, role: str) -> object:
        raise AssertionError(f"the port of the {role} was imported")


@pytest.mark.parametrize(
    ("named", "error", "message"),
    [
        (None, UsageError, "created with a port; name it again: --port .*port.py:build"),
        ("port.py:build", AssertionError, "the port of the candidate was imported"),
        ("other.py:build", UsageError, "is not the port that was run"),
    ],
)
def test_a_port_of_a_kept_run_is_imported_if_named_and_unchanged(
    named: str | None, error: type[Exception], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "port.py"
    file.write_text("def build(case): ...\n")
    (tmp_path / "other.py").write_text("def build(case): return 1\n")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    spec = replace(PLAIN, port=f"{file}:build", port_code=digest, model="tiny")
    path = None if named is None else f"{tmp_path}/{named}"
    with pytest.raises(error, match=message):
        ports_of(spec, Never(), {"candidate": path})  # type: ignore[arg-type]
