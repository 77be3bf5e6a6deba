"""The report for a person: what is said, in which order, and the same in both forms."""

from __future__ import annotations

import io
import re
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from parity.compare.judge import L2_LIMIT
from parity.compare.reason import Note
from parity.compare.result import (
    NAN,
    Birth,
    Cause,
    Check,
    Distance,
    Origin,
    Result,
    Round,
    SettingDifference,
    SiteDiff,
    SiteVerdict,
    StepDiff,
    Witness,
)
from parity.compare.unlike import LAID_OUT
from parity.golden.records import Key
from parity.report.comparison import Comparison, shown_step
from parity.report.document import Facts, Section, Table, lines
from parity.report.formats.text import in_order, laid_out
from parity.report.output import consoles
from parity.report.progress import progress
from parity.report.tables import BLOCKS_LEGEND, LEGEND, LEGENDS, blocks_table
from tests.support.made import because

INF = float("inf")
GOOD = Distance(2.8e-6, 3.5e-6, 0.8)
BAD = Distance(6.7e-2, 3.5e-6, 19142.857)
BLOCK = "transformer_blocks.{}.attn.attention:{}"


def site(
    name: str,
    distance: Distance = GOOD,
    branch: str = "cond",
    verdict: SiteVerdict = "pass",
    step: int = 0,
    birth: Birth | None = None,
    note: str = "",
) -> SiteDiff:
    return SiteDiff(Key("transformer", step, branch, name), distance, birth=birth, verdict=verdict, note=note)


def step_diff(step: int = 0, noise: Distance = GOOD, timesteps: tuple[float, float] = (999.0, 999.0)) -> StepDiff:
    return StepDiff(
        step,
        timesteps,
        (0.9995, 0.9995),
        (-0.02, -0.02),
        noise,
        Distance(1.1e-7, 1e-6, 0.11),
        Distance(0.0, 0.0, NAN),
        {"cond": noise, "uncond": Distance(3.1e-6, 3e-6, 1.03)},
        3.9 if noise is BAD else 18.4,
        24,
    )


def passing() -> Result:
    sites = [site("x_embedder:out")]
    for branch in ("cond", "uncond"):
        sites += [site(BLOCK.format(0, port), branch=branch) for port in ("in.query", "out")]
    sites.append(site("transformer_blocks.0:out", Distance(4e-6, 3.5e-6, 1.14)))
    sites.append(site("transformer_blocks.0:out.1@padding", BAD, verdict="apart"))
    sites.append(site("loop:noise_pred", BAD, branch=""))
    return Result(
        "pass",
        None,
        because("every site is within 3x its floor"),
        model="tiny-hunyuan-video-1.5",
        differing_settings=(SettingDifference("text.reorder", "valid_first", "concatenate"),),
        preflight=(Check("weights", "pass", "812 tensors"), Check("timesteps", "pass", "1 step")),
        steps=(step_diff(),),
        sites=tuple(sites),
        notes=(Note("text.reorder did no harm: 1.1x the floor at most", "text.reorder"), Note("jit compiled once")),
    )


def failing() -> Result:
    origin = site(BLOCK.format(0, "out"), BAD, verdict="fail", birth="module", note="q, k, v agree")
    later = [site(f"transformer_blocks.{i}:out", BAD, verdict="fail", birth="amplified") for i in range(14)]
    return replace(
        passing(),
        verdict="fail",
        failed="structure",
        why=because("attention parts first"),
        differing_settings=(SettingDifference("attention.mask", "exact", "none"),),
        steps=(step_diff(noise=BAD),),
        sites=(*passing().sites, origin, *later),
        origin=Origin(origin.key, "module"),
        causes=(Cause("mask", "attention.mask", "exact", "none", 0.98, (Witness("gauge", 64.0, "phantom keys"),)),),
        notes=(Note("64 phantom keys"),),
    )


