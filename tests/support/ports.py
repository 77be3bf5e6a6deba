"""Comparisons of port files, each side in a process of its own."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parity.compare.result import Result
from parity.models.stage_files import write_stage2
from parity.paths.live import Host
from parity.paths.plan import Openers
from parity.paths.port.load import load_entry
from parity.paths.worker.process import Workers
from parity.runs.compare import run
from parity.runs.request import Request, load_ports
from parity.settings import parse
from tests.support.lab import quiet

Decoding = tuple[Request, Host]
"""A comparison of decoders that is still to be run."""


def compare(
    reference: str | None,
    candidate: str | None,
    *settings: str,
    model: str | None = None,
    openers: Openers | None = None,
    **options: Any,
) -> Result:
    """Compare two sides given as `FILE:FUNCTION`, or parity's own where one is None.

    Args:
        settings: of the candidate. model: name or folder. openers: in place of processes. options: of
            `Request`.
    """
    ports = load_ports(reference, candidate, model, openers or Workers())
    ours, theirs = ports.settings([], list(settings))
    return run(Request(model or "model", ours, theirs, ports=ports, **options), quiet)


def inside(reference: str | None, candidate: str | None, *settings: str, **options: Any) -> Result:
    """`compare` in this process, half the time: for what the judge makes of a port, not of what a port may do."""
    return compare(reference, candidate, *settings, openers=Host(), **options)


def port(folder: Path, text: str, function: str = "build") -> str:
    """Write a port; returns its `FILE:FUNCTION`."""
    (folder / "port.py").write_text(text)
    return f"{folder / 'port.py'}:{function}"


def stage2(folder: Path, *shape: int, frames: int = 9) -> Path:
    """A port's latents, of this shape."""
    path = folder / "stage2_latents.safetensors"
    latents = torch.from_numpy(np.random.default_rng(0).standard_normal(shape).astype(np.float32))
    write_stage2(path, latents, seed=0, guidance_scale=6.0, num_frames=frames, num_inference_steps=1)
    return path


VAE_PORT = """
import diffusers, torch
from parity.port import Port


def build(case):
    vae = diffusers.KIND.from_pretrained(case.folder, subfolder='vae').eval()
CHANGES

    def decode(latents):
DECODES
        return frames

    return Port(vae=decode, runs="torch")
"""


def decoder(folder: Path, model: str, kind: str, shape: tuple[int, ...], decodes: str, changes: str = "") -> Decoding:
    """A port that decodes latents of this shape with diffusers' class: lines that change it, and that decode."""
    lines = (textwrap.indent(textwrap.dedent(text).strip(), n * " ") for text, n in ((changes, 4), (decodes, 8)))
    text = VAE_PORT.replace("KIND", kind)
    for name, body in zip(("CHANGES", "DECODES"), lines, strict=True):
        text = text.replace(name, body)
    where = port(folder, text)
    openers = Host(load_entry("--port", where))
    given = {"stages": ("vae",), "stage2": stage2(folder, *shape)}
    ports = load_ports(None, where, model, openers)
    return Request(model, parse("torch"), parse("torchax"), ports=ports, **given), openers  # type: ignore[arg-type]


def origin(result: Result) -> tuple[str, str | None]:
    """Verdict, and the site of the first divergence."""
    return result.verdict, None if result.origin is None else result.origin.key.site


def modules(result: Result) -> set[str]:
    """The modules that both sides have tensors of."""
    return {d.key.module for d in result.sites if all(d.dtypes) and d.dtypes}


def check(result: Result, name: str) -> Any:
    """The preflight check of this name."""
    return next(c for c in result.preflight if c.check == name)
