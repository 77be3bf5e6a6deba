"""Any strategy on any subject: probes are recorded, a killed search is resumed, ends are checked, progress printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.bisect.search import Answer, Found, Listener, Subject, search, silent
from parity.bisect.state import State
from parity.bisect.strategy import Order, Outcome, register, strategies, strategy
from parity.errors import ParityError, UsageError


class Letters(Subject[str]):
    """Letters of which some are bad together; dies before the probe numbered `dies`."""

    noun, phrase, checked = "letter", "tried {}", True

    def __init__(self, letters: str, bad: str, dies: int = -1, control: str = "") -> None:
        self.order = Order(tuple(letters))
        self.presumed: dict[tuple[str, ...], Outcome] = {self.order.items: "bad"}
        self.bad, self.dies, self.control, self.asked = set(bad), dies, tuple(control), list[str]()

    def words(self, key: tuple[str, ...]) -> str:
        return "".join(key) or "none"

    def probe(self, items: tuple[str, ...]) -> Answer[str]:
        if len(self.asked) == self.dies:
            raise KeyboardInterrupt
        self.asked.append("".join(items))
        return Answer("bad" if self.bad <= set(items) else "good", "as made", self.control)

    def refusal(self, items: tuple[str, ...], outcome: Outcome, evidence: str) -> ParityError:
        return UsageError(f"{''.join(items)} is {outcome}: {evidence}")


class Heard:
    """Keeps what a listener hears."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def trying(self, text: str) -> None:
        self.lines.append(text)

    def judged(self, text: str, details: list[str]) -> None:
        self.lines += [text, *details]


def found(path: Path, subject: Letters, listen: Listener = silent) -> Found[str]:
    with State.open(path, "letters", {}) as state:
        return search(subject, strategy("ddmin_unless_none"), state, listen)


def test_killed_before_any_probe_it_is_resumed_and_asks_nothing_twice(tmp_path: Path) -> None:
    whole = Letters("abcdefgh", "bg")
    answer = found(tmp_path / "whole", whole)
    assert answer.answer == ("b", "g")
    assert len(set(whole.asked)) == len(whole.asked) == len(answer.probes)
    resumed: list[str] = []
    for _ in whole.asked[1:]:
        killed = Letters("abcdefgh", "bg", dies=1)
        with pytest.raises(KeyboardInterrupt):
            found(tmp_path / "killed", killed)
        resumed += killed.asked
    last = Letters("abcdefgh", "bg")
    assert found(tmp_path / "killed", last).answer == answer.answer
    assert resumed + last.asked == whole.asked


def test_what_is_said(tmp_path: Path) -> None:
    heard = Heard()
    found(tmp_path / "s", Letters("ab", "b"), heard)
    assert heard.lines == [
        "tried ab",
        "tried ab: bad (as made); 2 letters left",
        "tried none",
        "tried none: good (as made); 2 letters left",
        "tried a",
        "tried a: good (as made); 2 letters left",
        "tried b",
        "tried b: bad (as made); 1 letter left",
    ]
    heard.lines.clear()
    found(tmp_path / "s", Letters("ab", "b"), heard)
    assert heard.lines == []


def test_an_end_that_is_not_as_presumed_is_refused_and_not_recorded(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(UsageError, match=r"^ab is good: as made$"):
            found(tmp_path / "s", Letters("ab", "c"))
    assert found(tmp_path / "s", Letters("ab", "a")).answer == ("a",)


def test_a_doubtful_answer_counts_once_its_control_is_judged(tmp_path: Path) -> None:
    subject = Letters("ab", "b", control="ab")
    subject.checked = False
    assert found(tmp_path / "s", subject).answer == ("b",)
    assert subject.asked == ["", "ab", "a", "b"]
    subject = Letters("ab", "c", control="ab")
    subject.checked = False
    with pytest.raises(UsageError, match=r"^ab is good"):
        found(tmp_path / "t", subject)
    with State.open(tmp_path / "t", "letters", {}) as state:
        assert state.probes == []


def test_strategies_are_found_by_their_names() -> None:
    assert {"ddmin", "ddmin_unless_none"} <= set(strategies())
    with pytest.raises(UsageError, match=r"no search strategy 'guess'; there are .*ddmin"):
        strategy("guess")
    with pytest.raises(ValueError, match="two strategies are registered as 'ddmin'"):
        register("ddmin")(strategy("ddmin_unless_none"))