def long_failing(steps: int = 1) -> Result:
    """A run as tall as a real one: 15 blocks, of which all but the first fail."""
    said = (
        "first divergence: transformer_blocks.0.attn.attention output (step 0, cond): inputs match, output differs by "
        "6.70e-02 relative L2, 19,142x the rounding floor"
    )
    loop = tuple(step_diff(step, noise=BAD) for step in range(steps))
    rounds = (Round("structure", "fail", because("x"), steps=loop),)
    return replace(failing(), why=because(said), rounds=rounds, steps=loop)


def preflight_failing() -> Result:
    checks = (
        Check("weights", "pass", ""),
        Check("noise", "explained", "dtype differs"),
        Check("timesteps", "fail", "repeat: 998 at steps 1, 2"),
    )
    return Result("fail", "preflight", because("the schedules differ"), model="m", preflight=checks)


def with_nan() -> Result:
    broken = replace(
        site("transformer_blocks.0:out", Distance(NAN, 3e-6, NAN), verdict="fail", birth="module"),
        nonfinite=(0, 128),
        shapes=((1, 4), (1, 8)),
        dtypes=("float32", "bfloat16"),
    )
    unmeasured = site("transformer_blocks.1:out", Distance(2.8e-6, NAN, NAN))
    no_floor = site("transformer_blocks.2:out", Distance(2.8e-6, 0.0, INF), verdict="fail")
    steps = (step_diff(noise=Distance(NAN, NAN, NAN), timesteps=(999.0, 1000.0)),)
    return Result("fail", "structure", because("NaN"), steps=steps, sites=(broken, unmeasured, no_floor))


UNJUDGED = Result("unjudged", None, because("the two sides have no site in common"))
ALL = {
    "pass": passing(),
    "fail": failing(),
    "preflight": preflight_failing(),
    "nan": with_nan(),
    "unjudged": UNJUDGED,
}


def sections(result: Result) -> tuple[Section, ...]:
    return in_order(Comparison(result))


def plain(result: Result, width: int = 80) -> str:
    return laid_out(sections(result), Console(file=io.StringIO(), width=width, highlight=False))


def terminal(result: Result, width: int = 120, no_color: bool = False) -> str:
    """What a terminal is sent, escape codes included."""
    console = Console(
        file=io.StringIO(),
        force_terminal=True,
        width=width,
        highlight=False,
        color_system="truecolor",
        no_color=no_color,
    )
    return laid_out(sections(result), console)


def shown(result: Result, width: int = 120, details: bool = False) -> str:
    """What is read on a terminal."""
    console = Console(force_terminal=True, width=width, highlight=False, file=io.StringIO(), color_system=None)
    return laid_out(in_order(Comparison(result, details=details)), console)


def test_the_plain_form_of_a_pass() -> None:
    assert plain(passing()) == (
        "preflight: 2 checks pass\n"
        "step 0: timestep 999; sigma 0.9995; dt -0.02; value noise_pred; rel L2 2.80e-06; floor 3.50e-06; ratio 0.8x; "
        "bits 18.4/24\n"
        "step 0: timestep 999; sigma 0.9995; dt -0.02; value cond; rel L2 2.80e-06; floor 3.50e-06; "
        "ratio 0.8x; bits -\n"
        "step 0: timestep 999; sigma 0.9995; dt -0.02; value uncond; rel L2 3.10e-06; floor 3.00e-06; "
        "ratio 1.0x; bits -\n"
        "step 0: timestep 999; sigma 0.9995; dt -0.02; value latents; rel L2 1.10e-07; floor 1.00e-06; "
        "ratio 0.1x; bits -\n"
        f"({LEGEND})\n"
        "block x_embedder: cond out 0.8x; cond in -; uncond out -; uncond in -; verdict pass\n"
        "block transformer_blocks.0: cond out 1.1x; cond in 0.8x; uncond out 0.8x; uncond in 0.8x; verdict pass\n"
        f"({BLOCKS_LEGEND})\n"
        "differs: text.reorder: valid_first -> concatenate; text.reorder did no harm: 1.1x the floor at most\n"
        "note: jit compiled once\n"
        "verdict: pass: tiny-hunyuan-video-1.5\n"
        "reason: every site is within 3x its floor\n"
        "bits: noise_pred agrees in 18.4 of 24 bits\n"
    )


