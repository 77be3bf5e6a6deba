"""The report for a person: what is said, in which order, and the same on a terminal and in a pipe."""

from __future__ import annotations

import io
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from parity.compare.reason import Note
from parity.compare.result import NAN, Check, Checked, Distance, Origin, Result, SettingDifference
from parity.errors import UsageError
from parity.report.comparison import Comparison
from parity.report.document import Facts, Table
from parity.report.formats.text import in_order, laid_out
from parity.report.output import printable, progress, show, tell, write
from parity.report.tables import blocks_table
from tests.support.made import because
from tests.support.results import INF, RESULT, STEP, site

LOOP = replace(STEP, timestep=(999.0, 999.0), sigma=(1.0, 1.0), dt=(-0.1, -0.1))
BORN = site("blocks.0.attn:out", 19142.9, "fail", birth="module", note="q, k, v agree")
LATER = tuple(site(f"blocks.{i}:out", 19142.9, "fail", birth="propagated") for i in range(14))
FAILING = replace(
    RESULT, steps=(LOOP,), sites=(site("x_embedder:out"), BORN, *LATER), origin=Origin(BORN.key, "module")
)
PASSING = Result(
    "pass", None, because("every site is within 3x its floor"), model="tiny",
    differing_settings=(SettingDifference("text.reorder", "valid_first", "concatenate"),),
    preflight=(Check("weights", "pass", "812 tensors"), Check("timesteps", "pass", "1 step")),
    steps=(LOOP,), sites=(site("x_embedder:out"), site("blocks.0:out", 1.14)),
    notes=(Note("text.reorder did no harm", "text.reorder"), Note("jit compiled once")),
)  # fmt: skip
PREFLIGHT = Result(
    "fail", "preflight", because("the schedules differ"),
    preflight=(Check("weights", "pass", ""), Check("timesteps", "fail", "repeat: 998")),
)  # fmt: skip
NOT_A_NUMBER = Result(
    "fail", "logic", because("NaN"), steps=(replace(LOOP, noise_pred=Distance(NAN, NAN, NAN)),),
    sites=(
        replace(site("a:out", NAN, "fail", birth="module"), nonfinite=(0, 128), shapes=((1, 4), (1, 8))),
        replace(site("b:out"), distance=Distance(2.8e-6, NAN, NAN)), site("c:out", INF, "fail"),
    ),
)  # fmt: skip
INCONCLUSIVE = Result("inconclusive", None, because("the two sides have no site in common"))
ALL = {"pass": PASSING, "fail": FAILING, "preflight": PREFLIGHT, "nan": NOT_A_NUMBER, "inconclusive": INCONCLUSIVE}


def plain(result: Result, width: int = 80, **beside: object) -> str:
    """What a pipe gets."""
    console = Console(file=io.StringIO(), width=width, highlight=False)
    return laid_out(in_order(Comparison(result, **beside)), console)  # type: ignore[arg-type]


def shown(result: Result, width: int = 120, color: str | None = None, **beside: object) -> str:
    """What a terminal shows."""
    console = Console(force_terminal=True, width=width, highlight=False, file=io.StringIO(), color_system=color)  # type: ignore[arg-type]
    return laid_out(in_order(Comparison(result, **beside)), console)  # type: ignore[arg-type]


def test_what_was_introduced_elsewhere_stands_beside_a_closer_look() -> None:
    blocks = [site(f"blocks.{i}:out", 57.0, "fail", birth="module") for i in range(2)]
    closer = (site("blocks.0.ffn:out", 80.0, "fail", birth="module"), replace(blocks[0], birth="propagated"))
    result = replace(FAILING, sites=tuple(blocks), closer=closer, origin=Origin(closer[0].key, "module"), causes=())
    text = plain(result)
    assert re.findall(r"^failed (\S+):out:", text, re.M) == ["blocks.0.ffn", "blocks.1"], text
    assert "differences: 2 independent ones: blocks.0.ffn (cond); blocks.1 (cond)" in text
    alike = plain(replace(result, closer=(), origin=Origin(blocks[0].key, "module")))
    assert "differences: the same in several blocks: blocks.* (cond)" in alike


def test_a_pipe_gets_every_fact_in_order_and_the_verdict_last() -> None:
    labels = [
        line.split(":")[0].split(" ")[0] for line in plain(FAILING, following=("parity explain run",)).splitlines()
    ]
    order = [label for i, label in enumerate(labels) if labels[i - 1] != label and not label.startswith("(")]
    assert order == [
        "preflight", "step", "block", "failed", "cause", "evidence", "note", "verdict", "reason", "kind", "effect",
        "settings", "cause", "parity",
    ]  # fmt: skip
    assert (plain(FAILING).count("\nblock "), plain(FAILING, details=True).count("\nblock ")) == (3, 15)
    assert "(+14 propagated: -v)\n" in plain(FAILING)
    assert "settings: text.reorder: valid_first -> concatenate; text.reorder did no harm\n" in plain(PASSING)
    assert plain(INCONCLUSIVE) == "verdict: inconclusive\nreason: the two sides have no site in common\n"
    assert plain(PREFLIGHT).startswith("preflight: fail: timesteps: repeat: 998\npreflight: 1 other check passes\n")


