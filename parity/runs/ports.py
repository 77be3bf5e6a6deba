"""Making the sides of a pair of which one or both are a user's port."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.compare.reason import Note, Reason
from parity.compare.result import Check, Result, SiteDiff
from parity.errors import UsageError
from parity.golden.records import LOOP
from parity.golden.rename import Rename, decode_rename
from parity.golden.strict import MalformedError
from parity.hooks.sites import ATTENTION
from parity.models.registry import family_of, make_case, resolve_model
from parity.models.spec import Case, GenerationSpec
from parity.paths.inputs import Inputs
from parity.paths.loaded import Loaded
from parity.paths.loop import Loop
from parity.paths.port_inputs import PortInputs, case_of, inputs_of
from parity.paths.port_load import Entry, load_entry
from parity.paths.ported import Ported
from parity.paths.reference import load_reference
from parity.settings import Settings


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of a run.

    Attributes:
        reference, candidate: None for parity's own path. alone: whether there is no model behind the reference.
    """

    reference: Entry | None = None
    candidate: Entry | None = None
    alone: bool = False


NO_PORTS = Ports()


def ports_of(told: Mapping[str, Any]) -> tuple[str | None, Path | None, Ports]:
    """Model, file of inputs and ports of a kept run, from its request.json; one that names none had none.

    Raises:
        UsageError: a port that cannot be loaded any more, or was edited.
    """

    def text(name: str) -> str | None:
        return told[name] if isinstance(told.get(name), str) else None

    def entry(role: str) -> Entry | None:
        given = text(f"{role}_path")
        if given is None:
            return None
        found = load_entry(f"--{role}-path", given)
        if found.digest != text(f"{role}_code"):
            raise UsageError(
                f"'{found.file}' is no longer the port that was run: run it again with --out, then explain that"
            )
        return found

    reference = entry("reference")
    ports = Ports(reference, entry("candidate"), reference is not None and not text("model"))
    inputs = text("inputs")
    return (text("model") if ports != NO_PORTS else None), None if inputs is None else Path(inputs), ports


def reference_case(entry: Entry, settings: Settings, inputs: Path | None) -> tuple[PortInputs, Case]:
    """Inputs and sizes of a reference port without a model: it is built once to be asked for its inputs."""
    nothing = Case(entry.text, entry.file.parent, {}, GenerationSpec(), ())
    port = Ported(None, entry, "reference").build(nothing, settings)
    family = inputs_of(entry, port, inputs)
    return family, case_of(entry, family)


def base_of(
    model: str, settings: Settings, ports: Ports, prompt: str | None = None, inputs: Path | None = None
) -> tuple[Any, Case]:
    """The family and the sizes that both sides of a run stand on: of a checkpoint, or of a reference port's own inputs.

    Args:
        settings: of the reference. prompt: in place of the model's own. inputs: tensors by argument name.
    """
    if ports.alone and ports.reference is not None:
        return reference_case(ports.reference, settings, inputs)
    folder = resolve_model(model)
    spec = GenerationSpec.load(folder)
    if prompt is not None:
        spec = dataclasses.replace(spec, prompt=prompt)
    base = family_of(folder, inputs)
    return base, make_case(model, folder, spec, inputs)


def families(base: Any, case: Case, ports: Ports) -> tuple[Any, Any]:
    """The families of both sides: the base family, or the ports that stand in for its transformer."""
    expected = base.output_shape(case)
    ours = base if ports.reference is None else Ported(base, ports.reference, "reference", expected=expected)
    if ports.candidate is not None:

        def renames(rules: Mapping[str, str], entry: Entry = ports.candidate) -> Callable[[str], str]:
            return _named(entry, rules)

        return ours, Ported(base, ports.candidate, "candidate", renames, expected)
    if ports.reference is not None:
        return ours, Ported(base, ports.reference, "candidate", expected=expected)
    return ours, base


def load_candidate_side(family: Any, case: Case, settings: Settings, inputs: Inputs) -> Loaded:
    """Load the candidate: parity's own, or a port as its `runs` says."""
    from parity.paths.candidate import load_candidate  # jax and torchax, only from here on

    if not isinstance(family, Ported):
        return load_candidate(family, case, settings, inputs)
    if family.renames is None:  # the reference port's own torch module, compiled
        return load_candidate(family, case, settings, inputs)
    port = family.build(case, settings)
    if port.runs == "jax":
        from parity.paths.port_jax import load_jax_port

        return load_jax_port(family, case, settings, inputs, port)
    family.keep(port)
    load = load_reference if port.runs == "torch" else load_candidate
    side = load(family, case, settings, inputs)
    modules = {family.named(m): family.named(above) if above else "" for m, above in side.modules.items()}
    return dataclasses.replace(side, role="candidate", modules=modules)


def with_names(loop: Loop) -> Loop:
    """A loop whose side knows the names that it will be observed under; those that a JAX port taps show in a trace."""
    if not isinstance(loop.side.family, Ported) or not hasattr(loop.side.backend, "seen"):
        return loop
    from parity.paths.port_jax import names_of

    return dataclasses.replace(loop, side=dataclasses.replace(loop.side, modules=names_of(loop)))


def port_checks(*sides: Any) -> tuple[Check, ...]:
    """What is to be said of ports before they run: what they changed for the process, which was put back."""
    found = []
    for family in sides:
        if isinstance(family, Ported):
            said = [*(f"importing it {x}" for x in family.entry.said), *sorted(family.said)]
            detail = f"{family.entry.text}: " + ("; ".join(said) + "; put back" if said else "changed nothing outside")
            found.append(Check(f"{family.role} port", "explained" if said else "pass", detail))
    return tuple(found)


def require_common(result: Result, candidate: Loaded, modules: Mapping[str, str]) -> Result:
    """A port's result, unjudged where it passed although none of what it named is a site of the reference's.

    Args:
        modules: of the reference.
    """
    if not isinstance(candidate.family, Ported) or result.verdict != "pass" or any(map(_module_met, result.sites)):
        return result
    seen = sorted(getattr(candidate.backend, "seen", set(candidate.modules)))
    if not seen:
        note = "the port names no site: only noise_pred and latents were compared (parity.port.tap names more)"
        return dataclasses.replace(result, notes=(*result.notes, Note(note)))
    detail = f"it names {', '.join(seen[:4])}, the reference {', '.join([*modules][:4])}"
    return dataclasses.replace(
        result, verdict="unjudged", why=Reason(kind="unjudged", problem="no_site", detail=detail)
    )


def _module_met(d: SiteDiff) -> bool:
    return d.key.module not in ("", LOOP) and all(d.dtypes) and bool(d.dtypes)


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
