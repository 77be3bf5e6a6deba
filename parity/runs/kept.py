"""What a kept run was asked for, read back: its ports are imported only where their files are still those that ran.

A run folder may come from somebody else, and its request names a Python file and that file's digest: both are then
somebody else's choice. So a request is sealed with a key of this user's (`seal`), and of one that is not, only ports
that are named on the command line too are imported.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from parity.cache import cache_dir
from parity.errors import UsageError
from parity.files import read_bytes
from parity.paths.plan import Role
from parity.paths.port.settings import PortInfo
from parity.paths.worker.openers import Openers
from parity.runs.request import Ports

MOST_BYTES = 1 << 26
"""Of a port's file."""
TIMEOUT = 60.0
"""Seconds that importing a port's file may take."""


SEAL = "seal"
"""Name of the seal in request.json."""
_KEY = "run-key"
_KEY_BYTES = 32


def seal(document: Mapping[str, object]) -> str:
    """The seal of a request: what only this user could have written; empty where no key can be kept."""
    key = _key()
    rest = {name: value for name, value in document.items() if name != SEAL}
    return hmac.new(key, json.dumps(rest, sort_keys=True).encode(), "sha256").hexdigest() if key else ""


def is_own(document: Mapping[str, object]) -> bool:
    """Whether a request was sealed by this user, and is as it was."""
    found, expected = document.get(SEAL), seal(document)
    return isinstance(found, str) and bool(expected) and hmac.compare_digest(found.encode(), expected.encode())


def _key() -> bytes:
    """This user's key, made where there is none; empty where it cannot be kept."""
    file = cache_dir() / _KEY
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            made = file.with_name(f".{_KEY}.{os.getpid()}")
            descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as opened:
                opened.write(secrets.token_bytes(_KEY_BYTES))
            try:
                os.link(made, file)  # whole or not at all, and never over another's
            finally:
                made.unlink()
        key = read_bytes(file, _KEY_BYTES)
        return key if len(key) == _KEY_BYTES else b""
    return b""


def ports_of(
    document: Mapping[str, object], openers: Openers, named: Mapping[Role, str | None] | None = None
) -> tuple[str | None, Path | None, Ports]:
    """Model, file of inputs and ports of a kept run, from its request.json; one that names none had none.

    Args:
        named: `FILE:FUNCTION` by role, where the command line names it.

    Raises:
        UsageError: a port that cannot be loaded any more, was edited, or is of a run from elsewhere and not named.
    """

    def text(name: str) -> str | None:
        value = document.get(name)
        return value if isinstance(value, str) else None

    def port(role: Role) -> PortInfo | None:
        path = text(f"{role}_path")
        if path is None:
            return None
        given = (named or {}).get(role)
        if given is None and not own:
            raise UsageError(
                f"request.json names the port '{path}', and was not written here: a run from elsewhere does not decide "
                f"what is executed; look at that file, then name it: --{role}-path {path}"
            )
        path = given or path
        _require_unchanged(Path(path.rpartition(":")[0]), text(f"{role}_code"))
        info = openers.of(role).port(f"--{role}-path", path, TIMEOUT)
        if role == "reference" and text("candidate_path") is None:  # torchax runs the reference's own module
            openers.of("candidate").port(f"--{role}-path", path, TIMEOUT)
        return info

    own = is_own(document)
    reference = port("reference")
    candidate = port("candidate")
    any_port = reference is not None or candidate is not None
    ports = Ports(reference, candidate, reference is not None and not text("model"), openers if any_port else None)
    inputs = text("inputs")
    return (text("model") if any_port else None), None if inputs is None else Path(inputs), ports


def _require_unchanged(file: Path, digest: str | None) -> None:
    """Refuse a port's file that is not what ran, before any of it is executed."""
    try:
        found = hashlib.sha256(read_bytes(file, MOST_BYTES)).hexdigest()[:16]
    except (OSError, ValueError):  # a path with a null is a ValueError
        found = None
    if found is None or found != digest:
        raise UsageError(f"'{file}' is no longer the port that was run: run it again with --out, then explain that")
