"""`parity replay`: checks the options, replays a golden's recorded inputs, prints."""

from __future__ import annotations

from pathlib import Path

from parity.commands.run import quieten, require_extras
from parity.errors import UsageError
from parity.report.console import make_consoles
from parity.report.json_report import dumps
from parity.report.progress import progress
from parity.report.terminal import print_result
from parity.settings import parse

SIDES = ("candidate", "reference")


def replay_command(
    *, golden: str, side: str, settings: list[str], model: str | None, stage1: Path | None, as_json: bool
) -> int:
    """Replay and print; returns the exit code.

    Raises:
        ParityError: see `parity.diagnose.replay.replay`.
    """
    if side not in SIDES:
        raise UsageError(f"--side takes {' or '.join(SIDES)}, found '{side}'")
    given = parse("torchax" if side == "candidate" else "torch", settings)
    given.require_stages(("transformer",))
    quieten()
    console, errors = make_consoles()
    with progress(errors, quiet=as_json) as say:
        say("loading torch and diffusers")
        require_extras(torchax=side == "candidate")
        from parity.diagnose.replay import ReplayRequest, replay

        result = replay(ReplayRequest(golden, given, side, model, stage1), say)  # type: ignore[arg-type]
    if as_json:
        print(dumps(result))
    else:
        print_result(result, console)
    return result.exit_code