@pytest.mark.parametrize("result", ALL.values(), ids=ALL)
def test_the_plain_form_has_no_colour_no_boxes_and_no_cut_line(result: Result) -> None:
    text = plain(result, width=20)
    assert text == plain(result, width=500)
    assert text.isascii()
    assert "\x1b" not in text
    assert all(re.match(r"\(.*\)$|[a-z ]+( [\w.@:()]+)?: \S", line) for line in text.splitlines())


@pytest.mark.parametrize("result", ALL.values(), ids=ALL)
@pytest.mark.parametrize("width", [60, 80, 400])
def test_both_forms_say_the_same(result: Result, width: int) -> None:
    cells = [cell for s in sections(result) for row in s.rows for cell in row]
    on_terminal = re.sub(r"\s+", "", shown(result, width, details=True))
    for cell in cells:
        assert cell in plain(result)
        if width == 400:  # in a narrower one a long cell is folded between its neighbours
            assert re.sub(r"\s+", "", cell) in on_terminal
    assert max(map(len, shown(result, width).splitlines())) <= width or width == 60


def test_a_failure_ends_with_what_a_tired_person_needs() -> None:
    """Who reads the last lines alone knows what, where, how sure and what to type next."""
    document = Comparison(failing(), following=("parity explain run",))
    text = laid_out(in_order(document), Console(file=io.StringIO()))
    assert text.splitlines()[-10:] == [
        "differs: attention.mask: exact -> none",
        "cause: 98%: mask",
        "witness: gauge: phantom keys",
        "note: 64 phantom keys",
        "verdict: fail (structure): tiny-hunyuan-video-1.5",
        "reason: attention parts first",
        "first divergence: step 0 cond transformer_blocks.0.attn.attention:out, "
        "introduced in the module (its inputs match, its output differs)",
        "top cause: 98%: mask",
        "bits: noise_pred agrees in 3.9 of 24 bits",
        "next: parity explain run",
    ]


@pytest.mark.parametrize("width", [80, 120])
def test_the_last_twelve_lines_of_a_terminal_say_what_where_how_sure_and_what_to_type(width: int) -> None:
    document = Comparison(long_failing(), following=("parity explain run   # why", "parity report run   # the page"))
    console = Console(force_terminal=True, width=width, highlight=False, file=io.StringIO(), color_system=None)
    last = laid_out(in_order(document), console).splitlines()[-12:]
    said = re.sub(r"\s+", " ", " ".join(last))
    what = ("verdict fail (structure): tiny-hunyuan-video-1.5", "inputs match, output differs")
    where = ("transformer_blocks.0.attn.attention:out", "step 0 cond")
    how_sure = ("19,142x the rounding floor", "fail: structure, noise_pred agrees in 3.9 of 24 bits", "98%: mask")
    following = ("parity explain run # why", "parity report run # the page")
    for words in (*what, *where, *how_sure, *following):
        assert words in said


@pytest.mark.parametrize("steps", [1, 50])
def test_a_failing_run_fits_a_terminal_of_forty_lines(steps: int) -> None:
    text = shown(long_failing(steps))
    assert len(text.splitlines()) <= (40 if steps == 1 else 48)
    begun = [line.split()[0] for line in text.splitlines() if line.startswith(("x_embedder", "transformer_blocks."))]
    blocks = ["x_embedder", "transformer_blocks.0", "transformer_blocks.1"]
    assert begun == [*blocks, "transformer_blocks.0.attn.attention:out"]
    assert "+12 fail: --details" in text
    assert "+14 carried over: --details" in text
    assert ("+48 steps: --details" in text) == (steps == 50)


def test_details_lay_out_what_a_terminal_leaves_out() -> None:
    text = shown(long_failing(50), details=True)
    assert "--details" not in text
    assert len(re.findall(r"^transformer_blocks\.\d+ .* fail *$", text, re.MULTILINE)) == 14
    assert len(re.findall(r"^transformer_blocks\.\d+:out .* carried over *$", text, re.MULTILINE)) == 14
    assert len(re.findall(r" noise_pred ", text)) == 51
    assert shown(long_failing(50)).splitlines()[-8:] == text.splitlines()[-8:]


