"""What a side is about to run with, before any forward, and what it leaves in files.

The facts hold what parity puts in the place of a model's own code, found on the loaded model: parity's own sides
realise settings so (attention processors, forwards that JAX can trace); a port runs as it is.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from parity.golden.fingerprint import fingerprint, narrow, weight_prints
from parity.hooks.reduce.on_torch import to_numpy
from parity.hooks.torchtools import to_torch
from parity.models.stage_files import write_stage2
from parity.paths.loaded import Loaded, dtype_name
from parity.paths.loop import Loop
from parity.paths.plan import Role, Spec
from parity.paths.reference import TorchBackend
from parity.paths.stage import Stage
from parity.records import PORT, Facts, Provenance
from parity.settings import Settings
from parity.transforms import stored_as
from parity.versions import versions

SAMPLE = 4096
"""Values of a parameter that are looked at: of float32 one in 65,536 is a number of bfloat16."""


def facts_of(loop: Loop, role: Role, *, alone: bool) -> Facts:
    """Read a prepared side. Cost: one read of the weights, and the rotary tables computed once.

    Where the text stage is part of the run its tokens are the explicit inputs of the provenance, and not the embeddings
    it made of them.

    Args:
        alone: whether a reference port brings its own inputs.
    """
    side = loop.side
    network, backend, settings, given = side.network, side.backend, side.settings, side.inputs
    shapes: dict[str, tuple[int, ...]] = {}
    narrow_ones: dict[str, int] = {}

    def read(name: str, values: Callable[[], np.ndarray]) -> np.ndarray:
        x = values()
        is_narrow = x.dtype.kind == "f" and stored_as(x.reshape(-1)[:SAMPLE]) != "float32"
        shapes[name], narrow_ones[name] = x.shape, x.size if is_narrow else 0
        return narrow(x)

    each = list(backend.weights())
    dtypes = {name: dtype for name, dtype, _ in each}
    prints = weight_prints((name, functools.partial(read, name, values)) for name, _, values in each)
    weights = {name: (shapes[name], print_) for name, print_ in prints.items()}
    with backend.scope():
        sample = network.rotary_tables(backend.model, loop.latents)
        tables = {name: backend.host(x).astype(np.float32) for name, x in sample.items()}
        noise = backend.host(loop.latents)
    inputs = {f"{branch}.{name}": x for branch, own in given.conditions.items() for name, x in own.items()}
    values = {name: np.asarray(x.float().numpy()) for name, x in inputs.items()}
    started = {name: x.numpy() for name, x in given.tokens.items()} or values
    tensors = side.family.tensors() if alone else {}
    origin = Provenance(
        side=role,
        backend=PORT if role == "candidate" and network.is_own else backend.name,
        model=side.case.name,
        settings=settings.as_text(),
        seed=given.seed,
        steps=given.steps,
        weights={name: print_ for name, (_, print_) in weights.items()},
        inputs={name: fingerprint(x) for name, x in {**started, "noise": noise}.items()},
        versions=versions(),
        devices=backend.describe(),
        modules=side.modules,
    )
    return Facts(
        weights=weights,
        dtypes=dtypes,
        inputs=values,
        tables=tables,
        noise=noise,
        schedule=loop.schedule,
        own=network.is_own,
        encoded=bool(given.tokens),
        placement=backend.placement,
        provenance=origin,
        grid=side.family.token_grid(side.case),
        dtype=dtype_name(backend.dtype),
        checks=(*network.checks(side.case, role), *_own_checks(side, role)),
        input_dtypes={name: dtype_name(x.dtype) for name, x in {**inputs, **tensors}.items()},
        tensors={name: to_numpy(x) for name, x in tensors.items()},
        lacks=dict(network.without(side.case.config)),
        compiled=not isinstance(backend, TorchBackend) and bool(settings["jit"]),
        narrow=sum(narrow_ones.values()) / max(sum(map(math.prod, shapes.values())), 1),
    )


def _own_checks(side: Loaded, role: Role) -> tuple[tuple[str, str, str], ...]:
    """Preflight checks (name, verdict, detail): what is parity's own in a loaded side."""
    found = []
    if side.backend.safe_attention:  # what `parity.paths.jax.mended` mends
        found.append("torchax's attention (rows without a key give 0, not NaN) and `type_as` (a cast, not in place)")
    modules = list(side.backend.model.named_modules())
    processors = [path for path, module in modules if _is_ours(type(getattr(module, "processor", None)))]
    forwards = [path or "the transformer" for path, module in modules if _is_ours(vars(module).get("forward"))]
    for what, paths in (("attention processors", processors), ("forward", forwards)):
        if paths:
            found.append(f"{what} of {_places(paths)}")
    return ((f"{role}: replaced by parity", "pass", "; ".join(found) or "nothing: its code runs as it is"),)


def _is_ours(x: object) -> bool:
    return str(getattr(x, "__module__", "")).partition(".")[0] == "parity"


def _places(paths: list[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{paths[0]} to {paths[-1]} ({len(paths)} modules)"


def stage_facts(
    stage: Stage,
    spec: Spec,
    settings: Settings,
    modules: Mapping[str, str],
    weights: Mapping[str, str],
    devices: tuple[str, ...] = (),
) -> Facts:
    """What a stage outside the loop is about to run with.

    Args:
        spec: of its side. modules: module path -> parent's path. weights: fingerprints by name.
        devices: that it computes on.
    """
    inputs = {f"{branch}.{name}": x for branch, given in stage.inputs.items() for name, x in given.items()}
    origin = Provenance(
        side=spec.role,
        backend=settings.backend,
        model=stage.case.name,
        settings=settings.as_text(),
        seed=spec.source.seed,
        steps=0,
        weights=weights,
        versions=versions(),
        devices=devices,
        modules=modules,
    )
    return Facts(
        inputs={name: to_numpy(x) for name, x in inputs.items()},
        provenance=origin,
        dtype=settings.text("dtype"),
        input_dtypes={name: dtype_name(x.dtype) for name, x in inputs.items()},
        own=stage.is_own,
        trunk=stage.trunk,
    )


def leave_files(folder: Path, role: Role, loop: Loop) -> None:
    """Write a side's embeddings and final latents into a folder, in the ports' conventions."""
    side = loop.side
    side.family.write_stage1(folder / f"{role}_embeddings.safetensors", side.inputs.conditions)
    write_stage2(
        folder / f"{role}_latents.safetensors",
        side.family.stage2(side.case, to_torch(loop.latents)),
        seed=side.inputs.seed,
        guidance_scale=loop.sampler.guidance_scale,
        num_frames=side.case.spec.num_frames,
        num_inference_steps=side.inputs.steps,
    )
