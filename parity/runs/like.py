"""What a run takes over from a golden (`--inputs`): its embeddings, its masks, its initial noise.

Imports neither torch nor jax.
"""

from __future__ import annotations

from dataclasses import dataclass

from parity.golden import Golden
from parity.golden.disk.inputs import FILE, NOISE, Input, put_inputs, read_inputs
from parity.golden.disk.store import open_store
from parity.paths.plan import Array, Given
from parity.records import Facts, Provenance


@dataclass(frozen=True, slots=True)
class Like:
    """The explicit inputs of a golden.

    Attributes:
        where: the golden. provenance: of it. inputs: embeddings and masks. noise: the initial latents.
    """

    where: str
    provenance: Provenance
    inputs: Given
    noise: Array


def read_like(where: str) -> Like:
    """What a golden carries, checked against its fingerprints.

    Raises:
        UsageError: no golden, one that carries no inputs, or damage.
    """
    golden = Golden.open(where)
    found = {name: Array(item.values, item.dtype) for name, item in read_inputs(golden).items()}
    noise = found.pop(NOISE)
    return Like(where, golden.provenance, found, noise)


def carried(where: str) -> Like | None:
    """`read_like`; None for a golden that carries no inputs."""
    return read_like(where) if FILE in Golden.open(where).store.files() else None


def carry(where: str, facts: Facts, provenance: Provenance, *, resumed: bool = False) -> bool:
    """Have a golden carry what its side started from, unless that is the tokens of its text stage; True, once settled.

    Args:
        resumed: whether it may carry them already, and is then left as it is.
    """
    store = open_store(where)
    if resumed and FILE in store.files():
        return True
    inputs = {name: Input(x, facts.input_dtypes[name]) for name, x in facts.inputs.items()}
    put_inputs(store, provenance, {**inputs, NOISE: Input(facts.noise, "float32")})
    return True
