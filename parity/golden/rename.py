"""Rename rules: how the modules of another implementation are called in the reference.

Problem. A port may call `blocks.3.attention` what the reference calls `transformer_blocks.3.attn`, and sites pair up
by name alone.

How. A file of rules, `{"format": 1, "rules": [{"from": ..., "to": ...}], "ports": [...]}`. `from` is a regular
expression that must match a whole module path of the candidate; `to` is the reference's path, with `\\1` or `\\g<name>`
for groups. Rules are tried in order, the first that matches decides, and a path that none matches keeps its name.
Rules under `ports` work alike on `module:port` as renamed so far, without the `@part` a port may end in. The loop's
own values are never renamed.

The rules may be somebody else's: a pattern that could take exponential time is refused (`parity.golden.patterns`), and
paths of more than 256 characters keep their names.

Cost. One match a rule and module, not a record.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from parity.errors import UsageError
from parity.files import read_bytes
from parity.golden.patterns import refuse_costly
from parity.golden.records import LOOP, Key, StepRecords
from parity.golden.strict import MalformedError, as_int, as_list, as_object, as_text, parse, shown

FORMAT = 1
MAX_FILE = 1 << 20
MAX_RULES = 1000
MAX_PATTERN = 500
MAX_PATH = 256
_TARGET = re.compile(r"\\(?:(\d)|g<(\w+)>|(\\))")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        pattern: matches whole names. target: what they become. name: of the rule, for messages: `rule 3`.
    """

    pattern: re.Pattern[str]
    target: str
    name: str

    def apply(self, text: str) -> str | None:
        """The new name; None where the rule does not match."""
        match = self.pattern.fullmatch(text) if len(text) <= MAX_PATH else None
        if match is None:
            return None

        def group(at: re.Match[str]) -> str:
            number, name, backslash = at.groups()
            if backslash:
                return "\\"
            return (match[int(number)] if number else match[_group(name)]) or ""

        return _TARGET.sub(group, self.target)


@dataclass(frozen=True, slots=True)
class Rename:
    """Rules in order.

    Attributes:
        modules, ports: see above. where: the file, for messages; empty where they were proposed.
    """

    modules: tuple[Rule, ...] = ()
    ports: tuple[Rule, ...] = ()
    where: str = ""

    def __bool__(self) -> bool:
        return bool(self.modules or self.ports)

    def module(self, path: str) -> str:
        """The reference's name of a module of the candidate."""
        return path if path == LOOP else _first(self.modules, path)[0]

    def document(self) -> dict[str, Any]:
        """The rules as the file holds them."""
        found: dict[str, Any] = {"format": FORMAT, "rules": [_entry(rule) for rule in self.modules]}
        if self.ports:
            found["ports"] = [_entry(rule) for rule in self.ports]
        return found

    def dumps(self) -> str:
        """The file's text."""
        return json.dumps(self.document(), indent=1) + "\n"


NONE = Rename()


def _entry(rule: Rule) -> dict[str, str]:
    return {"from": rule.pattern.pattern, "to": rule.target}


def _first(rules: Iterable[Rule], text: str) -> tuple[str, Rule | None]:
    for rule in rules:
        renamed = rule.apply(text)
        if renamed is not None:
            return renamed, rule
    return text, None


def load_rename(path: str | os.PathLike[str]) -> Rename:
    """The rules in a file.

    Raises:
        UsageError: it cannot be read, is not of this form, or holds a rule that is refused; names file and rule.
    """
    where = os.fspath(path)
    try:
        content = read_bytes(path, MAX_FILE)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"--map: cannot read '{where}': {reason}") from None
    try:
        return decode_rename(parse(content), where)
    except MalformedError as error:
        raise UsageError(f"--map: {where}: {error}") from None


def decode_rename(document: Mapping[str, Any], where: str = "") -> Rename:
    """The rules of a document.

    Raises:
        MalformedError: see `load_rename`.
    """
    entry = as_object(document, "the document", frozenset({"format", "rules"}), frozenset({"ports"}))
    as_int(entry["format"], "the format", least=FORMAT, most=FORMAT)
    return Rename(_rules(entry["rules"], "rule"), _rules(entry.get("ports", []), "port rule"), where)


