"""The `golden` fixture: what it stores, what it accepts, and what its failures say."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from parity.errors import UsageError
from parity.golden import Golden

pytest_plugins = ["pytester"]

UPDATE = "--golden-update"

Outcome = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """Runs a test file in a folder of its own; with `body`, writes it first."""
    # Hypothesis imports the whole of itself at the end of each run.
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest -p no:cacheprovider")
    pytester.makeini("[pytest]\n")

    def run(body: str | None = None, *options: str) -> pytest.RunResult:
        if body is not None:
            head = "import numpy as np\n"
            pytester.path.joinpath("test_a.py").write_text(head + body)
        return pytester.runpytest_inprocess(*options)

    return run


def case(body: str, name: str = "test_one") -> str:
    return f"def {name}(golden):\n    {body}\n"


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Content and time of every file: a rewritten file is another even where its bytes are not."""
    return {str(f.relative_to(folder)): (f.read_bytes(), f.stat().st_mtime_ns)
            for f in sorted(folder.rglob("*")) if f.is_file()}  # fmt: skip


def fails(result: pytest.RunResult, *said: str) -> str:
    """The text of the one failure, in which everything of `said` stands."""
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    for words in said:
        assert words in text, f"{words!r} is not in:\n{text}"
    return text


def said(result: pytest.RunResult) -> list[str]:
    """The lines of the failure's message."""
    return [line[1:].strip() for line in result.stdout.lines if line.startswith("E ")]


def test_a_missing_golden_fails_with_the_command_that_makes_it(run: Outcome, pytester: pytest.Pytester) -> None:
    result = run(case('golden.check({"x": np.arange(3.0)})'))
    fails(result, "there is none at golden/test_a/test_one")
    command = said(result)[-1]
    assert command == f"pytest test_a.py::test_one {UPDATE}"
    assert not (pytester.path / "golden").exists()
    run(None, *command.split()[1:]).assert_outcomes(passed=1)
    assert Golden.open(pytester.path / "golden/test_a/test_one").complete
    run(None).assert_outcomes(passed=1)


def test_the_command_is_right_from_another_folder_and_for_odd_parameters(
    run: Outcome, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = (
        "import pytest\n"
        "class TestIt:\n"
        "    @pytest.mark.parametrize('x', ['a b/c', 'a b_c', 'plain'])\n"
        "    def test_x(self, golden, x):\n"
        "        golden.check({'x': x})\n"
    )
    (pytester.path / "below").mkdir()
    run(body)
    monkeypatch.chdir(pytester.path / "below")
    result = pytester.runpytest_inprocess("..", "-k", "c and b/c")
    import shlex

    words = shlex.split(said(result)[-1])
    assert words == ["pytest", "../test_a.py::TestIt::test_x[a b/c]", UPDATE]
    pytester.runpytest_inprocess(*words[1:]).assert_outcomes(passed=1)
    pytester.runpytest_inprocess("..", UPDATE).assert_outcomes(passed=3)
    names = sorted(p.name for p in (pytester.path / "golden/test_a").iterdir())
    assert names[2] == "TestIt.test_x-plain"
    # Two names that become one when cleaned are kept apart.
    assert names[0] != names[1]
    assert all(name.startswith("TestIt.test_x-a_b_c-") for name in names[:2])
    pytester.runpytest_inprocess("..").assert_outcomes(passed=3)


def test_update_rewrites_only_what_changed(run: Outcome, pytester: pytest.Pytester) -> None:
    body = case('golden.check({"x": np.arange(4.0)})') + case('golden.check({"x": np.ones(2)})', "test_two")
    assert "golden: wrote golden/test_a/test_two" in run(body, UPDATE).stdout.str()
    before = files(pytester.path / "golden")
    assert "wrote" not in run(None, UPDATE).stdout.str()
    assert files(pytester.path / "golden") == before
    result = run(body.replace("ones(2)", "zeros(3)"), UPDATE)
    result.assert_outcomes(passed=2)
    assert "golden: wrote golden/test_a/test_two" in result.stdout.str()
    assert "golden: wrote golden/test_a/test_one" not in result.stdout.str()
    after = files(pytester.path / "golden")
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"test_a/test_two/golden.json", "test_a/test_two/step-0000.safetensors"}
    run(None).assert_outcomes(passed=2)


def test_the_same_golden_is_the_same_bytes_wherever_it_is_made(run: Outcome, pytester: pytest.Pytester) -> None:
    body = case('golden.check({"x": np.arange(4.0), "n": None, "s": "flex"})')
    run(body, UPDATE)
    first = {name: content for name, (content, _) in files(pytester.path / "golden").items()}
    elsewhere = pytester.mkdir("elsewhere")
    (elsewhere / "test_a.py").write_text((pytester.path / "test_a.py").read_text())
    pytester.runpytest_inprocess(str(elsewhere), UPDATE)
    assert {name: content for name, (content, _) in files(elsewhere / "golden").items()} == first
    assert not any(str(pytester.path).encode() in content for content in first.values())


