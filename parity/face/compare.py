"""`parity.compare` and `parity.assert_parity`: two functions or modules, in the caller's own process.

    result = parity.compare(torch_block, jax_block, {"x": x, "temb": temb})
    parity.assert_parity(model, compiled, inputs)          # in a test: AssertionError with the verdict's card

The judge, the floors and the search for the origin are those of `parity run`; what a module of the reference computes
is its `module` for a port. Both sides share this process: what one patches in a library, the other meets; a port that
patches is compared by `parity run`, where each has a process of its own.

Cost. The reference as given, in float64 and perturbed (six calls of it), the candidate once or compiled and once; a
copy of the reference's weights in float64. Where either works in 16 bits the two checks double that; where the two
part in an attention call, both run once more for its values.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ParamSpec

from parity.causes.values import shown_by
from parity.compare import result as results
from parity.compare.attention import attention_causes
from parity.compare.metrics import MOST
from parity.compare.reason import Note, Reason
from parity.compare.result import Origin, SiteDiff
from parity.errors import InconclusiveError, ParityError
from parity.face.arguments import split
from parity.face.callables import Callee, callee, library_of
from parity.face.verbs import Result, Settings, checked, texts
from parity.floors import L2_LIMIT
from parity.paths.live import Host
from parity.paths.port.load import MODES, Modes, is_torchax
from parity.port import Layout, Runs
from parity.records import LOOP, Key, Record, StepRecords, is_attention
from parity.report.output import silent
from parity.runs import compare as runs_compare
from parity.runs.checks import ENDS_ALONE
from parity.runs.request import Checks, Ports, Request
from parity.runs.sides import Sink

P = ParamSpec("P")

_COMPARES = threading.RLock()
"""Held by the thread that compares: sides replace functions of libraries, torch's precision and torchax's operators,
which are of the whole process."""


@checked
def compare(
    reference: object,
    candidate: object,
    inputs: object,
    *,
    rename: Mapping[str, str] | None = None,
    runs: Runs | None = None,
    layout: Layout | None = None,
    sites: str = "blocks",
    values: tuple[str, ...] = (),
    checks: Checks | None = None,
    reference_settings: Settings | None = None,
    candidate_settings: Settings | None = None,
) -> Result:
    """Compare what two functions or modules compute for the same inputs.

    What each returns is compared at `:out`, a nest at `:out.0`, `:out.1.name` and so on, a dict's values in the order
    of their keys: arrays, the first whatever its shape, numbers and texts. The modules of both are, by their names.

    Args:
        reference: a torch module (observed module by module), a torch function, or a function of JAX's (its output
            alone). Its floors are measured here. candidate: the same, or a module moved to torchax, or a Flax NNX
            module. Either may be a `parity.port.Port`.
        inputs: keyword arguments as a mapping, positional ones as a tuple, or one array; of any library.
        rename: the candidate's module names in the reference's, as in `parity.port.Port`.
        runs: the library that runs the candidate, where it is not to be found out: `torchax` compiles a torch module.
        layout: `channels_last` where the candidate's arrays of the highest rank have their channels last.
        sites: `blocks`, `all` or a glob. values: globs of the sites whose values are kept.
        checks: `logic`, `precision` or `both`; by default both, but precision alone where one side's weights
            are already rounded to fewer bits than the other's, so that no cast brings their float32 values back, or the
            candidate's are arrays of 16 bits that a function of JAX's closes over, or it computes in 16 bits whatever
            it is given: modules of Flax NNX with a `dtype`, beside a reference in 16 bits any function of JAX's.
        reference_settings, candidate_settings: such as `{"dtype": "bfloat16"}`; by default each side's dtype is that
            of its weights.

    Raises:
        UsageError: one of the two cannot be called so; the message names the line of its file.
        InconclusiveError: a chosen site never fired.
    """
    nest, tensors = split(inputs)
    library = library_of(inputs)
    ours = callee(reference, nest, tensors, library, None, "reference")
    theirs = callee(candidate, nest, tensors, library, runs, "candidate")
    port = replace(theirs.port, rename=rename or theirs.port.rename, layout=layout or theirs.port.layout)
    may_trace = theirs.closes_over or "jit=false" not in texts(candidate_settings)
    halved = ours.dtype.itemsize == 2
    theirs = replace(theirs, port=port, fields=ours.fields, may_trace=may_trace, beside_16_bits=halved)
    openers = Host(first := ours.entry("reference"), second := theirs.entry("candidate"))
    ports = Ports(first.info, second.info, alone=True, openers=openers)
    settings = ports.settings(_texts(ours, reference_settings), _texts(theirs, candidate_settings))
    request = Request(
        ours.name,
        *settings,
        sites=sites,
        values=tuple(values),
        ports=ports,
        checks=checks or ("precision" if theirs.holds_16_bits else "both"),
    )
    kept, attended = _Kept(), _Kept()
    with _COMPARES, _torchax_off():
        found = runs_compare.compare(request, openers, silent, kept)
        if module := kept.attention(found):  # which its values say more of
            again = replace(request, sites=module, values=(module,))
            try:
                runs_compare.compare(again, openers, silent, attended)
            except ParityError as error:  # the verdict stands whatever a further call gives
                found = found.noted(f"what was done to the mask of {module} is not known: {error}")
    if checks is None and theirs.holds_16_bits:
        found = found.noted(OWN_DTYPE.format(CAST_HERE if theirs.closes_over else BUILT_HERE))
    if ours.padding is not None:
        found = found.noted(f"the padding of the text, {int(ours.padding.sum())} tokens, was not compared")
    return Result.of(without_loop(kept.with_causes(kept.with_outputs(found), attended)))


OWN_DTYPE = (
    "judged in its own dtype alone: the candidate holds or computes in 16 bits that nobody casts; {} "
    "its logic is judged in float32 too"
)
CAST_HERE, BUILT_HERE = "with weights given as `Port(call, weights=...)`", "built in float32"
"""A function that closes over its weights, and what computes in 16 bits whatever its weights are."""


@dataclass
class _Kept(Sink):
    """Keeps both sides' records of the last check, those of a closer look among them, for what they show."""

    ours: tuple[Record, ...] = ()
    theirs: tuple[Record, ...] = ()

    def step(self, reference: StepRecords, candidate: StepRecords) -> None:
        self.ours, self.theirs = tuple(reference.records), tuple(candidate.records)

    def closer(self, reference: StepRecords, candidate: StepRecords) -> None:
        self.ours, self.theirs = (*self.ours, *reference.records), (*self.theirs, *candidate.records)

    def with_outputs(self, found: results.Result) -> results.Result:
        """A pass that says something about all that the reference returns: some of it may be lost, nested otherwise, or
        empty."""
        ours, theirs = ({r.key.site: r for r in held if _is_output(r)} for held in (self.ours, self.theirs))
        if found.verdict != "pass" or not theirs:
            return found
        if len(theirs) < len(ours):
            detail = f"the reference returns {len(ours)} values, the candidate {len(theirs)}"
            return replace(found, verdict="fail", failed="logic", why=Reason(kind="output", detail=detail))
        if alone := [site for site in [*ours][1:] if site not in theirs]:  # the first is compared by any name
            detail = f"what they return is nested otherwise: the candidate's has no {alone[0].partition(':')[2]}"
            return found.unjudged(detail=detail)
        unlike = (d for d in found.sites if d.verdict == "not compared" and _is_returned(d.key))
        if (d := next(unlike, None)) is not None:
            shapes = " and the candidate ".join(str(list(shape)) for shape in d.shapes)
            detail = f"at {d.key.port} the reference returns {shapes}"
            return replace(found, verdict="fail", failed="logic", why=Reason(kind="output", detail=detail))
        if not any(math.prod(record.shape) for record in ours.values()):
            return found.unjudged(detail="what the reference returns is empty: nothing was compared")
        return found

    def attention(self, found: results.Result) -> str:
        """The attention call in which a divergence begins, if its values are few; else empty."""
        begins = found.origin.key if found.verdict == "fail" and found.origin is not None else None
        if begins is None or begins.is_input or not is_attention(begins.module):
            return ""
        sizes = (math.prod(r.shape) for r in self.ours if r.key.module == begins.module)
        return begins.module if max(sizes, default=0) <= MOST else ""

    def with_causes(self, found: results.Result, attended: _Kept) -> results.Result:
        """A failing comparison with what the values show where it begins.

        Args:
            attended: holds the values of the attention call in which it does, if they were looked at.
        """
        if found.origin is None:
            return found
        key = found.origin.key
        ours, theirs = ([replace(r, key=_key(r.key)) for r in side] for side in (attended.ours, attended.theirs))
        known = any(cause.at == key.site for cause in found.causes)
        if named := attention_causes(ours, theirs, key.module):  # which say more than what following tried
            others = (c for c in found.causes if c.at != key.site)
            return replace(found, causes=(*others, *(replace(c, at=key.site) for c in named)))
        return found if known else replace(found, causes=(*found.causes, *shown_by(key, self.ours, self.theirs)))


