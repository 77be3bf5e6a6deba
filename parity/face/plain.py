"""The comparison of two functions without the loop that it was run in: no step, no branch, no noise_pred."""

from __future__ import annotations

from dataclasses import replace

from parity.compare.reason import Note, Reason
from parity.compare.result import Origin, Result, SiteDiff
from parity.golden.records import LOOP, Key

OUTPUT = f"{LOOP}:noise_pred"
"""What the first array of a function's output is to a loop."""


def without_loop(result: Result) -> Result:
    """The result in a function's own words: its tensors have no stage, step or branch, its output is `:out`."""
    modules = tuple(site for site in result.sites if site.key.module != LOOP)
    seen = any(site.key.site.startswith(":out") for site in modules)
    outputs = (site for site in result.sites if site.key.site == OUTPUT and not seen)
    bits = next((f"the output agrees in {s.bits:.1f} of {s.bits_of} bits" for s in result.steps if s.bits_of), "")
    return replace(
        result,
        why=_reason(result.why),
        origin=_origin(result.origin),
        sites=tuple(map(_site, (*modules, *outputs))),
        closer=tuple(map(_site, result.closer)),
        checks=tuple(replace(c, why=_reason(c.why), origin=_origin(c.origin), steps=()) for c in result.checks),
        steps=(),
        notes=(*result.notes, *([Note(bits)] if bits and result.verdict == "fail" else [])),
    )


def _key(key: Key) -> Key:
    return Key("", -1, "", ":out" if key.site == OUTPUT else key.site, key.call)


def _site(site: SiteDiff) -> SiteDiff:
    return replace(site, key=_key(site.key))


def _origin(origin: Origin | None) -> Origin | None:
    return None if origin is None else replace(origin, key=_key(origin.key))


def _reason(why: Reason) -> Reason:
    return replace(
        why,
        first=None if why.first is None else _key(why.first),
        after=tuple(_key(key) for key in why.after if key.module != LOOP),
        output=None if why.output is None else replace(why.output, port="output"),
        outputs_match=False,
        steps=0,
        together=tuple(map(_reason, why.together)),
    )