def test_a_difference_says_where_and_how_much_and_ends_with_the_flag(run: Outcome) -> None:
    body = case('golden.check({"first": np.ones(4), "second": np.full(4, 2.0), "third": np.zeros(2)})')
    run(body, UPDATE)
    result = run(body.replace("np.ones(4)", "np.ones(4) * 1.5").replace("2.0", "3.0"))
    text = fails(result, "not what golden/test_a/test_one holds: 2 sites are not bit-equal")
    lines = said(result)
    assert "it starts at test step 0 first:value (introduced at: module)" in lines
    rows = [line.split() for line in lines if line.endswith("second:value") or line.endswith(" first:value")]
    assert ["5.000e-01", "0.00e+00", "test", "step", "0", "first:value"] in rows
    assert ["5.000e-01", "0.00e+00", "test", "step", "0", "second:value"] in rows
    assert not any("third" in line for line in lines)
    assert lines[-1] == f"pytest test_a.py::test_one {UPDATE}"
    assert "golden.check({" in text  # the user's own line is shown,
    assert "pytest_plugin.py" not in text.replace("parity.pytest_plugin", "")  # ours are not


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("np.zeros(3)", "-np.zeros(3)", "equal numbers, other bits"),
        ("np.ones(3)", "np.ones(3, np.float32)", "float64 against float32"),
        ("np.ones(3)", "np.ones((3, 1))", "shape [3] against [3, 1]"),
        ("np.ones(3)", "np.nextafter(np.ones(3), 2)", "2.220e-16"),
        ("np.ones(3)", "np.array([1, 1, np.nan])", "nan"),
        ("np.array([np.nan, 1])", "np.array([1, np.nan])", "nan"),
        ("np.ones(3)", "None", "a tensor against None"),
        ("1", "True", "1 against True"),
        ("'a'", "'b'", "'a' against 'b'"),
        ("np.arange(3)", "np.arange(3)[::-1]", "x:value"),
    ],
)
def test_bit_equality_is_the_default(run: Outcome, old: str, new: str, words: str) -> None:
    body = case('golden.check({"x": VALUE, "y": np.ones(2)})')
    run(body.replace("VALUE", old), UPDATE).assert_outcomes(passed=1)
    run(None).assert_outcomes(passed=1)
    fails(run(body.replace("VALUE", new)), words)


@pytest.mark.parametrize("value", ["np.array([np.nan, np.inf, -np.inf])", "np.zeros((0, 3))", "np.float32(2)", "0.1"])
def test_what_is_odd_but_equal_passes(run: Outcome, value: str) -> None:
    run(case(f'golden.check({{"x": {value}}})'), UPDATE).assert_outcomes(passed=1)
    run(None).assert_outcomes(passed=1)


def test_rtol_is_relative_l2_and_a_limit_at_each_site(run: Outcome) -> None:
    body = case('golden.check({"x": np.ones(100) * SCALE, "y": np.ones(5)}, rtol=1e-3)')
    run(body.replace("SCALE", "1"), UPDATE).assert_outcomes(passed=1)
    run(body.replace("SCALE", "1.00099")).assert_outcomes(passed=1)
    result = run(body.replace("SCALE", "1.00101"))
    fails(result, "1 site is not within the relative L2 of 0.001 that the test allows")
    assert any(line.split()[:2] == ["1.010e-03", "1.00e-03"] for line in said(result))
    fails(run(body.replace("SCALE", "np.nan")), "not within")
    fails(run(body.replace("SCALE", "1").replace("1e-3", "0")), "rtol must be a positive number")


def test_an_input_just_within_its_limit_excuses_no_output_beyond_it(run: Outcome) -> None:
    body = case('golden.check({"m:in.x": np.ones(9) * IN, "m:out": np.ones(9) * OUT}, rtol=1e-3)')
    run(body.replace("IN", "1").replace("OUT", "1"), UPDATE)
    fails(run(body.replace("IN", "1.0009").replace("OUT", "1.0011")), "m:out")


def test_what_only_one_side_has_is_a_difference(run: Outcome) -> None:
    body = case('golden.check({"x": np.ones(3), "flag": True})')
    run(body, UPDATE)
    fails(run(body.replace(', "flag": True', "")), "the golden holds and the test did not give test step 0 flag:value")
    added = body.replace("True}", "True, 'more': None}")
    fails(run(added), "the test gave and the golden does not hold test step 0 more:value")


