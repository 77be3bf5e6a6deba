"""`--like GOLDEN`: model, steps, seed, embeddings and noise of a run taken from a golden."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from parity.commands.parts.options import Generation
from parity.commands.parts.running import TYPED
from parity.errors import UsageError
from parity.runs.like import Like, read_like

LikeOption = Annotated[
    str | None,
    typer.Option("--like", metavar="GOLDEN", help="Take model, steps, seed, embeddings and noise from this golden."),
]


def alike(where: str | None, generation: Generation, others: dict[str, Path | None]) -> tuple[Generation, Like | None]:
    """What is generated, and what a golden gives to it.

    Args:
        generation: as given; its model stands, since the same weights may lie elsewhere. others: options that say what
            the golden says, by name.

    Raises:
        UsageError: an option that says otherwise; what `parity.runs.like.read_like` says.
    """
    if where is None:
        return generation, None
    given = {"--stage1": generation.stage1, "--prompt": generation.prompt, **others}
    for option, value in given.items():
        if value is not None:
            raise UsageError(f"--like takes the embeddings of '{where}': leave {option} out")
    found = read_like(where)
    told = found.provenance
    for option, ours, theirs, default in (
        ("--steps", generation.steps, told.steps, Generation.steps),
        ("--seed", generation.seed, told.seed, Generation.seed),
    ):
        if ours != theirs and (ours != default or option.strip("-") in TYPED.get()):
            raise UsageError(f"{option} is {ours} and that of '{where}' {theirs}: leave {option} out")
    return replace(generation, model=generation.model or told.model, steps=told.steps, seed=told.seed), found
