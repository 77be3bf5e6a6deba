"""The reference follows the candidate: each value as the reference makes it of the candidate's own values before it.

Problem. In the free run one ulp of an elementary function of a large argument (a phase of 4000 in a time embedding)
travels through every block, so floors there are hundreds of times what the sums and products of a block round by
themselves, and smaller errors pass. And behind a first fault everything differs, whether or not there is a second.

How. The candidate hands out what its modules give, and in a failing run what they are given too. The reference takes
the same step again; whenever it has made one of these values, it is compared and then gives way to the candidate's, so
that everything behind starts from the candidate's values. What is left at each value is what the code did that made
it: the module's own for an output, its caller's for an input. The runs that measure floors follow the same values, so
the floors are of that code alone. Nothing of the candidate is called or replaced: a port in JAX is seen as far as it
names its values.

A value of another shape is left alone: the reference makes its own of the candidate's values, and goes on from that.
So is one that cannot give way: what is not finite, a mask of another form that differs, and while nothing failed what
is far from the reference's own (`parity.paths.layout`), which is then another quantity or layout. What the same code
makes after that is not known to be made of the candidate's values, and is not judged; a call whose arguments all gave
way is. Rows that no valid token reads never count. Cost: five runs of the reference's step, one more for each known
fault that is tried, and a copy of what is held.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import operator
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils._pytree import tree_map

from parity.floors import L2_LIMIT
from parity.hooks.attach import exchanging
from parity.hooks.faults import ATTENTION_FAULTS, attention_with, faults_of
from parity.hooks.methods import replaced
from parity.hooks.tap import by_branch, single_output
from parity.hooks.torchtools import SDPA, Intercept, callable_modules, leaves, mapped, named_arguments, nearest
from parity.models import attention
from parity.paths.layout import CLOSE, Apart, Layout, is_exact, is_mask, is_new, is_none, of_part
from parity.paths.loaded import tensor
from parity.paths.loop import Around, Loop, Once, denoise
from parity.paths.plan import DOUBT, LEFT_ALONE, TURNED, UNREAD, Plan
from parity.paths.reference import TorchBackend
from parity.records import ATTENTION, LOOP_STAGE, Key, Record, StepRecords, any_block, caller_of, is_attention
from parity.transforms import ANOTHER, LEFT, OTHERWISE

Fate = Literal["followed", "same", "absent", "left"]
"""What becomes of a value: it gives way, it need not, the candidate does not hand it out, or it cannot give way."""

Listen = Callable[[TorchBackend, tuple[str, ...]], contextlib.AbstractContextManager[None]]
"""Who calls the model, and the branches of a call -> the context in which it is made."""

Walk = Callable[[Listen], None]
"""Takes the step, with each call of its model in that context."""


def take(loop: Loop | Once, step: int, around: Around, listen: Listen) -> None:
    """Take a step of the denoising loop, or of a stage outside it, with each call of its model in a context.

    Args:
        loop: before it. around: context of a step's calls.
    """
    backend = loop.side.backend
    assert isinstance(backend, TorchBackend)  # as every reference's is
    with around(step), replaced(backend, "listen", functools.partial(listen, backend)):
        next(denoise(loop, None, first=step, stop=step + 1))


def follow(truth: Walk, variants: Sequence[Walk], plan: Plan, stage: str, step: int) -> StepRecords:
    """One step of a reference that follows the values of a plan, with floors.

    Args:
        truth: what is followed by; it is walked once for each hypothesis too. variants: those that round otherwise.
        stage, step: of it.

    Returns:
        For each value that is judged, in execution order, a record with the reference's own moments, whose value is
        not the output but the norm of what the candidate's is apart, by row bin; floors likewise. Behind it a text of
        the same key that says what was done to it, where that is known; of modules that are alike of the first alone.
        Of a value in doubt a text alone, under `@DOUBT`: the modules that it shares with what differs before it. A text
        under `@TURNED` for a value that was left out since it stands in another order, as its neighbours do, and under
        `@UNREAD` for one that the candidate goes on without.
    """
    own = _followed(truth, plan)
    for variant in variants:
        variant(_Run(plan, own.held, own).listen)
    for constant, others in _constants(own):
        explain = functools.partial(_explained, own, constant, others)
        with contextlib.suppress(Exception):  # without it, nothing fits: no hypothesis
            truth(_Run(plan, own.held, own, constant, explain).listen)
    records, floors, named = [], {}, set[str]()
    judged = [*_by_themselves(own)]
    odd = _odd([one for one, shared in judged if not shared])
    for one, shared in judged:
        record = replace(one.record, key=replace(one.key, stage=stage, step=step))
        if shared:
            key = replace(record.key, site=f"{record.key.site}@{DOUBT}")
            records.append(Record(key, "scalar", dtype="str", value=", ".join(shared)))
            continue
        records.append(record)
        floors[record.key] = one.floor
        kind, words = any_block(one.key.site), ""
        if one.key in odd:
            words = OTHERWISE
        elif kind not in named and (words := one.words):
            named.add(kind)
        if words:
            records.append(Record(record.key, "scalar", dtype="str", value=words))
    turned = dict.fromkeys(k.site for k in own.turned if k not in own.held and k.module not in own.miscounted)
    sites = ((turned, TURNED), (own.unread, UNREAD), (own.unknown, LEFT_ALONE))
    marked = [f"{site}@{mark}" for found, mark in sites for site in found]
    records += [Record(Key(stage, step, "", site), "scalar", dtype="str", value="") for site in marked]
    return StepRecords(step, tuple(records), floors)


def _odd(judged: Sequence[Apart]) -> set[Key]:
    """Values of some blocks of whose difference much is left by what explains it in most of them."""
    far = defaultdict[str, list[Apart]](list)
    for one in judged:
        if one.far(L2_LIMIT):
            far[any_block(one.key.site)].append(one)
    odd = set[Key]()
    for same in far.values():
        usual, many = Counter(one.by for one in same).most_common(1)[0]
        if usual is not None and 1 < many > len(same) / 2:
            odd |= {one.key for one in same if one.by != usual and one.is_left_by(usual)}
    return odd


def _followed(truth: Walk, plan: Plan) -> _Run:
    """The run that follows all values that the reference's code can go on from."""
    given = held = {key: tensor(x) for key, x in plan.follow.items()}
    turned, straight = dict[Key, None](), set[str]()
    while True:
        own = _Run(plan, held, turned=turned, straight=straight)
        with _traced(own):
            truth(own.listen)
        if other := own.misread:
            held = {key: x for key, x in held.items() if key not in other}
        elif wrong := own.read_wrongly:  # their order is a fault
            straight |= wrong
            held = held | {key: given[key] for key in turned if caller_of(key.module) in wrong}
        else:
            break
    for kind in itertools.islice(dict.fromkeys(map(any_block, own.suspects)), SUSPECTS):
        sites = [site for site in own.suspects if any_block(site) == kind]
        while sites:  # until the reference goes on from its own values at just those that this explains
            rest = {key: x for key, x in held.items() if key.site not in sites}
            without = _Run(plan, rest, turned=turned, straight=straight, unread=[*own.unread, *sites])
            with _traced(without):
                truth(without.listen)
            explained = [site for site in sites if without.explains(own, site)]
            if explained == sites:
                own, held = without, rest
                break
            sites = explained
    return own