RECORDS = """
from parity.golden import Floor, Key, Moments, Record, StepRecords, sketch
def record(x, site="m:out", step=0):
    x = np.asarray(x, np.float64)
    moments = Moments(x.size, 0, 0, float(x.min()), float(x.max()), float(x.mean()), float(np.linalg.norm(x)))
    return Record(Key("transformer", step, "cond", site), "tensor", x.shape, "float64", "", (1, x.size), moments,
                  sketch(x))
"""


def test_stored_floors_decide_as_in_a_diff(run: Outcome) -> None:
    body = RECORDS + case(
        "r = record(np.ones(16) + SHIFT)\n    golden.check(StepRecords(0, (r,), {r.key: Floor(FLOOR)}))"
    )
    # ||ones(16)|| is 4, and a shift of 1e-6 is 4e-6 from it.
    run(body.replace("SHIFT", "0").replace("FLOOR", "4e-6"), UPDATE).assert_outcomes(passed=1)
    within = body.replace("SHIFT", "2.9e-6")
    run(within.replace("FLOOR", "4e-6")).assert_outcomes(passed=1)
    beyond = body.replace("SHIFT", "3.1e-6")
    text = fails(
        run(beyond.replace("FLOOR", "4e-6")),
        "3x the rounding floor",
        "transformer step 0 cond m:out (introduced at: module)",
    )
    assert "3.00e-06" in text
    # The test's own floors of today do not count: a broken run could measure any.
    fails(run(beyond.replace("FLOOR", "1.0")), "3x the rounding floor")


def test_floors_by_name_and_records_of_several_steps(run: Outcome, pytester: pytest.Pytester) -> None:
    body = RECORDS + case(
        'golden.check([record(np.ones(4) + SHIFT), record(np.ones(4), step=1)], floors={"m": 2e-3, OTHER})'
    )
    run(body.replace("SHIFT", "0").replace("OTHER", ""), UPDATE).assert_outcomes(passed=1)
    held = Golden.open(pytester.path / "golden/test_a/test_one")
    assert held.steps == (0, 1)
    assert [floor.l2 for step in held.steps for floor in held.read_step(step).floors.values()] == [2e-3, 2e-3]
    run(body.replace("SHIFT", "2.9e-3").replace("OTHER", "")).assert_outcomes(passed=1)
    fails(run(body.replace("SHIFT", "3.1e-3").replace("OTHER", "")), "transformer step 0 cond m:out")
    fails(
        run(body.replace("SHIFT", "0").replace("OTHER", "'n': 1.0")), "floors names n, which is not among the records"
    )


def test_padded_rows_never_decide_but_are_no_agreement_either(run: Outcome) -> None:
    body = RECORDS + case('golden.check([record(np.ones(4) * A, "m:out@padding"), record(np.ones(4) * B)])')
    run(body.replace("A", "1").replace("B", "1"), UPDATE)
    run(body.replace("A", "2").replace("B", "1")).assert_outcomes(passed=1)
    fails(run(body.replace("A", "1").replace("B", "2")), "m:out (introduced at")
    alone = RECORDS + case('golden.check([record(np.ones(4), "m:out@padding")])')
    run(alone, UPDATE)
    fails(run(None), "nothing was compared")
    fails(run(case('golden.check({"x@padding": np.ones(2), "x:y@padding": np.ones(2)})')), "never judged")


@pytest.mark.parametrize(
    ("damage", "file"),
    [
        (lambda f: f.joinpath("step-0000.safetensors").write_bytes(b""), "step-0000.safetensors"),
        (lambda f: f.joinpath("step-0000.safetensors").unlink(), "step-0000.safetensors"),
        (lambda f: f.joinpath("golden.json").write_text("{}"), "golden.json"),
        (lambda f: f.joinpath("golden.json").write_text(
            f.joinpath("golden.json").read_text().replace('"seed": 0', '"seed": 1')), "golden.json"),
    ],
)  # fmt: skip
def test_a_damaged_golden_fails_and_is_named(
    run: Outcome, pytester: pytest.Pytester, damage: Callable[[Path], object], file: str
) -> None:
    run(case('golden.check({"x": np.ones(3)})'), UPDATE)
    folder = pytester.path / "golden/test_a/test_one"
    damage(folder)
    result = run(None)
    fails(result, f"golden/test_a/test_one/{file}: ")
    assert said(result)[-1].endswith(UPDATE)
    run(None, UPDATE).assert_outcomes(passed=1)
    run(None).assert_outcomes(passed=1)


