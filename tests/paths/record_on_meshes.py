"""A process of its own for `test_observing`: block records of one step of the tiny model on several meshes."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np

from parity.models.registry import family_of, make_case, resolve_model
from parity.models.spec import GenerationSpec
from parity.paths.jax.candidate import load_candidate
from parity.settings import parse
from tests.conftest import TINY
from tests.inputs import make_inputs
from tests.paths.observing import step_of


def main(folder: Path, meshes: list[str]) -> None:
    checkpoint = resolve_model(TINY)
    case, family = make_case(TINY, checkpoint, GenerationSpec.load(checkpoint)), family_of(checkpoint)
    inputs = make_inputs(family, case, parse("torch"))
    for i, mesh in enumerate(meshes):
        side = load_candidate(family, case, parse("torchax", [f"mesh={mesh}"]), inputs)
        records = list(step_of(side, "blocks").values())
        told = [[dataclasses.astuple(r.key), r.kind, r.shape, r.frame] for r in records]
        arrays = {str(n): r.sketch for n, r in enumerate(records) if r.sketch is not None}
        np.savez(folder / f"{i}.npz", told=np.frombuffer(json.dumps(told).encode(), np.uint8), **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