def _is_output(record: Record) -> bool:
    """Whether it is an array, or a number or text beside one, that the function returns."""
    return _is_returned(record.key) and not record.key.is_apart and record.kind != "none"


def _is_returned(key: Key) -> bool:
    return key.module == "" and not key.is_input


# --- without the loop that it was run in: no step, no branch, no noise_pred


OUTPUT = f"{LOOP}:noise_pred"
"""What the first array of a function's output is to a loop."""
GIVEN = Key("", -1, "", ":in.inputs")
"""What a function is called with."""


def without_loop(result: results.Result) -> results.Result:
    """The result in a function's own words: its tensors have no stage, step or branch, its output is `:out`."""
    output = next((site for site in result.sites if site.key.site == OUTPUT), None)
    modules = [site for site in result.sites if site.key.module != LOOP]
    own = next((site for site in modules if site.key.site in (":out", ":out.0")), None)
    if output is not None and (own is None or (own.verdict == "pass" and output.verdict != "pass")):
        # What is decided of the output, by its largest element too.
        key = output.key if own is None else own.key
        modules = [*(site for site in modules if site is not own), replace(output, key=key)]
    why = _reason(result.why)
    if own is not None and own.note and result.why.first is not None and result.why.first.site == OUTPUT:
        why = replace(why, note=own.note)  # in the shapes that it was returned in
    beyond = output is not None and output.verdict == "fail" and not output.distance.ratio <= L2_LIMIT
    known = [s for s in result.steps[:1] if s.bits_of and not math.isnan(s.bits)]
    bits = [Note(f"the output agrees in {s.bits:.1f} of {s.bits_of} bits") for s in known]
    return replace(
        result,
        why=why,
        origin=_origin(result.origin),
        sites=tuple(map(_site, modules)),
        closer=tuple(map(_site, result.closer)),
        causes=tuple(replace(c, cause=c.cause.replace(OUTPUT, "the output")) for c in result.causes),
        checks=tuple(replace(c, why=_reason(c.why), origin=_origin(c.origin), steps=()) for c in result.checks),
        steps=(),
        notes=(*(note for note in result.notes if ENDS_ALONE not in note.text), *(bits if beyond else ())),
    )