@pytest.mark.parametrize("result", ALL.values(), ids=ALL)
def test_both_forms_say_the_same_and_a_pipe_has_no_boxes(result: Result) -> None:
    text = plain(result, width=20)
    assert text == plain(result, width=500)
    assert text.isascii()
    assert "\x1b" not in text
    on_terminal = re.sub(r"\s+", "", shown(result, 400, details=True))
    tables = in_order(Comparison(result))
    for cell in (cell for table in tables for row in table.rows for cell in row):
        assert cell in text
        assert re.sub(r"\s+", "", cell) in on_terminal
    assert max(map(len, shown(result, 80).splitlines())) <= 80
    assert all(table.below for table in tables if isinstance(table, Table))


@pytest.mark.parametrize("steps", [1, 50])
def test_a_failing_run_fits_a_terminal_and_details_lay_out_the_rest(steps: int) -> None:
    loop = tuple(replace(LOOP, step=i) for i in range(steps))
    result = replace(FAILING, steps=loop, checks=(Checked("logic", "fail", because("x"), steps=loop),))
    text, whole = shown(result), shown(result, details=True)
    assert len(text.splitlines()) <= 48
    for left in ("+12 fail: -v", "+14 propagated: -v"):
        assert left in text
    assert ("+48 steps: -v" in text) == (steps == 50)
    assert ": -v" not in whole
    assert len(re.findall(r"^blocks\.\d+:out .* propagated *$", whole, re.MULTILINE)) == 14
    assert text.splitlines()[-6:] == whole.splitlines()[-6:]


def test_nan_and_unmeasured_floors_are_told_apart() -> None:
    text = plain(NOT_A_NUMBER)
    for block, told in (("a", "nan"), ("b", "2.80e-06"), ("c", "inf")):
        assert f"block {block}: cond out {told};" in text
    assert "shape 1x4 -> 1x8" in text
    assert "NaN or Inf: 0 -> 128" in text


def test_a_prediction_that_is_not_finite_has_no_bits() -> None:
    steps = (replace(STEP, bits=3.0, bits_of=24), replace(STEP, step=1, bits=NAN, bits_of=24))
    assert "effect: noise_pred is not finite at step 1" in plain(replace(RESULT, steps=steps))


def test_a_block_is_told_by_what_was_compared_of_it() -> None:
    """A port lays out otherwise what is inside; a block of which nothing lines up has no verdict of its own."""
    note = "shape [1, 2, 3] against [1, 3, 2]"
    apart = (site(f"{name}", NAN, "not compared", note=note) for name in ("blocks.0.attn:in.query", "blocks.1:out"))
    first, second = apart
    rows = blocks_table([first, site("blocks.0:out"), second], "step 0").rows
    assert rows == (("blocks.0", "0.8x", "-", "pass"), ("blocks.1", "nan", "-", "not compared"))


def test_names_of_somebody_else_cannot_write_to_the_terminal() -> None:
    hostile = replace(FAILING, why=because("a\x1b[2Jb\nc\u2028d"), model="[red]x[/red]")
    for text in (plain(hostile), shown(hostile)):
        assert r"a\x1b[2Jb\nc\u2028d" in text
        assert "[red]x[/red]" in text
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert laid_out([Facts((("note", "3 × 4"),))], Console(file=file)) == "note: 3 \\xd7 4\n"


def test_progress(capsys: pytest.CaptureFixture[str]) -> None:
    """A log gets each stage once; quiet gets nothing."""
    with progress(Console(file=io.StringIO())) as say:
        for done in range(3):
            say("reference [1]", done, 3)
        say("candidate")
    assert capsys.readouterr().err == "reference [1]\ncandidate\n"
    with progress(Console(file=io.StringIO()), quiet=True) as say:
        say("never")
    assert capsys.readouterr().err == ""


# --- The one way out


def test_a_file_is_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "new" / "a.txt"
    write(file, "one", "--out")
    mask = os.umask(0)
    os.umask(mask)
    assert file.stat().st_mode & 0o777 == 0o666 & ~mask

    def fails(*given: object) -> str:
        raise OSError(28, "No space left on device")

    with pytest.raises(UsageError, match=r"--out: cannot write .*: No space left"):
        write(file, fails, "--out")
    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(UsageError, match="No space left"):
        write(file, "two", "--out")
    assert file.read_text() == "one"
    assert [path.name for path in file.parent.iterdir()] == ["a.txt"]
    write(Path(os.devnull), "one", "--out")
    with pytest.raises(UsageError, match="Is a directory"):
        write(tmp_path, "one", "--out")


@pytest.mark.parametrize(
    ("text", "encoding", "shown"),
    [
        ("a\x1b[2Jb\nc\u2028d\u202e", "utf-8", r"a\x1b[2Jb\nc\u2028d\u202e"),
        ("3 × 4 \ud800", "ascii", r"3 \xd7 4 \ud800"),
        ("[red]x[/red] 3 × 4", "utf-8", "[red]x[/red] 3 × 4"),
        ("×", None, r"\xd7"),
    ],
)
def test_printable_text_controls_nothing(text: str, encoding: str | None, shown: str) -> None:
    assert printable(text, encoding) == shown


def test_only_results_go_to_stdout(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    show("a\nb\n")
    tell("one\nline")
    assert tuple(capsys.readouterr()) == ("a\nb\n", "one\\nline\n")
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    show("✅")
    assert raw.getvalue() == b"\\u2705\n"
