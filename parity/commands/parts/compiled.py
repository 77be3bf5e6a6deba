"""A compiled candidate as a document: what does not fit first, then figures side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parity.paths.plan import LOOP_STAGE
from parity.report.document import Facts, Listing, Section, Table
from parity.tpu.compiled import Compiled, Made
from parity.tpu.effect import Effect
from parity.tpu.figures import Figures
from parity.tpu.products import grouped
from parity.tpu.refusal import size


def listing(made: Compiled) -> Listing:
    """The document of `parity compile`."""
    return Listing(_document(made), _sections(made))


def _document(made: Compiled) -> dict[str, Any]:
    request, answer = made.plain.request, made.plain.answer
    return {
        "format": 1,
        "compiles": not made.refused,
        "model": request.model,
        "port": request.port,
        "stage": request.stage,
        "calls": answer.calls,
        "topology": request.topology,
        "devices": answer.devices,
        "device": answer.kind,
        "versions": dict(answer.versions),
        "settings": dict(made.settings),
        "programs": [_program(one, name) for name, one in _named(made)],
        "observer_effect": _compared(made.observing, made.plain, made.observed),
        "against": _compared(made.changed, made.plain, made.against),
    }


def _named(made: Compiled) -> list[tuple[str, Made]]:
    named: list[tuple[str, Made | None]] = [
        ("unobserved", made.plain),
        ("observed", made.observed),
        ("against", made.against),
    ]
    return [(name, one) for name, one in named if one is not None]


def _program(made: Made, name: str) -> dict[str, Any]:
    found, refusal = made.figures, made.refusal
    common: dict[str, Any] = {
        "program": name,
        "sites": made.request.sites,
        "candidate": list(made.request.candidate),
        "compiles": refusal is None,
        "seconds": made.answer.seconds,
        "cached": made.answer.cached,
        "refusal": None,
    }
    if found is None:
        assert refusal is not None
        return {
            **common,
            "refusal": {
                "sentence": refusal.sentence,
                "memory": refusal.memory,
                "kernel": refusal.kernel,
                "module": refusal.module,
                "needed": refusal.needed,
                "limit": refusal.limit,
                "advice": refusal.advice,
                "said": refusal.said,
            },
        }
    memory = found.memory
    return {
        **common,
        "memory": {
            "arguments": memory.arguments,
            "temporaries": memory.temporaries,
            "output": memory.output,
            "code": memory.code,
            "aliased": memory.aliased,
            "total": memory.total,
            "limit": memory.limit,
        },
        "flops": found.flops,
        "bytes_accessed": found.accessed,
        "fusions": found.fusions[0],
        "product_fusions": found.fusions[1],
        "products": [
            {"module": module, "precision": precision, "count": count, "flops": flops}
            for module, precision, count, flops in grouped(found.products)
        ],
        "kernels": [{"kernel": k.name, "module": k.module, "count": k.count, "flops": k.flops} for k in found.kernels],
        "collectives": [{"kind": c.kind, "count": c.count, "bytes": c.bytes} for c in found.collectives],
        "roofline_estimate": {
            "seconds": found.roofline.seconds,
            "bound": found.roofline.bound,
            "products": found.roofline.products,
            "memory": found.roofline.memory,
            "links": found.roofline.links,
        },
    }


def _compared(effect: Effect | None, before: Made, after: Made | None) -> dict[str, Any] | None:
    if effect is None or before.figures is None or after is None or after.figures is None:
        return None
    ours, theirs = before.figures, after.figures
    return {
        "product_units": {
            "before": effect.before,
            "after": effect.after,
            "same": effect.same,
            "cut": sum(count for _, count in effect.cut),
        },
        "cut": [{"module": module, "count": count} for module, count in effect.cut],
        "changed": [{"module": module, "count": count} for module, count in effect.changed],
        "bytes_accessed_ratio": theirs.accessed / max(ours.accessed, 1),
        "extra_bytes_accessed": theirs.accessed - ours.accessed,
        "extra_temporaries": theirs.memory.temporaries - ours.memory.temporaries,
        "extra_code": theirs.memory.code - ours.memory.code,
    }


def _sections(made: Compiled) -> tuple[Section, ...]:
    request, answer = made.plain.request, made.plain.answer
    verdict = [("compiles", "yes" if not made.refused else "fail: the compiler refuses it")]
    verdict += [(f"{name} program", one.refusal.sentence) for name, one in _named(made) if one.refusal is not None]
    settings = ", ".join(f"{name}={text}" for name, text in made.settings.items()) or "the candidate's defaults"
    versions = ", ".join(f"{name} {version}" for name, version in answer.versions.items())
    where = [
        ("model", f"{request.model}, {_what(made.plain)}"),
        ("for", f"{request.topology}, {answer.devices} x {answer.kind}"),
        ("settings", settings),
        ("versions", versions),
    ]
    shown = [(name, one.figures) for name, one in _named(made) if one.figures is not None]
    sections: list[Section] = [Facts(tuple(verdict)), Facts(tuple(where))]
    if shown:
        sections += [_side_by_side(shown), _effects(made), _products(shown[0][1]), _kernels(shown[0][1])]
    return tuple(sections)


def _what(made: Made) -> str:
    """What is compiled, for people."""
    request, calls = made.request, made.answer.calls
    if request.stage == LOOP_STAGE:
        return f"{request.port or 'its transformer'}'s first call"
    return f"the largest of {calls} calls of its {request.stage}" if calls > 1 else f"one call of its {request.stage}"


def _side_by_side(shown: Sequence[tuple[str, Figures]]) -> Table:
    rows: list[tuple[str, ...]] = []
    parts = [_parts(f) for _, f in shown]
    rows += [(label, *(size(part[label]) for part in parts)) for label in parts[0]]
    rows.append(("of the chip's", *(size(f.memory.limit) for _, f in shown)))
    rows.append(("bytes accessed", *(f"{f.accessed / 1e9:.3g} GB" for _, f in shown)))
    rows.append(("flops", *(f"{f.flops:.3g}" for _, f in shown)))
    rows.append(("fusions, with a product", *(f"{f.fusions[0]}, {f.fusions[1]}" for _, f in shown)))
    kinds = dict.fromkeys(c.kind for _, f in shown for c in f.collectives)
    for kind in kinds:
        found = ({c.kind: c for c in f.collectives}.get(kind) for _, f in shown)
        rows.append((kind, *("none" if c is None else f"{c.count}, {size(c.bytes)}" for c in found)))
    rows.append(("estimate of the least time", *(_time(f) for _, f in shown)))
    return Table("A device's share", "figure", ("figure", *(name for name, _ in shown)), tuple(rows))


def _parts(found: Figures) -> dict[str, int]:
    """Memory by what holds it."""
    memory = found.memory
    return {
        "arguments": memory.arguments,
        "temporaries": memory.temporaries,
        "output": memory.output,
        "code": memory.code,
        "together": memory.total,
    }


def _time(found: Figures) -> str:
    line = found.roofline
    return f"{line.seconds * 1e3:.3g} ms, bound by {line.bound}"


def _effects(made: Compiled) -> Facts:
    rows = []
    for label, effect, after in (
        ("observer effect", made.observing, made.observed),
        ("other settings", made.changed, made.against),
    ):
        document = _compared(effect, made.plain, after)
        if effect is None or document is None:
            continue
        rows.append(
            (
                label,
                f"{effect.same} of {effect.before} units with a product unchanged"
                + _units("cut, the same operations", effect.cut)
                + _units("changed", effect.changed)
                + f", {document['bytes_accessed_ratio']:.2f} x the bytes accessed, "
                f"{_more(document['extra_temporaries'])} of temporaries, {_more(document['extra_code'])} of code",
            )
        )
    return Facts(tuple(rows))


def _units(what: str, by_module: Sequence[tuple[str, int]]) -> str:
    """Units in parentheses; nothing where there are none."""
    listed = ", ".join(f"{count} in {module or 'no module'}" for module, count in by_module)
    return f" ({what}: {listed})" if listed else ""


def _more(count: int) -> str:
    return f"{size(abs(count))} {'more' if count >= 0 else 'less'}"


def _products(found: Figures) -> Table:
    rows = tuple(
        (module or "(no module)", str(count), precision, f"{flops:.3g}")
        for module, precision, count, flops in grouped(found.products)
    )
    return Table("Products of the unobserved program", "module", ("module", "products", "precision", "flops"), rows)


def _kernels(found: Figures) -> Table:
    rows = tuple((k.name, k.module, str(k.count), f"{k.flops:.3g}" if k.flops else "unknown") for k in found.kernels)
    return Table("Kernels", "kernel", ("kernel", "module", "calls", "flops"), rows)
