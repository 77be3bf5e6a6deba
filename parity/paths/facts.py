"""What a side is about to run with, before any forward, and what it leaves in files.

The facts hold what parity puts in the place of a model's own code, found on the loaded model: parity's own sides
realise settings so (attention processors, forwards that JAX can trace); a port runs as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from parity.golden.fingerprint import fingerprint, narrow, weight_prints
from parity.hooks.torchtools import to_torch
from parity.models.generic import Generic
from parity.models.stage_files import write_stage1, write_stage2
from parity.paths.loaded import Loaded, array, dtype_name
from parity.paths.loop import Loop
from parity.paths.plan import Role, Spec
from parity.paths.reference import TorchBackend
from parity.paths.stage import Stage
from parity.records import AFTER, PORT, Array, Facts, Provenance
from parity.transforms import stored_as
from parity.versions import versions

SAMPLE = 4096
"""Values of a parameter that are looked at: of float32 one in 65,536 is a number of bfloat16."""


def facts_of(loop: Loop, spec: Spec) -> Facts:
    """Read a prepared side. Cost: one read of the weights, and the rotary tables computed once.

    Where the text stage is part of the run its tokens are the explicit inputs of the provenance, and not the embeddings
    it made of them.
    """
    side = loop.side
    network, backend, settings, given = side.network, side.backend, side.settings, side.inputs
    shapes: dict[str, tuple[int, ...]] = {}
    sizes: dict[str, int] = {}
    narrow_ones: dict[str, int] = {}

    def read(name: str, values: Callable[[], np.ndarray]) -> np.ndarray:
        x = values()
        shapes[name] = x.shape
        if x.dtype.kind == "f":
            is_narrow = stored_as(x.reshape(-1)[:SAMPLE]) != "float32"
            sizes[name], narrow_ones[name] = x.size, x.size if is_narrow else 0
        return narrow(x)

    each = list(backend.weights())
    prints = weight_prints((name, functools.partial(read, name, values)) for name, _, values in each)
    with backend.scope():
        sample = network.rotary_tables(backend.model, loop.latents)
        tables = {name: backend.host(x).astype(np.float32) for name, x in sample.items()}
        noise = backend.host(loop.latents)
    common = _facts(side, spec, prints)
    own = side.family.given if spec.source.alone and isinstance(side.family, Generic) else {}
    tokens = {name: x.numpy() for name, x in given.tokens.items()}
    started = {**(tokens or {name: x.values for name, x in common.inputs.items()}), "noise": noise}
    return replace(
        common,
        weights={name: (shapes[name], print_) for name, print_ in prints.items()},
        dtypes={name: dtype for name, dtype, _ in each},
        tables=tables,
        noise=noise,
        schedule=loop.schedule,
        encoded=bool(given.tokens),
        placement=backend.placement,
        provenance=replace(common.provenance, inputs={name: fingerprint(x) for name, x in started.items()}),
        grid=side.family.token_grid(side.case),
        checks=(*network.checks(spec.role), *_own_checks(side, spec.role)),
        tensors={name: array(x) for name, x in own.items()},
        lacks=dict(network.without()),
        compiled=not isinstance(backend, TorchBackend) and bool(settings["jit"]),
        narrow=sum(narrow_ones.values()) / max(sum(sizes.values()), 1),
    )


def stage_facts(side: Loaded, spec: Spec) -> Facts:
    """What a stage outside the loop is about to run with; of its weights the fingerprints alone, where they are
    wanted."""
    stage = side.network
    assert isinstance(stage, Stage)
    each = side.backend.weights() if spec.named else ()
    prints = weight_prints((f"{stage.stage}.{name}", read) for name, _, read in each)
    own = stage.stage == AFTER and stage.replaced is not None  # a port's decoder; what replaces an encoder is a file
    return replace(_facts(side, spec, prints), own=own, trunk=stage.trunk)


def _facts(side: Loaded, spec: Spec, prints: Mapping[str, str]) -> Facts:
    """What is known of any side; `prints`: of its weights."""
    conditions = side.inputs.conditions.items()
    inputs = {f"{branch}.{name}": x for branch, own in conditions for name, x in own.items()}
    origin = Provenance(
        side=spec.role,
        backend=PORT if spec.role == "candidate" and side.network.is_own else side.backend.name,
        model=side.case.name,
        settings=side.settings.as_text(),
        seed=spec.source.seed,
        steps=side.inputs.steps,
        weights=prints,
        versions=versions(),
        devices=side.backend.describe(),
        modules=side.modules,
    )
    given = {name: Array(np.asarray(x.float().numpy()), dtype_name(x.dtype)) for name, x in inputs.items()}
    return Facts(given, origin, own=side.network.is_own)


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
            places = paths[0] if len(paths) == 1 else f"{paths[0]} to {paths[-1]} ({len(paths)} modules)"
            found.append(f"{what} of {places}")
    return ((f"{role}: replaced by parity", "pass", "; ".join(found) or "nothing: its code runs as it is"),)


def _is_ours(x: object) -> bool:
    return str(getattr(x, "__module__", "")).partition(".")[0] == "parity"


def leave_files(folder: Path, role: Role, loop: Loop) -> None:
    """Write a side's embeddings and final latents into a folder, in the ports' conventions."""
    side = loop.side
    if side.family.streams:
        write_stage1(folder / f"{role}_embeddings.safetensors", side.family.streams, side.inputs.conditions)
    write_stage2(
        folder / f"{role}_latents.safetensors",
        side.family.stage2(side.case, to_torch(loop.latents)),
        seed=side.inputs.seed,
        guidance_scale=loop.sampler.guidance_scale,
        num_frames=side.case.spec.num_frames,
        num_inference_steps=side.inputs.steps,
    )
