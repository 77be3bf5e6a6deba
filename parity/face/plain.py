"""The comparison of two functions without the loop that it was run in: no step, no branch, no noise_pred."""

from __future__ import annotations

from dataclasses import replace

from parity.compare.births import L2_LIMIT
from parity.compare.reason import Note, Reason
from parity.compare.result import Origin, Result, SiteDiff
from parity.records import LOOP, Key

OUTPUT = f"{LOOP}:noise_pred"
"""What the first array of a function's output is to a loop."""
GIVEN = Key("", -1, "", ":in.inputs")
"""What a function is called with."""


def without_loop(result: Result) -> Result:
    """The result in a function's own words: its tensors have no stage, step or branch, its output is `:out`."""
    output = next((site for site in result.sites if site.key.site == OUTPUT), None)
    modules = [site for site in result.sites if site.key.module != LOOP]
    own = next((site for site in modules if site.key.site in (":out", ":out.0")), None)
    if output is not None and (own is None or (own.verdict == "pass" and output.verdict != "pass")):
        # What is decided of the output, by its largest element too.
        key = output.key if own is None else own.key
        modules = [*(site for site in modules if site is not own), replace(output, key=key)]
    beyond = output is not None and output.verdict == "fail" and not output.distance.ratio <= L2_LIMIT
    bits = [Note(f"the output agrees in {s.bits:.1f} of {s.bits_of} bits") for s in result.steps[:1] if s.bits_of]
    return replace(
        result,
        why=_reason(result.why),
        origin=_origin(result.origin),
        sites=tuple(map(_site, modules)),
        closer=tuple(map(_site, result.closer)),
        checks=tuple(replace(c, why=_reason(c.why), origin=_origin(c.origin), steps=()) for c in result.checks),
        steps=(),
        notes=(*result.notes, *(bits if beyond else ())),
    )


def _key(key: Key) -> Key:
    return Key("", -1, "", ":out" if key.site == OUTPUT else key.site, key.call)


def _site(site: SiteDiff) -> SiteDiff:
    return replace(site, key=_key(site.key))


def _origin(origin: Origin | None) -> Origin | None:
    return None if origin is None else replace(origin, key=_key(origin.key))


def _reason(why: Reason) -> Reason:
    first = None if why.first is None else _key(why.first)
    # Both sides are given the same inputs.
    after = (GIVEN,) if why.first is not None and why.first.site == OUTPUT else tuple(map(_key, why.after))
    return replace(
        why,
        first=first,
        after=tuple(key for key in after if key.module != LOOP),
        output=None if why.output is None else replace(why.output, port="output"),
        outputs_match=False,
        steps=0,
        together=tuple(map(_reason, why.together)),
    )
