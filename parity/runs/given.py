"""What a run starts from, as `--inputs` gives it: a golden, whose embeddings, masks and initial noise it takes over,
or a file of tensors whose names say what they are.

Imports neither torch nor jax.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors

from parity.errors import UsageError
from parity.golden import Golden
from parity.golden.disk.read import INPUTS, NOISE, read_inputs
from parity.golden.disk.store import open_store
from parity.golden.disk.write import put_inputs
from parity.records import Array, Facts, Provenance
from parity.redact import without_secrets


@dataclass(frozen=True, slots=True)
class Like:
    """The explicit inputs of a golden.

    Attributes:
        where: the golden. provenance: of it. inputs: embeddings and masks. noise: the initial latents.
    """

    where: str
    provenance: Provenance
    inputs: Mapping[str, Array]
    noise: Array


def carried(where: str) -> Like | None:
    """What a golden carries, checked against its fingerprints; None for one that carries no inputs.

    Raises:
        UsageError: no golden, or damage.
    """
    golden = Golden.open(where)
    found = read_inputs(golden)
    if found is None:
        return None
    noise = found.pop(NOISE)
    return Like(where, golden.provenance, found, noise)


def carry(where: str, facts: Facts, provenance: Provenance) -> None:
    """Have a golden carry what its side started from, unless that is the tokens of its text stage; one that carries
    them already, as a resumed one does, is left as it is."""
    store = open_store(where)
    if INPUTS not in store.files():
        put_inputs(store, provenance, {**facts.inputs, NOISE: Array(facts.noise, "float32")})


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


def read_given(where: str | None) -> Given:
    """What a path or URL gives.

    Raises:
        UsageError: it is neither a golden that carries inputs nor a whole safetensors file.
    """
    if where is None:
        return Given()
    path = Path(where)
    if "://" in where or path.is_dir():
        if (like := carried(where)) is None:
            raise UsageError(
                f"{without_secrets(where)}: this golden carries no embeddings and noise: it was recorded in a script, "
                "or with its text stage, or the file was lost; record it again"
            )
        return Given(like=like)
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
