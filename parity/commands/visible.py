"""`parity visible`: which kinds of faults a model and its inputs could show."""

from __future__ import annotations

from collections.abc import Sequence

from parity.commands.parts.options import Generation, InputsFile, Output, Reference
from parity.commands.parts.unfold import command
from parity.golden.strict import number
from parity.paths.worker.openers import Workers
from parity.report.document import Listing, Table
from parity.report.documents import machine
from parity.runs.visible import Seen
from parity.settings import parse


@command
def visible(
    generation: Generation, output: Output, inputs: InputsFile = None, reference: Reference | None = None
) -> None:
    """Plant known faults: which can this model and its inputs show?

    A kind that is hidden or absent here could be in a port, and a run would pass.
    """
    generation.require_one_input()
    settings = parse("torch", reference or [])
    with output.torch(torchax=False) as say, Workers() as openers:
        from parity.hooks.plant import KINDS
        from parity.runs.request import Request
        from parity.runs.visible import visible as look

        request = Request(
            generation.name,
            settings,
            settings,
            seed=generation.seed,
            stage1=generation.stage1,
            prompt=generation.prompt,
            inputs=inputs,
        )
        found = look(request, openers, say, tuple((kind.name, kind.meaning) for kind in KINDS))
    output.show(Listing(document(generation.name, found), (_table(found),)))


def document(model: str, found: Sequence[Seen]) -> machine.Visible:
    """What `parity visible --json` prints."""
    return {"format": 1, "model": model, "kinds": [_kind(seen) for seen in found]}


def _kind(seen: Seen) -> machine.Sight:
    d = seen.noise_pred
    return {
        "kind": seen.kind,
        "meaning": seen.meaning,
        "sight": seen.sight,
        "changed": seen.changed,
        "noise_pred": {"rel_l2": number(d.rel_l2), "floor": number(d.floor), "ratio": number(d.ratio)},
        "site": seen.site,
    }


def _table(found: Sequence[Seen]) -> Table:
    rows = tuple((s.kind, s.meaning, s.sight, _moved(s), s.site or "-") for s in found)
    columns = ("kind", "what a port does", "here", "noise_pred", "first output beyond its floor")
    hidden = [s.kind for s in found if s.sight == "hidden"]
    absent = [s.kind for s in found if s.sight == "absent"]
    said = [f"stay within their floors here: {', '.join(hidden)}"] if hidden else []
    said += [f"not in this model's calls: {', '.join(absent)}"] if absent else []
    foot = f"These inputs cannot show: {'; '.join(said)}." if said else ""
    return Table("Kinds of faults", "kind", columns, rows, foot=foot)


def _moved(seen: Seen) -> str:
    d = seen.noise_pred
    return "-" if seen.sight == "absent" else f"{d.rel_l2:.1e}, {d.ratio:,.3g} x its floor"
