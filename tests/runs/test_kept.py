"""A run folder from elsewhere does not decide what is executed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from parity.errors import UsageError
from parity.paths.worker.openers import Openers
from parity.runs.kept import SEAL, is_own, ports_of, seal


class Never:
    """Openers that must not be asked."""

    def of(self, role: str) -> object:
        raise AssertionError(f"the port of the {role} was imported")


@pytest.fixture
def request_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    monkeypatch.setenv("PARITY_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "port.py"
    file.write_text("def build(case): ...\n")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    return {"candidate_path": f"{file}:build", "candidate_code": digest, "model": "tiny"}


def openers() -> Openers:
    return Never()  # type: ignore[return-value]


def test_a_port_of_a_run_from_elsewhere_must_be_named(request_of: dict[str, object]) -> None:
    for foreign in (request_of, {**request_of, SEAL: "0" * 64}, {**request_of, SEAL: 7}):
        with pytest.raises(UsageError, match="name it: --candidate-path"):
            ports_of(foreign, openers())
    with pytest.raises(AssertionError, match="imported"):  # named, it is; and so is that of an own run
        ports_of(request_of, openers(), {"candidate": str(request_of["candidate_path"])})
    with pytest.raises(AssertionError, match="imported"):
        ports_of({**request_of, SEAL: seal(request_of)}, openers())


def test_a_seal_is_of_every_word_and_of_one_user(
    request_of: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {**request_of, SEAL: seal(request_of)}
    assert is_own(own)
    assert not is_own({**own, "candidate_path": "/elsewhere/port.py:build"})
    monkeypatch.setenv("PARITY_CACHE", "/dev/null/no-folder")
    assert seal(request_of) == ""
    assert not is_own(own)
    assert not is_own({**own, SEAL: ""})
