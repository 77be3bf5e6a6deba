"""What a side stands on: the family of its model, a port in place of the family's transformer, and the loaded path."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from parity.errors import UsageError
from parity.golden.rename import Rename, decode_rename
from parity.golden.strict import MalformedError
from parity.hooks.sites import ATTENTION
from parity.models.registry import family_of, make_case, resolve_model
from parity.models.spec import Case, GenerationSpec
from parity.paths.inputs import Inputs
from parity.paths.loaded import Loaded
from parity.paths.loop import Loop
from parity.paths.port.inputs import PortInputs, case_of, inputs_of
from parity.paths.port.load import Entry
from parity.paths.port.ported import Ported
from parity.paths.reference import load_reference
from parity.settings import Settings


def reference_case(entry: Entry, settings: Settings, inputs: Path | None) -> tuple[PortInputs, Case]:
    """Inputs and sizes of a reference port without a model: it is built once to be asked for its inputs."""
    nothing = Case(entry.text, entry.path.parent, {}, GenerationSpec(), ())
    port = Ported(None, entry, "reference").build(nothing, settings)
    family = inputs_of(entry, port, inputs)
    return family, case_of(entry, family)


def base_of(
    model: str,
    settings: Settings,
    alone: Entry | None = None,
    prompt: str | None = None,
    inputs: Path | None = None,
) -> tuple[Any, Case]:
    """The family and the sizes that both sides of a run stand on: of a checkpoint, or of a reference port's own inputs.

    Args:
        settings: of the reference. alone: a reference port that no model stands behind. prompt: in place of the model's
            own. inputs: tensors by argument name.
    """
    if alone is not None:
        return reference_case(alone, settings, inputs)
    folder = resolve_model(model)
    spec = GenerationSpec.load(folder)
    if prompt is not None:
        spec = dataclasses.replace(spec, prompt=prompt)
    base = family_of(folder, inputs)
    return base, make_case(model, folder, spec, inputs)


def reference_family(base: Any, case: Case, port: Entry | None) -> Any:
    """The reference's family: the base family, or the port that stands in for its transformer."""
    return base if port is None else Ported(base, port, "reference", expected=base.output_shape(case))


def candidate_family(base: Any, case: Case, port: Entry | None, reference: Entry | None = None) -> Any:
    """The candidate's: without a port of its own that of the reference, which torchax then runs."""
    if port is not None:
        return Ported(base, port, "candidate", lambda rules: _named(port, rules), base.output_shape(case))
    return base if reference is None else Ported(base, reference, "candidate", expected=base.output_shape(case))


def load_candidate_side(family: Any, case: Case, settings: Settings, inputs: Inputs) -> Loaded:
    """Load the candidate: parity's own, or a port as its `runs` says."""
    from parity.paths.jax.candidate import load_candidate  # jax and torchax, only from here on

    if not isinstance(family, Ported):
        return load_candidate(family, case, settings, inputs)
    if family.renames is None:  # the reference port's own torch module, compiled
        return load_candidate(family, case, settings, inputs)
    port = family.build(case, settings)
    if port.runs == "jax":
        from parity.paths.port.jax_port import load_jax_port

        return load_jax_port(family, case, settings, inputs, port)
    family.keep(port)
    load = load_reference if port.runs == "torch" else load_candidate
    side = load(family, case, settings, inputs)
    modules = {family.named(m): family.named(above) if above else "" for m, above in side.modules.items()}
    return dataclasses.replace(side, role="candidate", modules=modules)


def with_names(loop: Loop) -> Loop:
    """A loop whose side knows the names that it will be observed under; those that a JAX port taps show in a trace."""
    if loop.side.backend.seen is None:
        return loop
    from parity.paths.port.jax_port import names_of

    return dataclasses.replace(loop, side=dataclasses.replace(loop.side, modules=names_of(loop)))


def _named(entry: Entry, rules: Mapping[str, str]) -> Callable[[str], str]:
    document = {"format": 1, "rules": [{"from": a, "to": b} for a, b in rules.items()]}
    try:
        rename: Rename = decode_rename(document)
    except MalformedError as error:
        raise UsageError(f"{entry.named}: `rename`: {error}") from None

    def named(path: str) -> str:
        found = rename.module(path)
        owner, _, last = path.rpartition(".")
        return f"{rename.module(owner)}.{ATTENTION}" if found == path and last == ATTENTION else found

    return named
