"""`--like GOLDEN`: the second machine starts from what the first one's golden carries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

pytest.importorskip("torchax")

from parity.golden import Golden
from parity.golden.disk.inputs import read_inputs
from tests.support.cli import Ran, cli

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With `gpu`, the reference's golden, and the embeddings that it started from."""
    folder = tmp_path_factory.mktemp("like")
    record(folder, "gpu", "--seed", 7, "--stage1-out", "stage1.safetensors")
    return folder


def record(folder: Path, where: str, *options: object, code: int = 0) -> Ran:
    return cli("record", where, "--sites", "transformer_blocks.0", *options, cwd=folder, code=code)


def test_embeddings_one_ulp_away_leave_nothing_to_judge_and_like_is_the_remedy(folder: Path) -> None:
    tensors = safetensors.numpy.load_file(folder / "stage1.safetensors")
    floats = {n: np.nextafter(x, np.float32(np.inf)) for n, x in tensors.items() if n.endswith(("embeds", "embeds_2"))}
    safetensors.numpy.save_file({**tensors, **floats}, folder / "moved.safetensors")
    record(folder, "other", "--side", "candidate", "--stage1", "moved.safetensors", "--seed", 7)
    cli("diff", "gpu", "other", cwd=folder, code=125)
    record(folder, "tpu", "--side", "candidate", "--like", "gpu")
    cli("diff", "gpu", "tpu", cwd=folder, code=0)
    ours, theirs = (read_inputs(Golden.open(folder / where)) for where in ("gpu", "tpu"))
    assert np.array_equal(ours["noise"].values, theirs["noise"].values)
    record(folder, "wrong", "--side", "candidate", "--like", "gpu", "--setting", "attention.mask=none")
    cli("diff", "gpu", "wrong", cwd=folder, code=1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--steps 3", "--steps is 3 and that of 'gpu' 1: leave --steps out"),
        ("--model tiny-cogvideox-1.0", "recorded with another model or size"),
    ],
)
def test_what_the_golden_says_is_not_said_twice(words: str, said: str, folder: Path) -> None:
    assert said in record(folder, "new", "--side", "candidate", "--like", "gpu", *words.split(), code=2).err
    assert not (folder / "new").exists()