def test_a_pass_begins_with_the_blocks_that_are_nearest_to_their_floors() -> None:
    many = [site(f"blocks.{i}:out", Distance(1e-6 * (i % 7), 3.5e-6, (i % 7) / 3.5)) for i in range(21)]
    text = shown(replace(passing(), sites=tuple(many)))
    assert re.findall(r"^blocks\.(\d+)", text, re.MULTILINE) == ["6", "13", "20"]
    assert "+18 pass: --details" in text


def test_a_pipe_gets_every_row() -> None:
    assert len(re.findall(r"^block ", plain(long_failing()), re.MULTILINE)) == 15
    assert "--details" not in plain(long_failing())


def test_every_table_has_a_legend_of_one_line() -> None:
    tables = [section for result in ALL.values() for section in sections(result) if isinstance(section, Table)]
    assert all(table.legend for table in tables)
    assert all(len(legend) <= 80 for legend in LEGENDS)


def test_the_legend_tells_the_limit_that_is_judged_by() -> None:
    assert f"fails above {L2_LIMIT:.0f}x" in LEGEND


def test_what_is_carried_over_is_counted() -> None:
    text = plain(failing())
    listed = [line for line in text.splitlines() if line.startswith("failed ")]
    assert listed == [
        "failed transformer_blocks.0.attn.attention:out: where step 0 cond; rel L2 6.70e-02; ratio 1.9e+04x; "
        "remarks module, q, k, v agree"
    ]
    assert "(14 carried over (grown, not introduced): --json has all)\n" in text


def test_failed_sites_are_listed_up_to_twelve() -> None:
    many = tuple(site(f"transformer_blocks.{i}:out", BAD, verdict="fail", birth="module") for i in range(15))
    text = plain(replace(failing(), sites=(*many, site("x:out", BAD, verdict="fail", birth="amplified"))))
    assert text.count("\nfailed ") == 12
    assert "(3 more and 1 carried over (grown, not introduced): --json has all)\n" in text
    grown = tuple(replace(d, birth="amplified") for d in many)
    assert plain(replace(failing(), sites=grown)).count("\nfailed ") == 12


def test_a_preflight_failure_lists_what_did_not_pass() -> None:
    assert plain(preflight_failing()).splitlines()[:-2] == [
        "preflight: explained: noise: dtype differs",
        "preflight: fail: timesteps: repeat: 998 at steps 1, 2",
        "preflight: 1 other check passes",
    ]


def test_an_unjudged_result_says_why() -> None:
    assert plain(UNJUDGED) == "verdict: unjudged\nreason: the two sides have no site in common\n"
    assert "no site in common" in shown(UNJUDGED)


def test_nan_and_unmeasured_floors_are_told_apart() -> None:
    text = plain(with_nan())
    assert "step 0: timestep 999 -> 1000; sigma" in text
    assert "block transformer_blocks.0: cond out nan; cond in -; verdict fail" in text
    assert "block transformer_blocks.1: cond out 2.80e-06; cond in -; verdict pass" in text
    assert "block transformer_blocks.2: cond out inf; cond in -; verdict fail" in text
    assert "shape 1x4 -> 1x8, dtype float32 -> bfloat16, NaN or Inf: 0 -> 128" in text


def test_a_block_is_told_by_what_was_compared_of_it() -> None:
    """A port lays out otherwise what is inside; a block of which nothing lines up has no verdict of its own."""
    note = f"(1, 2, 3) against (1, 3, 2), {LAID_OUT}"
    nothing = Distance(NAN, NAN, NAN)
    inside = site(BLOCK.format(0, "in.query"), nothing, verdict="unjudged", note=note)
    other = site("transformer_blocks.1:out", nothing, verdict="unjudged", note=note)
    rows = blocks_table([inside, site("transformer_blocks.0:out"), other], 0).rows
    assert rows == (("transformer_blocks.0", "0.8x", "-", "pass"), ("transformer_blocks.1", "nan", "-", "unjudged"))