def _rules(value: Any, noun: str) -> tuple[Rule, ...]:
    entries = enumerate(as_list(value, f"the list of {noun}s", MAX_RULES), 1)
    return tuple(make_rule(entry, f"{noun} {number}") for number, entry in entries)


def make_rule(value: Any, name: str) -> Rule:
    """One rule of the document, checked.

    Raises:
        MalformedError: naming the rule.
    """
    entry = as_object(value, name, frozenset({"from", "to"}))
    source = as_text(entry["from"], f"{name}: 'from'", MAX_PATTERN)
    target = as_text(entry["to"], f"{name}: 'to'", MAX_PATTERN)
    refuse_costly(source, name)
    try:
        pattern = re.compile(source)
    except (re.error, OverflowError, RecursionError) as error:
        raise MalformedError(f"{name}: 'from' is no regular expression: {str(error)[:120]}") from None
    for at in _TARGET.finditer(target):
        number, group, _ = at.groups()
        if number or group:
            _check_group(pattern, number or group, name)
    if "\\" in _TARGET.sub("", target):
        raise MalformedError(f"{name}: 'to' may hold \\1, \\g<name> and \\\\, found {shown(target)}")
    return Rule(pattern, target, name)


def _group(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _check_group(pattern: re.Pattern[str], text: str, name: str) -> None:
    group = _group(text)
    known = group <= pattern.groups if isinstance(group, int) else group in pattern.groupindex
    if not known:
        raise MalformedError(f"{name}: 'to' asks for group {text}, and 'from' has {pattern.groups} groups")


@dataclass
class Renamer:
    """Renames the candidate's records step by step, and knows which rules were of use.

    Attributes:
        rename: the rules. used: names of the rules that matched so far.
    """

    rename: Rename
    used: set[str] = field(default_factory=set)
    _modules: dict[str, str] = field(default_factory=dict)
    _owners: dict[str, str] = field(default_factory=dict)

    def module(self, path: str) -> str:
        """The reference's name of a module.

        Raises:
            UsageError: another module has that name already.
        """
        if path in self._modules or path == LOOP:
            return self._modules.get(path, path)
        renamed, rule = _first(self.rename.modules, path)
        if rule is not None:
            self.used.add(rule.name)
        owner = self._owners.setdefault(renamed, path)
        if owner != path:
            by = f"{rule.name} renames" if rule else "the rules rename"
            message = f"{by} {shown(path)} to {shown(renamed)}, which {shown(owner)} is called too"
            raise UsageError(self._named(message))
        self._modules[path] = renamed
        return renamed

    def key(self, key: Key) -> Key:
        """The key under which the reference would have recorded it."""
        if key.module == LOOP:
            return key
        site = f"{self.module(key.module)}:{key.port}"
        if self.rename.ports:
            bare, at, part = site.partition("@")
            bare, rule = _first(self.rename.ports, bare)
            if rule is not None:
                self.used.add(rule.name)
                if ":" not in bare:
                    raise UsageError(self._named(f"{rule.name} makes {shown(bare)}, which is no module:port"))
            site = bare + at + part
        return replace(key, site=site)

    def step(self, step: StepRecords) -> StepRecords:
        """A step under the reference's names.

        Raises:
            UsageError: two of its records would have the same key.
        """
        if not self.rename:
            return step
        owners: dict[Key, Key] = {}
        records = []
        for record in step.records:
            key = self.key(record.key)
            owner = owners.setdefault(key, record.key)
            if owner != record.key:
                message = f"{shown(owner.site)} and {shown(record.key.site)} are both renamed to {shown(key.site)}"
                raise UsageError(self._named(message))
            records.append(replace(record, key=key))
        return replace(step, records=tuple(records))

    def unused(self) -> tuple[str, ...]:
        """A note for each rule that matched nothing."""
        rules = (*self.rename.modules, *self.rename.ports)
        idle = [rule for rule in rules if rule.name not in self.used]
        return tuple(self._named(f"{rule.name} ({shown(rule.pattern.pattern)}) matches nothing") for rule in idle)

    def _named(self, message: str) -> str:
        return f"--map: {self.rename.where}: {message}" if self.rename.where else f"--map: {message}"
