"""The reference pages of the site, made from what they describe when it is built (`site_hooks.py`).

`commands` has every command with its arguments and options, as `--help` has them; `api` what `import parity` and a
port's file offer, with signatures and docstrings. Neither says anything of its own.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import parity
from parity import port
from parity.cli import COMMANDS as GROUPS, EXAMPLES, root
from parity.compare import result
from parity.errors import InconclusiveError, ParityError, UsageError

COMMANDS = """# Commands

`parity COMMAND --help` prints the same in a terminal.

Exit codes: 0 same, 1 diverged, 2 wrong usage or bad input, 125 inconclusive or an internal error; 130, 143 and 129
interrupted, terminated and hung up. `--format json` prints [one document](formats.md#result-json) on stdout;
all else is on stderr.
"""

API = """# Python

Signatures and docstrings; [your model](your-model.md) shows them in use.
"""

FACE = (
    "compare", "assert_parity", "record", "run", "diff", "explain", "Result",
)  # fmt: skip
"""Names of `parity`, in the order of the page."""

_KINDS: dict[type, str] = {int: "N", float: "X", str: "TEXT"}
"""Type of a default -> what stands for a value."""

PARTS = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):$")


def commands() -> str:
    """The page of the commands."""
    made = [COMMANDS, "```text\n" + EXAMPLES.replace("\b\n", "").strip() + "\n```\n"]
    for title, names in GROUPS.items():
        made.append(f"## {title}\n")
        for name in names:
            made.append(_command(f"parity {name}", root.get_command(None, name)))
    return "\n".join(made)


def _command(name: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    made = [f"### {name}\n", _text(command.help or "") + "\n"]
    usage = " ".join([name, *(_metavar(p) for p in arguments), *(["[OPTIONS]"] if options else [])])
    made.append(f"```text\n{usage}\n```\n")
    rows = [(f"`{_metavar(p)}`", p.help or "") for p in arguments]
    rows += [(_option(p), _help(p)) for p in options]
    if rows:
        made.append("| argument, option | |\n|---|---|")
        made += [
            f"| {left.replace('|', chr(92) + '|')} | {right.replace('|', chr(92) + '|')} |" for left, right in rows
        ]
        made.append("")
    return "\n".join(made)


def _text(text: str) -> str:
    """Help as Markdown: its paragraphs."""
    return "\n\n".join(" ".join(part.split()) for part in text.replace("\b\n", "").split("\n\n"))


def _metavar(param: Any) -> str:
    name = param.metavar or param.name.upper()
    return str(name if param.required or name.startswith("[") else f"[{name}]")


def _option(param: Any) -> str:
    names = [*param.opts, *param.secondary_opts]
    kind = "" if param.is_flag else f" {param.metavar or _KINDS.get(type(param.default), 'VALUE')}"
    return ", ".join(f"`{name}{kind}`" for name in names)


def _help(param: Any) -> str:
    default = param.default
    shown = not param.is_flag and isinstance(default, str | int | float) and default != ""
    return " ".join((param.help or "").split()) + (f" Default: {default}." if shown else "")


def api() -> str:
    """The page of the names in Python."""
    made = [API, "## parity\n"]
    made += [_entry(f"parity.{name}", getattr(parity, name)) for name in FACE if name != "compare"]
    made.insert(2, _entry("parity.compare", _compare()))
    made += [_docstring(result.Result) + "\n", "## parity.port\n", _entry("parity.tap", port.tap)]
    made += [_entry(f"parity.port.{kind.__name__}", kind) for kind in (port.Port, port.Case, port.Scheduler)]
    made += [
        "## Errors\n",
        *(_entry(f"parity.errors.{e.__name__}", e) for e in (ParityError, UsageError, InconclusiveError)),
    ]
    return "\n".join(made)


def _compare() -> Any:
    """`parity.compare` is a room and a function."""
    from parity.face.compare import compare

    return compare


def _entry(name: str, thing: Any) -> str:
    made = [f"### {name}\n"]
    signature = _signature(thing)
    if signature:
        made.append(f"```python\n{name}{signature}\n```\n")
    made.append(_docstring(thing) + "\n")
    if inspect.isclass(thing):
        made += [_member(name, member, found) for member, found in _members(thing)]
    return "\n".join(made)


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    for name, found in vars(kind).items():
        if not name.startswith("_") and (inspect.isfunction(found) or isinstance(found, property)):
            yield name, found


def _member(of: str, name: str, found: Any) -> str:
    function = found.fget if isinstance(found, property) else found
    signature = "" if isinstance(found, property) else _signature(function)
    return f"`{of.rpartition('.')[2]}.{name}{' '.join(signature.split())}`\n\n{_docstring(found)}\n"


def _signature(thing: Any) -> str:
    """`(a: int, *, b: str = "x") -> None`, one parameter a line where it is long; empty for what is not called."""
    if inspect.isclass(thing) and not ("__init__" in vars(thing) or hasattr(thing, "__dataclass_fields__")):
        return ""
    if inspect.isclass(thing) and (issubclass(thing, Exception) or getattr(thing, "_is_protocol", False)):
        return ""
    found = inspect.signature(thing)
    if found.return_annotation is inspect.Signature.empty or inspect.isclass(thing):
        answer = ""
    else:
        answer = f" -> {found.return_annotation}"
    parts: list[str] = []
    every = list(found.parameters.values())
    for param in every[bool(every) and every[0].name == "self" :]:
        if param.kind is param.KEYWORD_ONLY and "*" not in parts and not any(p.startswith("*") for p in parts):
            parts.append("*")
        parts.append(_parameter(param))
    flat = f"({', '.join(parts)}){answer}"
    if len(flat) <= 80:
        return flat
    return "(\n" + "".join(f"    {part},\n" for part in parts) + f"){answer}"


def _parameter(param: inspect.Parameter) -> str:
    stars = {param.VAR_POSITIONAL: "*", param.VAR_KEYWORD: "**"}.get(param.kind, "")
    text = f"{stars}{param.name}"
    if param.annotation is not param.empty:
        text += f": {param.annotation}"
    if param.default is param.empty:
        return text
    made = repr(param.default)
    return f"{text} = {'...' if made.startswith('<') else made}"


def _docstring(thing: Any) -> str:
    """A docstring as Markdown: each entry of Args, Attributes and Raises is an item."""
    blocks = re.split(r"\n\n", inspect.getdoc(thing) or "")
    return "\n\n".join(map(_block, blocks))


def _block(block: str) -> str:
    """A paragraph, an example or a list of names."""
    first, _, rest = block.partition("\n")
    part = PARTS.match(first)
    if part is not None:
        entries = re.sub(r"\n {5,}", " ", rest).splitlines()
        return "\n".join([f"**{part[1]}**\n", *(_named(f"- {entry.strip()}") for entry in entries)])
    return f"```python\n{block}\n```" if first.startswith("    ") else block


def _named(item: str) -> str:
    """An item, its names as code: the first, and those that begin a further sentence."""
    item = re.sub(r"^- (\w+(?:, \w+)*):", r"- `\1`:", item)
    return re.sub(r"([.;] )([a-z_]\w*(?:, [a-z_]\w*)*):(?= )", r"\1`\2`:", item)
