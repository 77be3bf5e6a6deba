"""`parity compile`: the candidate's program for a TPU that is not here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import typer

from parity.commands.parts.checks import check_seconds
from parity.commands.parts.compiled import listing
from parity.commands.parts.options import Candidate, CandidatePath, Model, Output, PathTimeout
from parity.commands.parts.unfold import command
from parity.errors import UsageError
from parity.models.registry import DEFAULT_MODEL
from parity.paths.plan import LOOP_STAGE
from parity.paths.port.settings import PortInfo
from parity.paths.worker.extras import check_extras
from parity.paths.worker.openers import Workers
from parity.tpu.compiled import compile_candidate
from parity.tpu.request import Request


@dataclass(frozen=True, kw_only=True)
class Target:
    """What is compiled, and for what; see `parity.tpu.request.Request`.

    Raises:
        UsageError: a size below one.
    """

    topology: Annotated[str, typer.Option(metavar="CHIP:AxB", help="TPU topology: v6e:2x4, v5e:2x2, v5p:2x2x1, ...")]
    model: Model = None
    candidate: Candidate = field(default_factory=list)
    candidate_path: CandidatePath = None
    path_timeout: PathTimeout = 60.0
    stage: Annotated[
        str, typer.Option(help="Part to compile: transformer, vae (its decoder), or the folder of a text encoder.")
    ] = LOOP_STAGE
    height: Annotated[int | None, typer.Option(help="Height of the video, pixels; default: the model's.")] = None
    width: Annotated[int | None, typer.Option(help="Width of the video, pixels; default: the model's.")] = None
    frames: Annotated[int | None, typer.Option(help="Frames of the video; default: the model's.")] = None
    sites: Annotated[
        str,
        typer.Option(help="Sites of the observed program beside it: blocks, all, a glob; none for no such program."),
    ] = "blocks"

    def __post_init__(self) -> None:
        for name, value in (("height", self.height), ("width", self.width), ("frames", self.frames)):
            if value is not None and value < 1:
                raise UsageError(f"--{name} must be at least 1, found {value}")
        check_seconds("--path-timeout", self.path_timeout)
        if self.stage != LOOP_STAGE and self.candidate_path is not None:
            raise UsageError(
                f"--stage {self.stage} goes without --candidate-path: of a port its transformer is compiled"
            )

    @property
    def request(self) -> Request:
        return Request(
            model=self.model or DEFAULT_MODEL,
            topology=self.topology,
            candidate=tuple(self.candidate),
            sites=self.sites,
            height=self.height,
            width=self.width,
            frames=self.frames,
            port=self.candidate_path,
            path_timeout=self.path_timeout,
            stage=self.stage,
        )

    def port(self) -> PortInfo | None:
        """What is known of the port, which a process of its own imports for it."""
        if self.candidate_path is None:
            return None
        with Workers() as workers:
            return workers.of("candidate").port("--candidate-path", self.candidate_path, self.path_timeout)


@command
def compile(
    target: Target,
    output: Output,
    against: Annotated[
        list[str], typer.Option(metavar="K=V", help="Setting of a second program to compare with; repeatable.")
    ] = [],  # noqa: B006  (typer copies it)
    timeout: Annotated[float, typer.Option(help="Seconds that the compiler may take for a program.")] = 1800.0,
) -> int:
    """Compile the candidate for a TPU that is not here: does it fit?

    Also told: how it multiplies, what it exchanges, what observing costs. From configs alone; no weights are read. Exit
    code 0: it compiles, 1: the compiler refuses it, 2: bad input, 125: it could not be told.
    """
    if not timeout > 0:
        raise UsageError(f"--timeout must be above 0, found {timeout:g}")
    check_extras()
    with output.working("asking the TPU compiler") as say:
        made = compile_candidate(target.request, against, timeout, say, target.port())
    output.show(listing(made))
    return made.exit_code
