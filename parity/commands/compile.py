"""`parity compile`: the candidate's program for a TPU that is not here."""

from __future__ import annotations

from typing import Annotated

import typer

from parity.commands.options import Listed, Model, Port, command, settings_of
from parity.errors import UsageError
from parity.models.registry import DEFAULT_MODEL
from parity.paths.worker.extras import check_extras
from parity.report.document import Facts, Listing, Section, Table
from parity.settings import parse
from parity.tpu.compiler import Answer, Request, compile_candidate, topology as topology_of


@command
def compile(
    *,
    topology: Annotated[str, typer.Option(metavar="CHIP:AxB", help="TPU topology: v6e:2x4, v5e:2x2, v5p:2x2x1, ...")],
    model: Model = None,
    candidate: Annotated[list[str] | None, settings_of("candidate", "-c")] = None,
    port: Port = None,
    height: Annotated[
        int | None, typer.Option(min=1, help="Height of the video, pixels; default: the model's.")
    ] = None,
    width: Annotated[int | None, typer.Option(min=1, help="Width of the video, pixels; default: the model's.")] = None,
    frames: Annotated[int | None, typer.Option(min=1, help="Frames of the video; default: the model's.")] = None,
    output: Listed,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that the compiler may take.")] = 1800.0,
) -> int:
    """Compile for a TPU you do not have, and check that it fits.

    Also told: how exactly it multiplies. From configs alone; no weights are read. Exit code 0: it compiles, 1: the
    compiler refuses it, 2: bad input, 125: it could not be told.
    """
    settings = tuple(candidate or ())
    # A port's settings are known once its file is imported.
    if port is None and parse("torchax", settings).backend != "torchax":
        raise UsageError("parity compile compiles the torchax program, and device=... is torch's: leave it out")
    check_extras()
    sizes = {"height": height, "width": width, "frames": frames}
    request = Request(model=model or DEFAULT_MODEL, topology=topology, candidate=settings, port=port, **sizes)
    with output.working(f"compiling for {topology}"):
        answer = compile_candidate(request, timeout)
    output.show(listing(request, answer))
    return int(bool(answer.refusal))


def listing(request: Request, answer: Answer) -> Listing:
    """The document of `parity compile`."""
    _, limit = topology_of(request.topology)
    document = {
        "compiles": not answer.refusal,
        "refusal": answer.refusal,
        "model": request.model,
        "port": request.port,
        "topology": request.topology,
        "devices": answer.devices,
        "device": answer.kind,
        "versions": dict(answer.versions),
        "settings": dict(answer.settings),
        "seconds": answer.seconds,
        "memory": {**answer.memory, "total": answer.total, "limit": limit},
        "products": [{"module": m, "precision": p, "count": n} for m, p, n in answer.products],
        "kernels": [{"kernel": name, "count": count} for name, count in answer.kernels.items()],
    }
    said = [("the compiler", line) for line in answer.refusal.splitlines()]
    where = [
        ("model", request.port or request.model),
        ("for", f"{request.topology}, {answer.devices} x {answer.kind}"),
        ("settings", ", ".join(f"{n}={v}" for n, v in answer.settings.items()) or "the candidate's defaults"),
        ("versions", ", ".join(f"{name} {version}" for name, version in answer.versions.items())),
    ]
    verdict = "fail: the compiler refuses it" if answer.refusal else "yes"
    sections: list[Section] = [Facts((("compiles", verdict), *said)), Facts(tuple(where))]
    if answer.memory:
        parts = {**answer.memory, "together": answer.total, "of the chip's": limit}
        rows = tuple((name, f"{count / 2**20:,.1f} MiB") for name, count in parts.items())
        sections.append(Table("Memory of a device", ("part", "bytes"), rows))
        found = tuple((module or "(no module)", precision, str(n)) for module, precision, n in answer.products)
        sections.append(Table("Products", ("module", "precision", "products"), found))
    calls = tuple((name, str(count)) for name, count in answer.kernels.items())
    return Listing(document, (*sections, Table("Kernels", ("kernel", "calls"), calls)))
