"""A process of its own for `test_observing`: block records of one step of the tiny model on several meshes."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np

from tests.paths.sides import side, step_of


def main(folder: Path, meshes: list[str]) -> None:
    for i, mesh in enumerate(meshes):
        records = list(step_of(side("torchax", f"mesh={mesh}"), "blocks").values())
        told = [[dataclasses.astuple(r.key), r.kind, r.shape, r.frame] for r in records]
        arrays = {str(n): r.sketch for n, r in enumerate(records) if r.sketch is not None}
        np.savez(folder / f"{i}.npz", told=np.frombuffer(json.dumps(told).encode(), np.uint8), **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
