"""`--like GOLDEN`: the second machine starts from what the first one's golden carries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from typer.testing import CliRunner

pytest.importorskip("torchax")

from parity.cli import app
from parity.commands.parts.like import alike
from parity.commands.parts.options import Generation
from parity.compare.diff import diff
from parity.errors import UsageError
from parity.golden import Golden
from parity.golden.disk.inputs import FILE, read_inputs
from parity.paths.live import InProcess
from parity.runs.like import read_like
from parity.runs.recording.record import RecordRequest
from parity.runs.recording.record import record as record_side
from parity.runs.request import Request
from parity.settings import parse

pytestmark = pytest.mark.slow

MODEL = "tiny-hunyuan-video-1.5"
ONE_BLOCK = "transformer_blocks.0"


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Records a side in this process; returns its golden."""
    openers = InProcess()

    def recorded(
        side: str, *, stage1_out: Path | None = None, settings: tuple[str, ...] = (), **options: object
    ) -> Path:
        where = tmp_path_factory.mktemp(side)
        ours, theirs = (settings, ()) if side == "reference" else ((), settings)
        run = Request(MODEL, parse("torch", ours), parse("torchax", theirs), sites=ONE_BLOCK, **options)  # type: ignore[arg-type]
        request = RecordRequest(where=str(where), side=side, run=run, stage1_out=stage1_out)  # type: ignore[arg-type]
        record_side(request, lambda *progress: None, openers)
        return where

    return recorded


@pytest.fixture(scope="module")
def gpu(record: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The reference's golden, and the embeddings that it started from."""
    embeddings = tmp_path_factory.mktemp("stage1") / "stage1_embeddings.safetensors"
    return record("reference", stage1_out=embeddings, seed=7), embeddings


def moved(embeddings: Path, to: Path) -> Path:
    """The embeddings as another machine's encoders give them: one ulp away."""
    tensors = safetensors.numpy.load_file(embeddings)
    floats = {n: np.nextafter(x, np.float32(np.inf)) for n, x in tensors.items() if n.endswith(("embeds", "embeds_2"))}
    safetensors.numpy.save_file({**tensors, **floats}, to)
    return to


def test_embeddings_one_ulp_away_leave_nothing_to_judge_and_like_is_the_remedy(
    record: Callable[..., Path], gpu: tuple[Path, Path], tmp_path: Path
) -> None:
    golden, embeddings = gpu
    other = record("candidate", stage1=moved(embeddings, tmp_path / "moved.safetensors"), seed=7)
    assert diff(golden, other).verdict == "unjudged"
    generation, like = alike(str(golden), Generation(), {})
    assert (generation.name, generation.steps, generation.seed) == (MODEL, 1, 7)
    again = record("candidate", like=like, seed=generation.seed)
    assert diff(golden, again).verdict == "pass"
    ours, theirs = (read_inputs(Golden.open(where)) for where in (golden, again))
    assert {name: item.dtype for name, item in ours.items()} == {name: item.dtype for name, item in theirs.items()}
    wrong = record("candidate", like=like, seed=7, settings=("attention.mask=none",))
    assert diff(golden, wrong).verdict == "fail"


def test_the_noise_is_the_golden_s_whatever_the_seed(record: Callable[..., Path], gpu: tuple[Path, Path]) -> None:
    """A machine whose generator draws other numbers from the same seed."""
    again = record("candidate", like=read_like(str(gpu[0])), seed=8)
    ours, theirs = (read_inputs(Golden.open(where))["noise"].values for where in (gpu[0], again))
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("generation", "others", "message"),
    [
        (Generation(steps=3), {}, "--steps is 3 and that of .* 1: leave --steps out"),
        (Generation(seed=5), {}, "--seed is 5 and that of .* 7: leave --seed out"),
        (Generation(prompt="a dog"), {}, "--like takes the embeddings of .*: leave --prompt out"),
        (Generation(), {"--inputs": Path("x")}, "leave --inputs out"),
    ],
)
def test_what_the_golden_says_is_not_said_twice(
    generation: Generation, others: dict[str, Path | None], message: str, gpu: tuple[Path, Path]
) -> None:
    with pytest.raises(UsageError, match=message):
        alike(str(gpu[0]), generation, others)


def test_another_model_s_golden_is_refused_before_anything_runs(gpu: tuple[Path, Path], tmp_path: Path) -> None:
    like = read_like(str(gpu[0]))
    settings = parse("torch"), parse("torchax")
    request = Request("tiny-cogvideox-1.0", *settings, like=like)
    with pytest.raises(
        UsageError, match=r"--like: the golden's noise has shape \[.*recorded with another model or size"
    ):
        record_side(
            RecordRequest(where=str(tmp_path / "g"), side="candidate", run=request), lambda *progress: None, InProcess()
        )


def test_a_damaged_golden_starts_nothing(gpu: tuple[Path, Path], tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(gpu[0], copy)
    content = bytearray((copy / FILE).read_bytes())
    content[-3] ^= 1
    (copy / FILE).write_bytes(bytes(content))
    with pytest.raises(UsageError, match="does not match its fingerprint"):
        read_like(str(copy))


@pytest.mark.parametrize("command", [("record", "NEW", "--side", "candidate"), ("run",)])
def test_an_option_that_was_typed_is_refused_though_it_has_its_default_s_value(
    command: tuple[str, ...], gpu: tuple[Path, Path], tmp_path: Path
) -> None:
    given = [str(tmp_path / "new") if word == "NEW" else word for word in command]
    ended = CliRunner().invoke(app, [*given, "--like", str(gpu[0]), "--seed", "0"])
    assert ended.exit_code == 2
    assert f"--seed is 0 and that of '{gpu[0]}' 7: leave --seed out" in ended.stderr
