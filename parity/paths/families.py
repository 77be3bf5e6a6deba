"""What a side stands on: the family of its model, a port in place of the family's transformer, and the loaded path."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path

from parity.errors import UsageError
from parity.hooks.modules import nearest
from parity.models.family import Family
from parity.models.registry import opened
from parity.models.spec import Case, GenerationSpec
from parity.paths.inputs import Inputs
from parity.paths.loaded import Loaded
from parity.paths.loop import Loop, call_model
from parity.paths.plan import Source
from parity.paths.port.inputs import PortInputs, inputs_of
from parity.paths.port.load import Entry
from parity.paths.port.ported import Ported, built
from parity.paths.reference import load_reference
from parity.paths.worker.extras import check_extras
from parity.settings import Settings


def reference_case(entry: Entry, settings: Settings, inputs: Path | None) -> tuple[Case, PortInputs]:
    """Sizes and inputs of a reference port without a model: it is built once to be asked for its inputs."""
    nothing = Case(entry.text, entry.path.parent, {}, GenerationSpec(), ())
    port, _ = built(entry, "reference", nothing, settings, lambda _: None)
    family = inputs_of(entry, port, inputs)
    shape = family.latent_shape(entry.path, GenerationSpec())
    return Case(entry.text, entry.path.parent, {}, GenerationSpec(), shape), family


def case_of(source: Source, inputs: Path | None = None) -> tuple[Case, Family]:
    """The sizes and the family of a checkpoint, on which both sides of a run stand.

    Args:
        inputs: tensors by argument name.

    Raises:
        UsageError: there is no such model.
    """
    family, case = opened(source.model, inputs, source.prompt)
    return case, family


Loader = Callable[[Case, Settings, Inputs], Loaded]
"""Loads a path of these sizes, settings and inputs."""


def reference_of(base: Family, case: Case, port: Entry | None) -> tuple[Family, Loader]:
    """The reference's family (the base family, or the port in its transformer's place), and its loader."""
    family = base if port is None else Ported(base, port, "reference", expected=base.output_shape(case))
    return family, partial(load_reference, family)


def candidate_of(base: Family, case: Case, port: Entry | None, reference: Entry | None) -> tuple[Family, Loader]:
    """The candidate's family and its loader; without a port of its own the reference's, which torchax then runs."""
    if port is not None:
        own = Ported(base, port, "candidate", own=True, expected=base.output_shape(case))
        return own, partial(_load_port, own)
    if reference is not None:
        base = Ported(base, reference, "candidate", expected=base.output_shape(case))
    return base, partial(_load_own, base)


def _load_own(family: Family, case: Case, settings: Settings, inputs: Inputs) -> Loaded:
    """Load parity's own candidate: in torchax, or in torch on a device that is named."""
    if settings.backend == "torch":
        return dataclasses.replace(load_reference(family, case, settings, inputs), role="candidate")
    return _load_compiled(family, case, settings, inputs)


def _load_compiled(family: Family, case: Case, settings: Settings, inputs: Inputs) -> Loaded:
    try:
        from parity.paths.jax.candidate import load_candidate  # jax and torchax, only from here on
    except RuntimeError as error:
        raise UsageError(
            f"torchax cannot be imported here: {error}; `-c device=NAME` runs the candidate in torch, "
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps torch from loading another backend"
        ) from None

    return load_candidate(family, case, settings, inputs)


def _load_port(family: Ported, case: Case, settings: Settings, inputs: Inputs) -> Loaded:
    """Load a candidate's port as its `runs` says."""
    port = family.build(case, settings)
    if port.runs != "torch":
        check_extras()
    if port.runs == "jax":
        from parity.paths.port.jax_port import load_jax_port

        return load_jax_port(family, case, settings, inputs, port)
    family.keep(port)
    load = load_reference if port.runs == "torch" else _load_compiled
    side = load(family, case, settings, inputs)
    modules = {family.named(m): family.named(above) if above else "" for m, above in side.modules.items()}
    return dataclasses.replace(side, role="candidate", modules=modules)


def with_names(loop: Loop) -> Loop:
    """A loop whose side knows the names that it will be observed under; those that a JAX port taps show in a trace."""
    side = loop.side
    with side.backend.scope():
        found = side.backend.names(lambda: call_model(loop, 0, None))
    if found is None:
        return loop
    paths = dict.fromkeys([*side.modules, *sorted(found)], "")
    return dataclasses.replace(loop, side=dataclasses.replace(side, modules={p: nearest(p, paths) for p in paths if p}))
