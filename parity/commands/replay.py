"""`parity replay`: checks the options, replays a golden's recorded inputs, prints."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from parity.errors import UsageError
from parity.paths.extras import quieten, require_extras
from parity.report.console import make_consoles
from parity.report.json_report import dumps
from parity.report.progress import progress
from parity.report.terminal import print_result
from parity.settings import Settings, parse

SIDES = ("candidate", "reference")


def replay_command(
    *,
    golden: str,
    side: str,
    settings: list[str],
    model: str | None,
    stage1: Path | None,
    as_json: bool,
    reference_path: str | None = None,
    candidate_path: str | None = None,
    inputs: Path | None = None,
    path_timeout: float = 60.0,
) -> int:
    """Replay and print; returns the exit code.

    Raises:
        ParityError: see `parity.runs.replay.replay`.
    """
    if side not in SIDES:
        raise UsageError(f"--side takes {' or '.join(SIDES)}, found '{side}'")
    paths = reference_path is not None or candidate_path is not None
    given = Settings("torch", {}) if paths else parse("torchax" if side == "candidate" else "torch", settings)
    quieten()
    console, errors = make_consoles()
    with progress(errors, quiet=as_json) as say:
        say("loading torch and diffusers")
        require_extras(torchax=side == "candidate")
        from parity.commands.paths import load_paths
        from parity.runs.replay import ReplayRequest, replay
        from parity.runs.request import NO_PORTS

        ports = NO_PORTS
        if paths:
            own = ([], settings) if side == "candidate" else (settings, [])
            ports, *both = load_paths(reference_path, candidate_path, model, *own, path_timeout)
            given = both[1] if side == "candidate" else both[0]
        given.require_stages(("transformer",))
        role: Literal["reference", "candidate"] = "candidate" if side == "candidate" else "reference"
        request = ReplayRequest(golden, given, role, model, stage1, ports, inputs)
        result = replay(request, say)
    if as_json:
        print(dumps(result))
    else:
        print_result(result, console)
    return result.exit_code
