"""Maps a port's module names to the reference's, by which sites pair up.

Rules are a mapping: a regular expression over a whole module path of the candidate -> the reference's path, `\\1` or
`\\g<name>` for groups. The first that matches decides, and a path that none matches keeps its name. A rule with a colon
is of an input or output, `module:port` as renamed so far, without the `@part` it may end in. The loop's own values are
never renamed. A file (`--map`) holds such a mapping as JSON.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from parity.errors import MalformedError, UsageError, shown
from parity.files import read_object
from parity.records import LOOP, Key, StepRecords

MAX_FILE = 1 << 20


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        pattern: matches whole names. target: what they become.
    """

    pattern: re.Pattern[str]
    target: str

    def apply(self, text: str) -> str | None:
        """The new name; None where the rule does not match."""
        match = self.pattern.fullmatch(text)
        return None if match is None else match.expand(self.target)


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

    def dumps(self) -> str:
        """The file's text."""
        rules = {rule.pattern.pattern: rule.target for rule in (*self.modules, *self.ports)}
        return json.dumps(rules, indent=1) + "\n"


NONE = Rename()


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
    rules = read_object(Path(path), MAX_FILE)
    if rules is None:
        raise UsageError(f"--map: there is no file '{os.fspath(path)}'")
    try:
        return decode_rename(msgspec.convert(rules, dict[str, str]), os.fspath(path))
    except (MalformedError, msgspec.ValidationError) as error:
        raise UsageError(f"--map: {os.fspath(path)}: {error}") from None


def decode_rename(rules: Mapping[str, str], where: str = "") -> Rename:
    """The rules of a mapping.

    Raises:
        MalformedError: one is none; names it.
    """
    made = tuple(_rule(source, target, f"rule {i}") for i, (source, target) in enumerate(rules.items(), 1))
    ports = tuple(rule for rule in made if _is_of_port(rule))
    return Rename(tuple(rule for rule in made if rule not in ports), ports, where)


def _is_of_port(rule: Rule) -> bool:
    return ":" in rule.pattern.pattern.replace("(?:", "")


def _rule(source: str, target: str, name: str) -> Rule:
    try:
        pattern = re.compile(source)
        pattern.sub(target, "")  # a group that is not there
    except (re.error, IndexError, OverflowError, RecursionError) as error:
        raise MalformedError(f"{name}, {shown(source)} -> {shown(target)}: {str(error)[:120]}") from None
    rule = Rule(pattern, target)
    if _is_of_port(rule) and ":" not in target:
        raise MalformedError(f"{name}, {shown(source)}: it is of a module:port, and its target {shown(target)} is none")
    return rule


@dataclass
class Renamer:
    """Renames the candidate's records step by step, and knows which rules were of use.

    Attributes:
        rename: the rules. mapped: the reference's names of the modules that one renamed so far. used: those rules.
    """

    rename: Rename
    mapped: set[str] = field(default_factory=set)
    used: set[Rule] = field(default_factory=set)
    _modules: dict[str, str] = field(default_factory=dict)

    def key(self, key: Key) -> Key:
        """The key under which the reference would have recorded it."""
        if key.module == LOOP:
            return key
        if key.module not in self._modules:
            self._modules[key.module] = self._renamed(self.rename.modules, key.module)
        bare, at, part = f"{self._modules[key.module]}:{key.port}".partition("@")
        return replace(key, site=self._renamed(self.rename.ports, bare) + at + part)

    def _renamed(self, rules: Iterable[Rule], text: str) -> str:
        renamed, rule = _first(rules, text)
        if rule is not None:
            self.used.add(rule)
            self.mapped.add(renamed.partition(":")[0])
        return renamed

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
                both = f"{shown(owner.site)} and {shown(record.key.site)}"
                raise UsageError(self._named(f"{both} would both be called {shown(key.site)}"))
            records.append(replace(record, key=key))
        return replace(step, records=tuple(records))

    def unused(self) -> tuple[str, ...]:
        """A note for each rule that matched nothing."""
        idle = [rule for rule in (*self.rename.modules, *self.rename.ports) if rule not in self.used]
        return tuple(self._named(f"the rule {shown(rule.pattern.pattern)} matches nothing") for rule in idle)

    def _named(self, message: str) -> str:
        return f"--map: {self.rename.where}: {message}" if self.rename.where else f"--map: {message}"