AS_STORED = 1e-4
"""Relative difference that tells nothing of whether a value behind was made of one that is stored in 16 bits, which
moves it by 1.7e-3 where it is."""
SUSPECTS = 8
"""Values, whatever their block, of which it is asked whether anything is made of them: a run of the step for each."""


UNDONE, UNDONE_IN_16_BITS = 1e-5, 1e-2
"""Relative distance of an attention's output up to which it undoes what was done to its inputs: some roundings."""


def _by_themselves(own: _Run) -> Iterator[tuple[Apart, list[str]]]:
    """What is judged, with the modules because of which it may be an earlier difference once more: it comes of a value
    of theirs that the candidate does not hand out, of which something else that differs was made, and nothing that
    agrees, or whose weights differ. The same site of several blocks is one difference, unless one block makes that
    value for the next.
    """
    right = defaultdict[str, int](int)
    for one in own.sites.values():
        if not (one.exact or one.far(L2_LIMIT)):  # an integer that agrees shows nothing of what was rounded to it
            right[one.key.branch] |= one.made_of
    doubtful: dict[str, set[_Operation]] = {}
    listed = set[tuple[str, str]]()
    for one in own.sites.values():
        if one.far(L2_LIMIT):
            branch, kind = one.key.branch, (one.key.branch, any_block(one.key.site))
            made_by = own.operations_of(one.made_of & ~right[branch])
            if weighed := {operation.module for operation in made_by} & own.plan.weighed - {one.key.module}:
                yield one, sorted(weighed)
                continue
            alike = {replace(operation, module=any_block(operation.module)) for operation in made_by}
            before = doubtful.setdefault(branch, set())
            again = _of_another_block(one.key.module, made_by) if kind in listed else before & alike
            if before and again and not one.key.is_input:  # of one value that several are handed, all say so
                yield one, sorted({operation.module for operation in before & alike} or {one.key.module})
                continue
            if kind not in listed or not before:  # the same code in another block puts nothing else in doubt
                before |= alike
            listed.add(kind)
        yield one, []


