"""`parity record`: checks the options, records, says what was written."""

from __future__ import annotations

import contextlib
import shlex
import sys
from pathlib import Path

from parity.commands.run import check_common, parse_stages, quieten, require_extras
from parity.errors import UsageError
from parity.models.registry import DEFAULT_MODEL
from parity.report.console import make_consoles
from parity.report.progress import progress
from parity.settings import Backend, Settings, parse

_BACKENDS: dict[str, Backend] = {"reference": "torch", "candidate": "torchax"}


def record_command(
    *,
    where: str,
    side: str,
    settings: list[str],
    model: str | None,
    steps: int,
    seed: int,
    stage1: Path | None,
    prompt: str | None,
    sites: str,
    values: list[str],
    floors: str,
    resume: bool,
    overwrite: bool,
    inputs: Path | None = None,
    reference_path: str | None = None,
    candidate_path: str | None = None,
    path_timeout: float = 60.0,
    processes: str | None = None,
    process: int | None = None,
    coordinator: str | None = None,
    process_timeout: float = 120.0,
    stages: str | None = None,
    stage1_out: Path | None = None,
) -> None:
    """Record one path to a golden.

    Raises:
        ParityError: see `parity.runs.record.record`.
    """
    if side not in _BACKENDS:
        raise UsageError(f"--side takes reference or candidate, found '{side}'")
    if resume and overwrite:
        raise UsageError("--resume and --overwrite exclude each other")
    check_common(steps=steps, seed=seed, stage1=stage1, prompt=prompt)
    several = _processes(side, processes, process, coordinator, process_timeout)
    if candidate_path is not None and side == "reference":
        raise UsageError("--candidate-path is recorded with --side candidate")
    paths = reference_path is not None or candidate_path is not None
    chosen = Settings("torch", {}) if paths else parse(_BACKENDS[side], settings)
    ran = parse_stages(stages, None)
    if "transformer" not in ran:
        raise UsageError("a golden is of a loop: --stages must name the transformer, `--stages transformer,vae`")
    if "text" in ran and stage1 is not None:
        raise UsageError("with text among the --stages the prompt is encoded here: leave --stage1 or text out")
    if several is not None and ran != ("transformer",):
        raise UsageError("several processes record the loop alone: leave --stages or --processes out")
    quieten()
    _, errors = make_consoles()
    with contextlib.ExitStack() as stack:
        say = stack.enter_context(progress(errors))
        say("loading torch and diffusers")
        require_extras(torchax=side == "candidate")
        if several is not None:
            from parity.paths.processes import Processes, together

            say("waiting for the other processes")
            stack.enter_context(together(Processes(*several)))
        from parity.commands.paths import load_paths
        from parity.runs.ports import NO_PORTS
        from parity.runs.record import RecordRequest, check_floors, record

        ports = NO_PORTS
        if paths:
            given = (settings, []) if side == "reference" else ([], settings)
            ports, *both = load_paths(reference_path, candidate_path, model, *given, path_timeout)
            chosen = both[0] if side == "reference" else both[1]
        chosen.require_stages(ran)
        request = RecordRequest(
            where,
            "reference" if side == "reference" else "candidate",
            chosen,
            str(reference_path) if ports.alone else model or DEFAULT_MODEL,
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
            ports,
            inputs,
            ran,
            stage1_out,
        )
        written = record(request, say)
    if written or several is None:
        errors.print(f"{written} steps written to {where}", markup=False, highlight=False)


def _processes(
    side: str, count: str | None, index: int | None, coordinator: str | None, timeout: float
) -> tuple[int | None, int | None, str | None, float] | None:
    """The options of several processes, None where there is one.

    Raises:
        UsageError: they exclude each other, or the side.
    """
    if count is None:
        if index is not None or coordinator is not None:
            raise UsageError("--process and --coordinator go with --processes N")
        return None
    if side != "candidate":
        raise UsageError("--processes records a candidate (--side candidate): the reference runs in one process")
    if count == "auto":
        return None, index, coordinator, timeout
    if not count.isdigit() or int(count) < 1:
        raise UsageError(f"--processes takes auto or a number, found '{count}'")
    return int(count), index, coordinator, timeout


def command_line() -> str:
    """The command as given, without folders of this machine: a path that leads to one keeps its last part."""
    return shlex.join(["parity", *(_without_folders(w) for w in sys.argv[1:])])


def _without_folders(word: str) -> str:
    option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    path = value.removeprefix("file://")
    of_this_machine = path != value or value.startswith(("/", "~", "..", "./"))
    return option + equals + (Path(path).name if of_this_machine else value)
