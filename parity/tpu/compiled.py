"""A compile as it was asked for: the programs it takes, and what came of them.

The observed program is never without the unobserved one beside it: what observing costs is the difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from parity.errors import UnjudgedError, UsageError
from parity.paths.port.settings import PortInfo, chosen
from parity.settings import Settings
from parity.tpu.chips import topology
from parity.tpu.compiler import Say, compile_all, require_compiler
from parity.tpu.effect import Effect, effect
from parity.tpu.figures import Figures, figures
from parity.tpu.hlo import HloError
from parity.tpu.refusal import Refusal, refusal_of
from parity.tpu.request import Answer, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """One program: what was asked, what the compiler answered, and its figures or why it was refused."""

    request: Request
    answer: Answer
    figures: Figures | None
    refusal: Refusal | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """The programs of one command.

    Attributes:
        plain: the unobserved program. observed: with sites. against: unobserved, with other settings.
        settings: changed ones of the candidate, by name. other: of the program beside it.
        observing: what observing does to the products; changed: what the other settings do.
    """

    plain: Made
    observed: Made | None
    against: Made | None
    settings: Mapping[str, str]
    other: Mapping[str, str]
    observing: Effect | None
    changed: Effect | None

    @property
    def programs(self) -> tuple[Made, ...]:
        return tuple(made for made in (self.plain, self.observed, self.against) if made is not None)

    @property
    def refused(self) -> tuple[Made, ...]:
        return tuple(made for made in self.programs if made.refusal is not None)

    @property
    def exit_code(self) -> int:
        """0 where all compile, else 1."""
        return int(bool(self.refused))


def compile_candidate(
    request: Request, against: Sequence[str], limit: float, say: Say, port: PortInfo | None = None
) -> Compiled:
    """Compile a candidate: unobserved, with the request's sites, and with other settings where some are given.

    Args:
        against: `NAME=VALUE` that differ in the program beside it. limit: seconds for each program. port: what is
            known of the request's.

    Raises:
        UsageError: what the request names does not exist or does not go together, or there is no compiler here.
        UnjudgedError: the compiler took longer, died, or gave a text that cannot be read.
    """
    settings = _checked(request, chosen(port, "torchax", request.candidate))
    names = {text.partition("=")[0] for text in against}
    other = tuple(text for text in request.candidate if text.partition("=")[0] not in names) + tuple(against)
    others = _checked(request, chosen(port, "torchax", other)) if against else settings
    require_compiler()
    plain = replace(request, sites="none")
    requests = [plain]
    requests += [request] if request.observed else []
    requests += [replace(plain, candidate=other)] if against else []
    made = [_made(one, answer) for one, answer in zip(requests, compile_all(requests, limit, say), strict=True)]
    first = made[0]
    observed = made[1] if request.observed else None
    beside = made[-1] if against else None
    return Compiled(
        plain=first,
        observed=observed,
        against=beside,
        settings=_changed(settings),
        other=_changed(others),
        observing=_effect(first, observed),
        changed=_effect(first, beside),
    )


def _checked(request: Request, settings: Settings) -> Settings:
    """The settings, which must go together with the topology."""
    chips = topology(request.topology)
    rows, columns, layers = settings.mesh_shape
    need = rows * columns * layers
    if need > chips.devices:
        raise UsageError(
            f"mesh={settings.text('mesh')} needs {need} devices, and {chips.name} has {chips.devices}: choose a larger "
            "--topology or a smaller mesh"
        )
    return settings


def _changed(settings: Settings) -> dict[str, str]:
    return {name: text for name, text in settings.as_text().items() if settings.changed(name)}


def _made(request: Request, answer: Answer) -> Made:
    if answer.refusal:
        refusal = refusal_of(answer.refusal, frozenset(answer.modules), request.port is not None, request.stage)
        return Made(request=request, answer=answer, figures=None, refusal=refusal)
    try:
        found = figures(request.sites, answer, topology(request.topology))
    except HloError as error:
        raise UnjudgedError(f"the program compiles, and its text cannot be read: {error}") from error
    return Made(request=request, answer=answer, figures=found, refusal=None)


def _effect(before: Made, after: Made | None) -> Effect | None:
    if before.figures is None or after is None or after.figures is None:
        return None
    return effect(before.figures.program, after.figures.program, frozenset(before.answer.modules))
