"""What a run starts from, as `--inputs` gives it: a golden, or a file of tensors whose names say what they are.

Imports neither torch nor jax.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import safetensors

from parity.errors import UsageError
from parity.runs.like import Like, read_like

LATENTS = "latents"
"""The one tensor of a port's second stage."""
EMBEDDINGS = ("prompt_embeds", "negative_prompt_embeds")
"""What the names of a port's first stage begin with."""


@dataclass(frozen=True, slots=True)
class Given:
    """What a run starts from; at most one of them.

    Attributes:
        like: a golden's embeddings, masks and noise. stage1: a port's file of embeddings. stage2: a port's file of
            latents, for the VAE. arguments: tensors by the transformer's argument names.
    """

    like: Like | None = None
    stage1: Path | None = None
    stage2: Path | None = None
    arguments: Path | None = None

    @property
    def any(self) -> bool:
        return self != NOTHING


NOTHING = Given()


def read_given(where: str | None) -> Given:
    """What a path or URL gives.

    Raises:
        UsageError: it is neither a golden that carries inputs nor a whole safetensors file.
    """
    if where is None:
        return NOTHING
    path = Path(where)
    if "://" in where or path.is_dir():
        return Given(like=read_like(where))
    if not path.is_file():
        raise UsageError(f"--inputs: no such file or golden: '{where}'; check the path")
    try:
        with safetensors.safe_open(path, framework="np") as file:
            names = set(file.keys())
    except (OSError, safetensors.SafetensorError, UnicodeError) as error:
        raise UsageError(f"--inputs: '{where}' is not a whole safetensors file: {error}; write it again") from error
    if LATENTS in names:
        return Given(stage2=path)
    if any(name.startswith(EMBEDDINGS) for name in names):
        return Given(stage1=path)
    return Given(arguments=path)