@dataclass(frozen=True, slots=True)
class _Operation:
    """What a module does in a call: which of its operations, and which of the tensors that this gave."""

    module: str
    number: int
    output: int


def _of_another_block(module: str, made_by: Iterable[_Operation]) -> bool:
    """Whether a value of a block is made of what another block computes and does not hand out."""
    kind, own = f"{any_block(module)}.", f"{module}."
    made_in = {f"{operation.module}." for operation in made_by}
    return any(any_block(path).startswith(kind) and not path.startswith(own) for path in made_in)


_STEPS_OF = "_parity_made_of"
"""Attribute of a tensor: bits, one for each operation that it was made by since the candidate's values stood there."""
_LEFT = 1
"""The bit of what comes of a value that the candidate has otherwise: it is not known to be made of the candidate's."""


def _traced(run: _Run) -> contextlib.AbstractContextManager[object]:
    """Within it, tensors know by which operations they were made, where that is asked for."""

    def handle(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        name, given = getattr(func, "__name__", ""), [x for _, x in leaves((args, kwargs), "")]
        # What a cast to its own dtype gives is what it was given: nothing was made.
        same = set() if name.endswith("_") else {id(x) for x in given}
        made = [x for _, x in leaves(out, "") if isinstance(x, torch.Tensor) and id(x) not in same]
        made = [args[0]] if name == "__setitem__" else made
        if made and name != "__set__":
            given = [] if _FRESH.match(name) else [x for x in given if isinstance(x, torch.Tensor)]
            steps = functools.reduce(operator.or_, map(_made_of, given), 0)
            for x, bit in zip(made, [*run.operation(len(made))], strict=True):
                setattr(x, _STEPS_OF, steps if _is_same(x, given, name) else steps | bit)
        return out

    return Intercept(handle) if run.plan.far else contextlib.nullcontext()


_FRESH = re.compile(r".*_like|new_.*")
"""Functions that take of a tensor its shape, dtype and device alone."""


def _is_same(x: torch.Tensor, given: Sequence[torch.Tensor], name: str) -> bool:
    """Whether it is all of a tensor that was given, in another shape: as `x.T` or `x[:, None]`."""
    written = name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))
    memory = None if written else _memory(x)
    return memory is not None and any(_memory(y) == memory for y in given if y.numel() == x.numel())


def _memory(x: torch.Tensor) -> int | None:
    """Where a tensor's values lie; None for one without a memory of its own, as a subclass or within `torch.vmap`."""
    if type(x) not in (torch.Tensor, torch.nn.Parameter):
        return None
    try:
        return x.untyped_storage().data_ptr()
    except NotImplementedError:
        return None


def _made_of(x: torch.Tensor) -> int:
    return int(getattr(x, _STEPS_OF, 0))


_EPSILONS = (1e-6, 1e-5, 1e-8, 1e-3, 1e-12)
_ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),  # JAX's own gelu
    "gelu_quick": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,
}
_CONSTANTS: Mapping[str, tuple[float | str | None, ...]] = {
    "eps": _EPSILONS, "variance_epsilon": _EPSILONS, "activation": (*_ACTIVATIONS,), "bias": (None,),
    "attention": (*ATTENTION_FAULTS,),
}  # fmt: skip
"""Attribute of a norm or a layer, or what a module's code calls -> what frameworks, models and faults have there."""

_Constant = tuple[str, float | str | tuple[str, str] | None]
"""An attribute, and what all modules have there that have it; an activation and what stands for it; a fault of an
attention; or `_WITHOUT` and the modules that are left out."""
_WITHOUT = "without"
LEFT_OUT = 4
"""Modules that are left out, one after the other: a run of the step for each."""


def _constants(own: _Run) -> Iterator[tuple[_Constant, str]]:
    """What may explain values that are far, as long as nothing does: other constants of the modules that made them, and
    what those have."""
    judged = {one.key.module for one in own.sites.values() if not one.key.is_input}

    def makers() -> dict[str, None]:
        left = [one for one in own.sites.values() if one.far() and not one.said]
        made_by = (operation.module for one in left for operation in own.operations_of(one.made_of))
        return dict.fromkeys((*made_by, *(one.key.module for one in left if not one.key.is_input)))

    for name, values in _CONSTANTS.items():
        off = makers()
        of = {path: path if path in off or path in judged else nearest(path, judged) for path in own.constants}
        there = {x[name] for path, x in own.constants.items() if name in x and of[path] in off}
        for value in own.faults if name == "attention" else values:
            if name == "activation":
                yield from (((name, (str(called), str(value))), str(called)) for called in sorted(there - {value}))
            elif others := sorted(map(str, there - {value})):
                yield (name, value), " and ".join(others)
    kinds = defaultdict[str, list[str]](list)
    for path in own.alike:
        kinds[any_block(path)].append(path)
    inside = (any_block(path) for path in makers() if path in own.alike)
    for kind in itertools.islice(dict.fromkeys(inside), LEFT_OUT):
        places = zip(*(path.split(".") for path in kinds[kind]), strict=True)
        yield (_WITHOUT, kind), ".".join(names[0] if len({*names}) == 1 else "*" for names in places)