def _key(key: Key) -> Key:
    return Key("", -1, "", ":out" if key.site == OUTPUT else key.site, key.call)


def _site(site: SiteDiff) -> SiteDiff:
    return replace(site, key=_key(site.key))


def _origin(origin: Origin | None) -> Origin | None:
    return None if origin is None else replace(origin, key=_key(origin.key))


def _reason(why: Reason) -> Reason:
    first = None if why.first is None else _key(why.first)
    returned = first is not None and not first.module and not first.is_input
    after = (GIVEN,) if returned else tuple(map(_key, why.after))  # both sides are given the same
    return replace(
        why,
        first=first,
        after=tuple(key for key in after if key.module != LOOP),
        output=None if why.output is None else replace(why.output, port="output"),
        outputs_match=False,
        steps=0,
    )


# --- in a test


def _called_as(compared: Callable[P, Result]) -> Callable[[Callable[..., Result]], Callable[P, Result]]:
    """Gives a function the arguments of another."""
    return functools.wraps(compared, assigned=())


@_called_as(compare)
def assert_parity(*args: Any, **options: Any) -> Result:
    """`compare` for a test, with its arguments: returns the result of a pass.

    Raises:
        AssertionError: with the verdict's card, where the two differ or cannot be judged.
    """
    __tracebackhide__ = True
    try:
        result = compare(*args, **options)
    except InconclusiveError as error:
        raise AssertionError(f"no parity\nverdict: inconclusive\nreason: {error}") from None
    if not result.passed:
        raise AssertionError(f"no parity\n{result.card}")
    return result


def _texts(side: Callee, given: Settings | None) -> list[str]:
    """Settings as the command line takes them; without one the dtype is the side's own."""
    dtype = str(side.dtype).removeprefix("torch.")
    chosen = {"dtype": dtype, **(given or {})}
    return texts({name: x for name, x in chosen.items() if (name, x) != ("dtype", "float32")})


@contextlib.contextmanager
def _torchax_off() -> Iterator[None]:
    """Within it, torch is torch's own in this thread, as the reference needs it, though the script turned torchax on.
    After it the thread's modes are those before, and so is torchax's `enabled`, which is of the whole process."""
    with contextlib.ExitStack() as after:
        if (torchax := sys.modules.get("torchax")) is not None:
            env = torchax.default_env()
            after.callback(setattr, env, "enabled", env.enabled)
        for stack in MODES:
            after.callback(_hold, stack, before := stack.read())
            _hold(stack, [mode for mode in before if not is_torchax(mode)])
        yield


def _hold(stack: Modes, modes: Sequence[Any]) -> None:
    """Put these modes on a stack of this thread, in place of those that are there."""
    now = stack.read()
    if now == modes:
        return
    for mode in reversed(now):
        if is_torchax(mode):  # of which torch notes more than its place
            mode.__exit__(None, None, None)
        else:
            stack.pop()
    for mode in modes:
        if is_torchax(mode):
            mode.__enter__()
        else:
            stack.push(mode)
