"""The commands of the command line: options in, one function of `runs`, `causes` or `bisect`, a report out.

May import everything; only `parity.cli` imports it. A module imports torch or jax only while its command runs.

Typer reads options from a function's parameters, so options that several commands share would stand in each signature
and again in its calls. Here a command takes groups of options and the command line takes their fields: a group is a
frozen dataclass whose fields carry Typer's annotations and defaults; its `panel` is that of the help.
`command` gives a function that takes groups the signature that Typer reads, with each group replaced by its fields, and
builds the groups when it is called:

    @command
    def inspect(golden: Golden, output: Output) -> int: ...

    inspect(golden="folder", format="json")    # as Typer calls it, and a test: options by name, defaults where left out
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from inspect import Parameter
from typing import Annotated, Any, get_args, get_type_hints


def command(function: Callable[..., int | None]) -> Callable[..., int]:
    """The function with its option groups unfolded; no returned exit code is 0.

    Raises:
        ValueError: two groups have a field of the same name.
    """
    groups: dict[str, type[Any]] = {}
    parameters: list[Parameter] = []
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        kind = parameter.annotation
        if isinstance(kind, type) and is_dataclass(kind):
            groups[parameter.name] = kind
            parameters += _parameters(kind)
        else:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))

    @functools.wraps(function)
    def unfolded(**options: object) -> int:
        built = {}
        for name, group in groups.items():
            chosen = {field.name: options.pop(field.name) for field in fields(group) if field.name in options}
            built[name] = group(**chosen)
        return function(**options, **built) or 0

    unfolded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    vars(unfolded)["__signature__"] = inspect.Signature(parameters)
    return unfolded


def _parameters(group: type[Any]) -> Iterator[Parameter]:
    hints, defaults = get_type_hints(group, include_extras=True), group()
    for field in fields(group):
        kind, option = get_args(hints[field.name])
        option = copy.copy(option)  # an option may stand in several groups, in the help under each one's panel
        option.rich_help_panel = group.panel
        default, annotation = getattr(defaults, field.name), Annotated[kind, option]
        yield Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