def _explained(run: _Run, constant: _Constant, others: str, one: Apart, rows: torch.Tensor) -> None:
    """Say that a value was made with a constant, where it was: not with its own module's, or those of others inside;
    or without those others."""
    name, value = constant
    if name == _WITHOUT:
        module = one.key.module
        own = not one.key.is_input and module in run.alike and any_block(module) == value
        one.explain(rows, f"made without {'it' if own else others}", constant)
        return
    made_by = {} if one.key.is_input else run.constants.get(one.key.module, {})
    how = f"{name}={value}, not {made_by.get(name, others)}"
    how = f"{name}={value[1]}, not {value[0]}" if isinstance(value, tuple) else how
    one.explain(rows, f"made with {f'an attention {value}' if name == 'attention' else how}", constant)


@dataclass
class _Call:
    """A call of a module that has not ended. `known`: whether all that its code has had so far is the candidate's.
    `operations`: how many it has made."""

    path: str
    number: int
    known: bool
    operations: int = 0


@dataclass
class _Run:
    """A step of which each value gives way to the one that is followed.

    Attributes:
        plan: how values are followed. held: the candidate's, as `Plan.follow` has them. An empty one of bools stands
            for None, any other empty one for what could not be handed out.
        like: the reference's own run, for one that measures floors; None for that run itself.
        constant: another that modules have in it. take: what becomes of rows that stand beside the reference's own.
        constants: of each module, by attribute. faults: of an attention, that change something in one of its calls.
        alike: norms, activations and the like, whose outputs are shaped as their inputs are.
        sites: what is judged, each part of a value's rows (`of_part`). operations: what each bit of `Apart.made_of`
            is, `_LEFT` the first. fates: of each value. counts: calls of each module.
        unread: sites of values that are left out, as the candidate goes on without them.
        turned: values that are the reference's in another order. attends: modules that make a call of
            attention, whose queries and keys may lie otherwise together. straight: those of them where that is a fault.
        unknown: sites that are held and not judged, as they are not known to be made of the candidate's values.
        own_ways: attention calls, and which they are, whose inputs are the candidate's own business.
        called: inputs of modules that have no others, and the candidate's of another name that stand for them.
        _branches: of the call of the model. _layouts: where rows lie, by branch. _open: calls, innermost last.
    """

    plan: Plan
    held: Mapping[Key, torch.Tensor]
    like: _Run | None = None
    constant: _Constant | None = None
    take: Callable[[Apart, torch.Tensor], None] = Apart.widen
    constants: dict[str, Mapping[str, float | str]] = field(default_factory=dict)
    faults: dict[str, None] = field(default_factory=dict)
    alike: set[str] = field(default_factory=set)
    sites: dict[Key, Apart] = field(default_factory=dict)
    operations: list[_Operation] = field(default_factory=lambda: [_Operation("", 0, 0)])
    fates: dict[Key, Fate] = field(default_factory=dict)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    turned: dict[Key, None] = field(default_factory=dict)
    attends: set[str] = field(default_factory=set)
    straight: Collection[str] = frozenset()
    unread: Sequence[str] = ()
    unknown: dict[str, None] = field(default_factory=dict)
    own_ways: set[tuple[str, int]] = field(default_factory=set)
    called: dict[Key, Key] = field(default_factory=dict)
    _branches: tuple[str, ...] = ()
    _layouts: dict[str, Layout] = field(default_factory=dict)
    _open: list[_Call] = field(default_factory=list)

    def operation(self, outputs: int) -> Iterator[int]:
        """The bits of an operation's outputs, which the innermost module that is being called makes."""
        call = self._open[-1] if self._open else _Call("", 0, known=False)
        call.operations += 1
        for i in range(outputs):
            yield 1 << len(self.operations)
            self.operations.append(_Operation(call.path, call.operations, i))

    def operations_of(self, bits: int) -> list[_Operation]:
        """What some bits are."""
        return [operation for i, operation in enumerate(self.operations) if bits >> i & 1]

    @property
    def misread(self) -> set[Key]:
        """Values that the reference's code cannot go on from: their module is called another number of times, so that
        nobody knows which call is which, or beside those of another module they are the reference's in another order,
        as queries and keys may both lie: whether that is a fault shows where they are read."""
        values = {key.site if is_attention(key.module) else key.module for key in self.turned}
        around = Counter(caller_of(value.partition(":")[0]) for value in values)
        may_turn = {module for module, many in around.items() if many > 1} & self.attends - set(self.straight)
        turned = {key for key in self.turned if caller_of(key.module) in may_turn}
        turned |= self._other_things
        return {key for key in self.held if key in turned or key.module in self.miscounted}

    @property
    def _other_things(self) -> set[Key]:
        """Inputs with another name that are far off although their module's output on them is not the candidate's: one
        side has an activation before a projection, the other in it."""
        near: dict[Key, bool] = {}
        made: dict[tuple[str, str, int], bool] = {}
        for at, one in self.sites.items():
            key, call = replace(at, site=at.site.partition("@")[0]), (at.branch, at.module, at.call)
            near[key] = near.get(key, True) and one.near(torch.float32)
            if not at.is_input:
                made[call] = made.get(call, True) and near[key]
        far = (key for key in self.called if not near.get(key, True))
        return {self.called[key] for key in far if not made.get((key.branch, key.module, key.call))}

    @property
    def miscounted(self) -> set[str]:
        """Modules that the candidate names another number of calls of than the reference makes."""
        theirs: dict[tuple[str, str], int] = {}
        for key in self.plan.follow:
            at = key.branch, key.module
            theirs[at] = max(theirs.get(at, 0), key.call + 1)
        return {at[1] for at, count in theirs.items() if at in self.counts and self.counts[at] != count}

    @property
    def suspects(self) -> list[str]:
        """Outputs that are another thing than the reference's, or faulty: while what is judged next is far off too, as
        the candidate may give a name to more than the reference does, to a norm with its modulation; or merely stored
        in 16 bits, as what the reference's caller casts may be named behind the cast."""

        def far(places: Iterable[Key]) -> bool:
            return self.plan.far and any(self.sites[at].apart > ANOTHER * self.sites[at].norm for at in places)

        sites = (site for site, own, after in self._with_next() if (far(own) and far(after)) or self._is_stored(own))
        return [*dict.fromkeys(site for site in sites if site.partition(":")[0] and ":in." not in site)]

    def _is_stored(self, places: Iterable[Key]) -> bool:
        return all(self.sites[at].is_stored for at in places)

    def explains(self, own: _Run, site: str) -> bool:
        """Whether next to nothing is left of what differs behind a site in this run, whose reference goes on from its
        own value there, and not from the candidate's; or where that was stored alone, nothing new anywhere."""
        behind = [(places, after) for place, places, after in own._with_next() if place == site]
        after = {at for _, places in behind for at in places}
        if not after or not after <= self.sites.keys():
            return False
        if all(own._is_stored(places) for places, _ in behind):
            itself = {at for places, _ in behind for at in places}
            most = {at: 2 * one.apart + AS_STORED * one.norm for at, one in own.sites.items() if at not in itself}
            return all(one.apart <= most.get(at, math.inf) for at, one in self.sites.items())
        before = sum(own.sites[at].apart for at in after)
        return 0.0 < before < math.inf and sum(self.sites[at].apart for at in after) <= LEFT * before

    def _with_next(self) -> Iterator[tuple[str, list[Key], list[Key]]]:
        """The site of what is judged, its parts, and those of what is judged next of another module."""
        places: dict[tuple[str, str, int], list[Key]] = {}
        for at in self.sites:
            places.setdefault((at.branch, at.site.partition("@")[0], at.call), []).append(at)
        for branch in dict.fromkeys(place[0] for place in places):
            of_branch = [(site, own) for (other, site, _), own in places.items() if other == branch]
            for (site, own), (behind, after) in itertools.pairwise(of_branch):
                if site.partition(":")[0] != behind.partition(":")[0]:
                    yield site, own, after

    @property
    def read_wrongly(self) -> set[str]:
        """Modules in which values in another order were left out, and an input that comes of them is far off."""
        left = {key.module for key in self.turned if key not in self.held}
        inputs = (one for one in self.sites.values() if one.key.is_input and not one.near(torch.float32))
        made_by = (operation.module for one in inputs for operation in self.operations_of(one.made_of))
        return {caller_of(module) for module in made_by if module in left} - set(self.straight)

    @contextlib.contextmanager
    def listen(self, side: TorchBackend, branches: tuple[str, ...]) -> Iterator[None]:
        """See `Walk`."""
        self._branches, self._open = branches, []
        self.attends |= {name.rpartition(".")[0] for name in side.ran}
        self._layouts = {branch: Layout(side, branch, self.plan.own_order) for branch in branches}
        with contextlib.ExitStack() as hooks:
            for path, module in callable_modules(side.model).items():
                own = ((name, x) for name, x in vars(module).items() if name in _CONSTANTS)
                biased = {"bias": "its own"} if module._parameters.get("bias") is not None else {}
                self.constants[path] = biased | {name: x for name, x in own if isinstance(x, float)}
                if self.constant is not None and self.constant[0] in self.constants[path]:
                    hooks.enter_context(replaced(module, *self.constant))
                if self.like and path in self.like.alike and self.constant == (_WITHOUT, any_block(path)):
                    hooks.enter_context(module.register_forward_hook(lambda module, args, out: args[0]))
                begin, end = functools.partial(self._given, path), functools.partial(self._made, path)
                hooks.enter_context(module.register_forward_pre_hook(begin, with_kwargs=True))
                hooks.enter_context(module.register_forward_hook(end, always_call=True))
            hooks.enter_context(Intercept(self._called, only=(F.gelu, F.silu, SDPA)))
            if self.constant is not None and self.constant[0] == "attention":  # whose faults are of torch's function
                hooks.enter_context(replaced(attention, "flex", attention.in_chunks))
            if self.plan.far:
                hooks.enter_context(exchanging(self._attended))
            yield

    def _called(self, func: Callable[..., torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An activation or an attention that is called, or what is tried in its place."""
        own = {F.silu: "silu", SDPA: "its own"}.get(func, f"gelu{'_tanh' * (kwargs.get('approximate') == 'tanh')}")
        kind, path = "attention" if func is SDPA else "activation", self._open[-1].path if self._open else ""
        self.constants[path] = {**self.constants.get(path, {}), kind: own}
        tried, value = self.constant or ("", None)
        if func is SDPA and self.like is None:
            self.faults |= dict.fromkeys(faults_of(args, kwargs, self.faults))
        if tried == kind == "attention":
            return attention_with(str(value), args, kwargs)
        if tried == kind and isinstance(value, tuple) and value[0] == own:
            return _ACTIVATIONS[value[1]](args[0] if args else kwargs["input"])
        return func(*args, **kwargs)

    def _given(self, path: str, module: torch.nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Hook of a module whose call begins: its arguments, as far as they give way; None to keep them."""
        number, named = self.counts[self._branches[0], path], named_arguments(module, args, kwargs)
        self.counts.update((branch, path) for branch in self._branches)
        for branch in self._branches if not any(module.children()) else ():  # what it gives shows what it was given
            self._pair(branch, path, number, named)
        seen: dict[str, dict[str, tuple[torch.Tensor, torch.Tensor | None]]] = {branch: {} for branch in self._branches}
        for name, x in named.items():
            for branch, piece in by_branch(self._branches, x) if isinstance(x, torch.Tensor) else ():
                seen[branch][name] = piece, self._other(branch, f"{path}:in.{name}", number)
        for branch, given in seen.items():
            self._layouts[branch].see(path, given)
        caller = self._open[-1] if self._open else None
        changed: dict[int, torch.Tensor] = {}
        fates = set[Fate]()
        for name, value in named.items():
            for port, x in leaves(value, f"in.{name}"):
                if isinstance(x, torch.Tensor):
                    if caller is None:
                        setattr(x, _STEPS_OF, 0)  # the model's arguments are compared: what made them is no operation
                    fate, new = self._value(f"{path}:{port}", number, x, caller is not None and caller.known)
                    changed |= {} if new is x else {id(x): new}
                    fates |= {fate}
                elif x is None and self.plan.far:
                    others = ((self._other(at, f"{path}:{port}", number), both.values()) for at, both in seen.items())
                    fates |= {"left"} if any(is_new(port, other, given) for other, given in others) else set()
                elif any(isinstance(held, torch.Tensor) for held in getattr(x, "__dict__", {}).values()):
                    fates |= {"absent"}  # an object that only its module can read
        inherited = caller is None or caller.known
        known = not self.plan.far or ("left" not in fates and (inherited or "absent" not in fates))
        self._open.append(_Call(path, number, known))
        return (_swapped(args, changed), _swapped(kwargs, changed)) if changed else None

    def _other(self, branch: str, site: str, number: int) -> torch.Tensor | None:
        """The candidate's value."""
        key = Key(LOOP_STAGE, 0, branch, site, number)
        return self.held.get(self.called.get(key, key))

    def _pair(self, branch: str, path: str, number: int, named: Mapping[str, Any]) -> None:
        """Of a call that both sides give one tensor, take the candidate's for the reference's, whatever its name."""
        given = (leaf for name, value in named.items() for leaf in leaves(value, f"in.{name}"))
        own = [Key(LOOP_STAGE, 0, branch, f"{path}:{port}", number) for port, x in given if isinstance(x, torch.Tensor)]
        others = self._given_to.get((branch, path, number), [])
        if len(own) == len(others) == 1 and own != others and "mask" not in f"{own[0].port} {others[0].port}":
            self.called[own[0]] = others[0]

    @functools.cached_property
    def _given_to(self) -> Mapping[tuple[str, str, int], list[Key]]:
        """By branch, module and call, the tensors that the candidate is given there."""
        found = defaultdict[tuple[str, str, int], list[Key]](list)
        for key, x in self.held.items():
            if key.is_input and not is_none(x):
                found[key.branch, key.module, key.call].append(key)
        return found

    def _made(self, path: str, module: torch.nn.Module, args: Any, output: Any) -> Any:
        """Hook of a module whose call has ended: its output, as far as it gives way; None to keep it."""
        call = self._open.pop()
        changed: dict[int, torch.Tensor] = {}
        for port, x in leaves(single_output(output), "out"):
            if not isinstance(x, torch.Tensor) or is_exact(x):
                continue  # chosen of floats, as by top-k, they may differ, or stand elsewhere, in a right port
            fate, new = self._value(f"{path}:{port}", call.number, x, call.known)
            changed |= {} if new is x else {id(x): new}
            if _may_be_left_out(module, args, x):
                self.alike.add(path)
            if self.plan.far and fate != "followed" and (fate == "left" or not call.known):
                setattr(x, _STEPS_OF, _made_of(x) | _LEFT)  # whatever is made of it, in the caller's code too
        return _swapped(output, changed) if changed else None

    def _attended(self, compute: Callable[..., torch.Tensor], tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """An attention call: query, key and value, then its output, as far as they give way."""
        caller = self._open[-1] if self._open else _Call("", 0, known=True)
        path = f"{caller.path}.{ATTENTION}".removeprefix(".")
        self.constants[path] = {"attention": "its own"}
        number = self.counts[self._branches[0], path]
        self.counts.update((branch, path) for branch in self._branches)
        if self.like is None and self._is_own_way(path, number, tensors, compute(*tensors)):
            self.own_ways.add((path, number))
        fates, given, lost = set[Fate](), [*tensors], False
        ports = ("in.query", "in.key", "in.value") if (path, number) not in (self.like or self).own_ways else ()
        for i, port in enumerate(ports):
            fate, given[i] = self._value(f"{path}:{port}", number, tensors[i], caller.known)
            fates.add(fate)
            lost |= fate == "left" and not self._is_finite(f"{path}:{port}", number)
        # What cannot stand there, as repeated keys, is made of values that gave way: it is a value in between.
        known = not lost and (caller.known or fates <= {"followed", "same"})
        self._open.append(_Call(path, number, known))
        out = compute(*given)
        self.faults = self.faults or dict.fromkeys(ATTENTION_FAULTS)  # of parity's own nobody knows
        self._open.pop()
        fate, new = self._value(f"{path}:out", number, out, known)
        if fate != "followed" and not known:
            setattr(new, _STEPS_OF, _made_of(new) | _LEFT)
        return new

    def _is_finite(self, site: str, number: int) -> bool:
        others = (self._other(branch, site, number) for branch in self._branches)
        return all(other is None or bool(torch.isfinite(other).all()) for other in others)

    def _is_own_way(self, path: str, number: int, tensors: Sequence[torch.Tensor], out: torch.Tensor) -> bool:
        """Whether the candidate gives an attention call something else and has the same of it, as of queries that are
        scaled before: then its inputs are its own business."""

        def apart(port: str, x: torch.Tensor) -> tuple[float, bool]:
            """How far the rows that count are, relatively, and whether the candidate has them in 16 bits."""
            found, narrow = list[float](), False
            for branch, piece in by_branch(self._branches, x):
                layout, other = self._layouts[branch], self._other(branch, f"{path}:{port}", number)
                placed = None if other is None else layout.placed(path, port, piece, other)
                if other is None or placed is None:
                    return math.inf, False
                narrow = other.dtype.itemsize == 2
                parts = layout.apart(Key(LOOP_STAGE, 0, branch, f"{path}:{port}"), piece, placed, other.dtype)
                found += [one.apart / max(one.norm, 1e-30) for one in parts.values()]
            return max(found, default=math.inf), narrow

        given = [apart(f"in.{name}", x)[0] for name, x in zip(("query", "key", "value"), tensors, strict=True)]
        far, narrow = apart("out", out)
        return far <= (UNDONE_IN_16_BITS if narrow else UNDONE) and any(CLOSE < x < math.inf for x in given)

    def _value(self, site: str, number: int, x: torch.Tensor, known: bool) -> tuple[Fate, torch.Tensor]:
        """What becomes of a value, and what stands in its place.

        Args:
            known: whether all that its code has had so far is the candidate's.
        """
        pieces, judged = by_branch(self._branches, x), known and not _made_of(x) & _LEFT
        given = [self._piece(branch, site, number, piece, judged) for branch, piece in pieces]
        fates = {fate for fate, _ in given}
        worst = next(fate for fate in ("left", "absent", "same", "followed") if fate in fates)
        if all(new is old for (_, new), (_, old) in zip(given, pieces, strict=True)):
            return worst, x
        other = given[0][1] if pieces[0][1] is x else torch.cat([new for _, new in given])
        setattr(other, _STEPS_OF, 0)
        return worst, other

    def _piece(self, branch: str, site: str, number: int, x: torch.Tensor, judged: bool) -> tuple[Fate, torch.Tensor]:
        """The same of a branch."""
        key, other = Key(LOOP_STAGE, 0, branch, site, number), self._other(branch, site, number)
        if other is None:
            return "absent", x
        layout, (module, _, port) = self._layouts[branch], site.partition(":")
        placed = layout.placed(module, port, x, other)
        if self.like is None:
            self.fates[key] = self._fate(layout, key, x, other, placed, judged)
        fate = (self.like or self).fates.get(key, "left")
        if fate != "followed" or placed is None:
            return fate, x
        judged_before = {} if self.like is None else self.like.sites
        for part in layout.parts(module, port, x) if judged_before else ():
            if one := judged_before.get(of_part(key, part)):
                self.take(one, layout.rows(module, part, x))
        # What is not finite lies in rows that nothing reads: it would not stay there.
        return fate, placed if is_mask(port, x) else torch.where(torch.isfinite(placed), placed, x)

    def _fate(
        self, layout: Layout, key: Key, x: torch.Tensor, other: torch.Tensor, placed: torch.Tensor | None, judged: bool
    ) -> Fate:
        """Whether the reference's own value gives way; what is judged of it is taken in."""
        found: dict[Key, Apart] = {}
        if is_mask(key.port, x):
            masks = layout.masks(key, x, other)
            if masks is not None and torch.equal(*masks) and (placed is None or layout.elsewhere):
                return "same"
            if masks is not None and not torch.equal(*masks):
                ours, theirs = (mask.float() for mask in masks)
                apart, counts = Apart.of(key, ours, theirs), [int(mask.sum()) for mask in masks]
                others = f"the reference's {counts[0]}" if counts[0] != counts[1] else "others than the reference's"
                apart.said = f"the candidate's lets {counts[1]} keys through, {others}"
                found[key] = apart
        elif placed is not None and (not is_exact(x) or (self.plan.far and "mask" not in key.port)):
            found = layout.apart(key, x, placed, other.dtype)
            lies = self.plan.lies.get(key.module)
            if lies and found and all(x.is_turned(other.dtype, lies) for x in found.values()):
                return "absent"
            if self.plan.far and found and all(x.is_turned(other.dtype) for x in found.values()):
                self.turned[self.called.get(key, key)] = None
            if not self.plan.far and not all(one.near(other.dtype) for one in found.values()):
                return "left"
        if judged:
            self.sites |= {at: replace(one, made_of=_made_of(x)) for at, one in found.items()}
        elif found and self.plan.far and key.module:
            self.unknown[key.site] = None
        if placed is not None and all(one.finite for one in found.values()):
            return "followed"
        return "left" if found else "absent"  # nothing of it is judged: it is part of what its code makes of it


def _may_be_left_out(module: torch.nn.Module, args: Any, out: torch.Tensor) -> bool:
    plain = len(args) == 1 and isinstance(args[0], torch.Tensor) and args[0].shape == out.shape
    return plain and not any(module.children()) and not isinstance(module, torch.nn.Linear)


def _swapped(value: Any, changed: Mapping[int, torch.Tensor]) -> Any:
    """What holds a changed tensor is made anew; all else stays the object that it is, to which a module may write."""

    def stays(x: Any) -> bool:
        return not any(id(leaf) in changed for _, leaf in leaves(x))

    def one(x: Any) -> Any:
        return x if stays(x) else mapped(lambda tensor: changed[id(tensor)], x)

    return tree_map(one, value, is_leaf=stays)
