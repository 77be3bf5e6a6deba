"""Writes the prompt embeddings of a model as a port's first stage does: what two machines share by `--inputs`.

    python golden/embeddings.py tiny-hunyuan-video-1.5 golden/tiny-hunyuan-video-1.5.embeddings.safetensors

The two encoders round otherwise on every kind of processor, and a golden of other embeddings is of another run. Cost:
the text encoders of the model, once.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from parity.models.registry import opened
from parity.models.stage_files import write_stage1
from parity.settings import parse


def main(model: str, out: Path) -> None:
    """Encode the model's own prompt in float32 and write it to `out`."""
    family, case = opened(model)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not family.streams:
        sys.exit(f"ports of a {family.title} have no stage-1 file")
    write_stage1(out, family.streams, family.conditions(case, parse("torch", []), None, device))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: python {sys.argv[0]} MODEL OUT.safetensors")
    main(sys.argv[1], Path(sys.argv[2]))
