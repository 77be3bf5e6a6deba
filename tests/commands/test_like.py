"""`--inputs GOLDEN`: the second machine starts from what the first one's golden carries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torchax")

from parity.golden import Golden
from parity.golden.disk.read import read_inputs
from tests.support.cli import Ran, cli

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With `gpu`, the reference's golden."""
    folder = tmp_path_factory.mktemp("like")
    record(folder, "gpu", "--seed", 7)
    return folder


def record(folder: Path, where: str, *options: object, code: int = 0) -> Ran:
    return cli("record", where, "--sites", "transformer_blocks.0", *options, cwd=folder, code=code)


def test_embeddings_that_a_machine_made_itself_leave_nothing_to_judge_and_inputs_is_the_remedy(folder: Path) -> None:
    record(folder, "other", "--side", "candidate", "--prompt", "another prompt", "--seed", 7)
    cli("diff", "gpu", "other", cwd=folder, code=125)
    record(folder, "tpu", "--side", "candidate", "--inputs", "gpu")
    cli("diff", "gpu", "tpu", cwd=folder, code=0)
    ours, theirs = (read_inputs(Golden.open(folder / where)) for where in ("gpu", "tpu"))
    assert ours is not None
    assert theirs is not None
    assert np.array_equal(ours["noise"].values, theirs["noise"].values)
    record(folder, "wrong", "--side", "candidate", "--inputs", "gpu", "--candidate", "attention.mask=none")
    cli("diff", "gpu", "wrong", cwd=folder, code=1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--seed 3", "--seed is 3, and the noise of 'gpu' is of 7: leave it out"),
        ("--prompt x", "--inputs and --prompt exclude each other"),
        ("--model tiny-cogvideox-1.0", "recorded with another model or size"),
    ],
)
def test_what_the_golden_says_is_not_said_twice(words: str, said: str, folder: Path) -> None:
    assert said in record(folder, "new", "--side", "candidate", "--inputs", "gpu", *words.split(), code=2).err
    assert not (folder / "new").exists()
