"""The working folder that the frozen commands are run in: goldens, ports and a repository, made the same each time.

The goldens are the committed one and copies of it, edited by what docs/golden-format.md says of the files and not by
the package, so that a change of the package cannot change what it is measured on.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

from tests.ports import PORT, REFERENCE

ROOT = Path(__file__).resolve().parents[2]
MODEL = "tiny-hunyuan-video-1.5"
FAULT_FROM = "transformer_blocks.2.attn.attention:out@image"
"""Where the edited golden starts to differ: this output and all that is recorded after it but for the other branch."""

Json = dict[str, Any]
Tensors = dict[str, np.ndarray]
Edit = Callable[[Json, Json, Tensors], None]
"""Changes the provenance, the part's document and its tensors in place."""

TORCH_PORT = (
    REFERENCE
    + """

class Other(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = TinyDiT()
        self.net.blocks[1].proj.weight.data *= FACTOR


FACTOR = 1.0


def build(case):
    other = Other()
    return Port(module=other, call=lambda i: other.net(**i), runs="torch", rename={r"net\\.(.+)": r"\\1"})
"""
)


def prepare(folder: Path) -> None:
    """Fill a folder; one that is already filled is left as it is."""
    if (folder / "golden").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.py").write_text(REFERENCE)
    (folder / "port.py").write_text(PORT)
    (folder / "faulty.py").write_text(PORT.replace("x.var(-1, keepdims=True)", "x.var(-1, ddof=1, keepdims=True)"))
    (folder / "torch_port.py").write_text(TORCH_PORT)
    (folder / "torch_faulty.py").write_text(TORCH_PORT.replace("FACTOR = 1.0", "FACTOR = 1.01"))
    _history(folder / "history")
    committed = ROOT / "golden" / MODEL
    edited(committed, folder / "changed", _changed)
    edited(committed, folder / "renamed", _renamed)
    edited(committed, folder / "other-seed", lambda provenance, part, tensors: provenance.update(seed=1))
    edited(committed, folder / "first", lambda provenance, part, tensors: provenance.update(steps=2))
    edited(committed, folder / "second", _second)
    shutil.copytree(committed, folder / "damaged")
    with (folder / "damaged" / "step-0000.safetensors").open("r+b") as damaged:
        damaged.seek(-1000, 2)
        damaged.write(b"?")
    shutil.copytree(ROOT / "golden", folder / "golden")  # last: its presence says that the folder is filled


def _history(folder: Path) -> None:
    """A repository of nine commits, of which those from number 5 on have a file `broken`; its names never change."""
    stream = []
    for number in range(9):
        stream += ["commit refs/heads/main", f"committer n <e> {10**9 + number} +0000"]
        stream += [f"data {len(f'commit {number}')}", f"commit {number}"]
        for name in ("number", *["broken"] * (number == 5)):
            stream += [f"M 100644 inline {name}", "data 1", str(number)]
    git = ["git", "-C", str(folder)]
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", str(folder)], check=True)
    subprocess.run([*git, "fast-import", "--quiet"], input="\n".join([*stream, ""]).encode(), check=True)
    subprocess.run([*git, "checkout", "--quiet", "main"], check=True)


def edited(golden: Path, where: Path, edit: Edit) -> None:
    """A copy of a golden of one part with an edit, its checksums made right."""
    manifest = json.loads((golden / "golden.json").read_text())
    with safe_open(golden / manifest["parts"][0]["file"], "np") as opened:
        part = json.loads(opened.metadata()["parity"])
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    edit(manifest["provenance"], part, tensors)
    file = f"step-{part['step']:04d}.safetensors"
    content = save(tensors, {"parity": json.dumps(part, separators=(",", ":"))})
    where.mkdir(parents=True)
    (where / file).write_bytes(content)
    sha256 = hashlib.sha256(content).hexdigest()
    manifest["parts"][0] |= {"step": part["step"], "file": file, "bytes": len(content), "sha256": sha256}
    del manifest["sha256"]
    manifest["sha256"] = hashlib.sha256(json.dumps(manifest, separators=(",", ":")).encode()).hexdigest()
    (where / "golden.json").write_text(json.dumps(manifest, indent=1))


def _changed(provenance: Json, part: Json, tensors: Tensors) -> None:
    """One percent more from one module on, as a candidate with another mask might record it."""
    provenance |= {"side": "candidate", "settings": {**provenance["settings"], "attention.mask": "zero_kv"}}
    first = next(i for i, record in enumerate(part["records"]) if record["key"][2] == FAULT_FROM)
    for index, record in enumerate(part["records"]):
        if index < first or record["key"][1] == "uncond":
            continue
        for name in (f"{index}.sketch", f"{index}.value"):
            if name in tensors and tensors[name].dtype == np.float32:
                tensors[name] = tensors[name] * np.float32(1.01)
        moments = record.get("moments")
        if moments is not None:
            moments |= {name: moments[name] * 1.01 for name in ("min", "max", "mean", "l2")}


def _renamed(provenance: Json, part: Json, tensors: Tensors) -> None:
    """The same numbers under a port's own names."""
    provenance |= {"side": "candidate", "backend": "port"}

    def name(path: str) -> str:
        return path.replace("transformer_blocks.", "layers.").replace("x_embedder", "patch")

    provenance["modules"] = {name(path): name(parent) for path, parent in provenance["modules"].items()}
    for entry in (*part["records"], *part["floors"]):
        entry["key"][2] = name(entry["key"][2])


def _second(provenance: Json, part: Json, tensors: Tensors) -> None:
    """The golden of the same run's next step."""
    provenance |= {"steps": 2}
    part["step"] = 1
