"""`parity record`: checks the options, records, says what was written."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from parity.commands.run import check_common, parse_stages, quieten, require_extras
from parity.errors import UsageError
from parity.report.console import make_consoles
from parity.report.progress import progress
from parity.settings import Backend, parse

_BACKENDS: dict[str, Backend] = {"reference": "torch", "candidate": "torchax"}


def record_command(
    *,
    where: str,
    side: str,
    settings: list[str],
    model: str,
    steps: int,
    seed: int,
    stage1: Path | None,
    prompt: str | None,
    sites: str,
    values: list[str],
    floors: str,
    resume: bool,
    overwrite: bool,
    stages: str | None = None,
    stage1_out: Path | None = None,
) -> None:
    """Record one path to a golden.

    Raises:
        ParityError: see `parity.diagnose.record.record`.
    """
    if side not in _BACKENDS:
        raise UsageError(f"--side takes reference or candidate, found '{side}'")
    if resume and overwrite:
        raise UsageError("--resume and --overwrite exclude each other")
    check_common(steps=steps, seed=seed, stage1=stage1, prompt=prompt)
    chosen = parse(_BACKENDS[side], settings)
    ran = parse_stages(stages, None)
    if "transformer" not in ran:
        raise UsageError("a golden is of a loop: --stages must name the transformer, `--stages transformer,vae`")
    if "text" in ran and stage1 is not None:
        raise UsageError("with text among the --stages the prompt is encoded here: leave --stage1 or text out")
    chosen.require_stages(ran)
    quieten()
    _, errors = make_consoles()
    with progress(errors) as say:
        say("loading torch and diffusers")
        require_extras(torchax=side == "candidate")
        from parity.diagnose.record import RecordRequest, check_floors, record

        request = RecordRequest(
            where,
            "reference" if side == "reference" else "candidate",
            chosen,
            model,
            steps,
            seed,
            stage1,
            sites,
            tuple(values),
            check_floors(floors, side),
            prompt,
            resume,
            overwrite,
            command_line(),
            ran,
            stage1_out,
        )
        written = record(request, say)
    errors.print(f"{written} steps written to {where}", markup=False, highlight=False)


def command_line() -> str:
    """The command as given, without folders of this machine: a path that leads to one keeps its last part."""
    return shlex.join(["parity", *(_without_folders(w) for w in sys.argv[1:])])


def _without_folders(word: str) -> str:
    option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    path = value.removeprefix("file://")
    of_this_machine = path != value or value.startswith(("/", "~", "..", "./"))
    return option + equals + (Path(path).name if of_this_machine else value)
