"""Options that several commands take, each said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ModelOption = Annotated[str, typer.Option(help="Built-in model, folder in diffusers layout, or hub name.")]
StepsOption = Annotated[int, typer.Option(help="Denoising steps.")]
ReferenceOption = Annotated[
    list[str] | None, typer.Option(metavar="K=V", help="Setting of the reference path; repeatable.")
]
CandidateOption = Annotated[
    list[str] | None, typer.Option(metavar="K=V", help="Setting of the candidate path; repeatable.")
]
Stage1Option = Annotated[Path | None, typer.Option(help="A port's stage1_embeddings.safetensors, not a prompt.")]
PromptOption = Annotated[str | None, typer.Option(help="In place of the model's own prompt.")]
SeedOption = Annotated[int, typer.Option(help="Of the initial noise.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else.")]
SettingOption = Annotated[
    list[str] | None, typer.Option("--setting", metavar="K=V", help="Setting of the path; repeatable.")
]
ReferencePathOption = Annotated[
    str | None, typer.Option(metavar="FILE:FUNCTION", help="A port in place of the reference (docs/ports.md).")
]
CandidatePathOption = Annotated[
    str | None, typer.Option(metavar="FILE:FUNCTION", help="A port in place of the candidate (docs/ports.md).")
]
PathTimeoutOption = Annotated[float, typer.Option(help="Seconds that importing a port's file may take.")]
SitesOption = Annotated[str, typer.Option(help="blocks, all, or a glob over module or module:port.")]
ValuesOption = Annotated[
    list[str] | None, typer.Option(metavar="GLOB", help="Sites whose values are kept whole; repeatable.")
]
InputsOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Tensors by argument name, for a transformer that no family knows."),
]