def test_the_blocks_are_those_of_the_step_where_it_starts() -> None:
    sites = (site("a:out", step=-1), site("a:out"), site("a:out", BAD, step=3, verdict="fail"))
    assert shown_step(Result("pass", None, because(""), sites=sites[:2])) == 0
    assert shown_step(Result("fail", "structure", because(""), sites=sites)) == 3
    assert shown_step(Result("fail", "structure", because(""), sites=sites, origin=Origin(sites[0].key, "input"))) == -1
    assert shown_step(UNJUDGED) is None


def test_a_note_stands_beside_its_setting() -> None:
    result = replace(
        UNJUDGED,
        differing_settings=(SettingDifference("rope", "per_call", "cached"),),
        notes=(Note("rope_dtype was not reached", "rope_dtype"), Note("differs by rope.", "rope")),
    )
    assert plain(result).splitlines()[:-2] == [
        "differs: rope: per_call -> cached; differs by rope.",
        "note: rope_dtype was not reached",
    ]


def test_colour_is_used_on_a_terminal_unless_it_is_not_wanted() -> None:
    red = "\x1b[1;31mfail"
    assert red in terminal(failing())
    assert "[31m" not in terminal(failing(), no_color=True)
    assert "[1;31m" not in terminal(failing(), no_color=True)


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, for rich
    assert all(console.no_color for console in consoles())


def test_results_go_to_stdout_and_the_rest_to_stderr() -> None:
    out, err = consoles()
    assert (out.file, err.file) == (sys.stdout, sys.stderr)


def test_a_narrow_terminal_gets_lines_rather_than_cut_numbers() -> None:
    step = next(section for section in sections(failing()) if isinstance(section, Table))
    wide = shown(failing(), width=80)
    narrow = re.sub(r"\s+", " ", shown(failing(), width=60))
    assert next(lines(step)) in narrow
    assert next(lines(step)) not in wide


def test_a_terminal_of_eighty_columns_cuts_no_number() -> None:
    text = shown(failing(), width=80)
    assert "\u2026" not in text
    assert re.search(
        r"^ +0 +999 +0\.9995 +-0\.02 +noise_pred +6\.70e-02 +3\.50e-06 +1\.9e\+04x +3\.9/24 *$", text, re.MULTILINE
    )
    assert re.search(r"^ +latents +1\.10e-07 +1\.00e-06 +0\.1x +- *$", text, re.MULTILINE)


def test_names_of_somebody_else_cannot_write_to_the_terminal() -> None:
    hostile = replace(failing(), why=because("a\x1b[2Jb\nc\u2028d"), model="[red]x[/red]")
    for text in (plain(hostile), shown(hostile)):
        assert r"a\x1b[2Jb\nc\u2028d" in text
        assert "[red]x[/red]" in text


def test_what_the_console_cannot_write_is_escaped() -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert laid_out([Facts((("note", "3 × 4"),))], Console(file=file)) == "note: 3 \\xd7 4\n"


def test_progress_names_each_stage_once_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(Console(file=io.StringIO())) as say:
        for done in range(3):
            say("reference [1]", done, 3)
        say("candidate")
    assert capsys.readouterr().err == "reference [1]\ncandidate\n"


def test_progress_counts_on_a_terminal_and_leaves_nothing_behind() -> None:
    file = io.StringIO()
    stdout = sys.stdout
    with progress(Console(file=file, force_terminal=True, width=100, force_interactive=True)) as say:
        say("reference", 2, 50)
        say("comparing [x]")
        assert sys.stdout is stdout
    text = file.getvalue()
    assert "comparing [x]" in text
    assert "50" not in text.rpartition("comparing")[2]


def test_quiet_progress_says_nothing() -> None:
    file = io.StringIO()
    with progress(Console(file=file, force_terminal=True), quiet=True) as say:
        say("reference", 1, 2)
    assert file.getvalue() == ""