def test_an_unfinished_golden_fails(run: Outcome, pytester: pytest.Pytester) -> None:
    from parity.golden import GoldenWriter

    run(case('golden.check({"x": np.ones(3)})'), UPDATE)
    folder = pytester.path / "golden/test_a/test_one"
    held = Golden.open(folder)
    step = held.read_step(0)
    GoldenWriter(folder, held.provenance, overwrite=True).write_step(step)
    fails(run(None), "golden.json: its writing was not finished")


def test_two_checks_in_one_test_need_a_name(run: Outcome, pytester: pytest.Pytester) -> None:
    body = case('golden.check({"x": 1})\n    golden.check({"x": 2}, NAME)')
    fails(run(body.replace("NAME", ""), UPDATE), "is checked twice in this test; give the second check a name=")
    run(body.replace("NAME", "name='second'"), UPDATE).assert_outcomes(passed=1)
    assert sorted(p.name for p in (pytester.path / "golden/test_a").iterdir()) == ["second", "test_one"]
    run(None).assert_outcomes(passed=1)
    for name in ("../up", "", ".hidden", "a/b"):
        fails(run(body.replace("NAME", f"name={name!r}"), UPDATE), "is no folder's name")
    assert not (pytester.path / "golden/up").exists()


def test_the_folder_is_an_ini_option(run: Outcome, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nparity_golden_dir = held/goldens\n")
    for folder in ("one", "two"):
        pytester.mkpydir(folder).joinpath("test_a.py").write_text(case(f'golden.check({{"x": "{folder}"}})'))
    pytester.runpytest_inprocess(UPDATE).assert_outcomes(passed=2)
    held = sorted(str(p.parent.relative_to(pytester.path)) for p in pytester.path.rglob("golden.json"))
    assert held == ["held/goldens/one/test_a/test_one", "held/goldens/two/test_a/test_one"]
    pytester.runpytest_inprocess().assert_outcomes(passed=2)


def test_large_arrays_are_held_as_sketches(run: Outcome, pytester: pytest.Pytester) -> None:
    body = case('golden.check({"x": np.ones(70_000, np.float32) * SCALE}, RTOL)')
    fails(run(body.replace("SCALE", "1").replace("RTOL", ""), UPDATE), "70000 elements", "give golden.check an rtol")
    rtol = body.replace("RTOL", "rtol=1e-2")
    run(rtol.replace("SCALE", "1"), UPDATE).assert_outcomes(passed=1)
    assert sum(f.stat().st_size for f in pytester.path.rglob("*.safetensors")) < 16_000
    run(rtol.replace("SCALE", "1.009")).assert_outcomes(passed=1)
    fails(run(rtol.replace("SCALE", "1.02")), "1 site is not within")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("{}", "given nothing to compare"),
        ("[]", "given nothing to compare"),
        ("{'x': object()}", "is a object"),
        ("{'x': np.array(['a'])}", "which a golden cannot hold"),
        ("{'x': np.ones(2) * 1j}", "which a golden cannot hold"),
        ("{3: np.ones(2)}", "the name 3"),
        ("[np.ones(2)]", "found a ndarray"),
    ],
)
def test_what_cannot_be_checked_is_refused(run: Outcome, value: str, words: str) -> None:
    for options in ((), (UPDATE,)):
        fails(run(case(f"golden.check({value})"), *options), words)


def test_arrays_of_torch_and_jax(run: Outcome) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    body = (
        "import torch, jax.numpy as jnp\n"
        "def test_one(golden):\n"
        "    t = torch.arange(4.0, requires_grad=True)\n"
        "    golden.check({'t': t, 'tb': t.bfloat16(), 'j': jnp.arange(4.0), 'jb': jnp.arange(4, dtype='bfloat16')})\n"
    )
    run(body, UPDATE).assert_outcomes(passed=1)
    run(None).assert_outcomes(passed=1)
    fails(run(body.replace("t.bfloat16()", "t.bfloat16() * 2")), "tb:value")
    fails(run(body.replace("'tb': t.bfloat16()", "'tb': t")), "tb:value  (bfloat16 against float32)")


def test_nothing_heavy_is_imported_before_a_test_asks_for_it() -> None:
    code = (
        "import sys, pytest, parity.pytest_plugin; "
        "print([m for m in ('numpy', 'torch', 'jax', 'safetensors', 'fsspec', 'rich', 'typer') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert ran.stdout == "[]\n"


def test_the_plugin_is_an_entry_point() -> None:
    from importlib.metadata import entry_points

    assert [e.value for e in entry_points(group="pytest11") if e.name == "parity"] == ["parity.pytest_plugin"]


def test_rtol_of_a_check_that_is_no_number() -> None:
    from parity.compare.check import as_steps, check

    steps = as_steps({"x": np.ones(2)})
    for rtol in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="rtol must be a positive number"):
            check(steps, steps, rtol=rtol)
