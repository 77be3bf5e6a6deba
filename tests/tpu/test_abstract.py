"""The candidate without weights: traced from a folder of configs alone, here for the CPU, so no compiler is needed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("torchax")

import jax
import torchax

from parity.errors import UsageError
from parity.models.registry import family_of, make_case
from parity.models.spec import Case, GenerationSpec
from parity.settings import parse
from parity.tpu.abstract import Abstract, abstract_candidate

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def configs(tiny_case: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint's configs, without a weight or a tokenizer."""
    folder = tmp_path_factory.mktemp("configs")
    for part in ("transformer", "vae", "scheduler", "guider", "."):
        (folder / part).mkdir(exist_ok=True)
        for file in (tiny_case.folder / part).glob("*.json"):
            shutil.copy(file, folder / part)
    assert not list(folder.rglob("*.safetensors"))
    return folder


def candidate(folder: Path, *settings: str) -> Abstract:
    case = make_case("configs", folder, GenerationSpec.load(folder))
    return abstract_candidate(family_of(folder), case, parse("torchax", list(settings)), jax.devices("cpu"))


def test_its_program_is_that_of_the_candidate_with_weights(configs: Path, tiny_side) -> None:  # type: ignore[no-untyped-def]
    found = candidate(configs)
    lowered = found.lowered("none")
    backend = tiny_side("torchax").backend
    assert {n: (x.shape, x.dtype) for n, x in found.backend.params.items()} == {
        n: (x.shape, x.dtype) for n, x in backend.params.items()
    }
    with backend.scope():
        arguments = {k: None if x is None else jax.numpy.zeros(x.shape, x.dtype) for k, x in found.arguments.items()}
        frames = jax.tree.map(lambda x: jax.numpy.zeros(x.shape, x.dtype), dict(found.frames))
        placed = backend.placed({k: None if x is None else torchax.interop.torch_view(x) for k, x in arguments.items()})
        forward = backend.forward(("",), backend.rules["cond"], None)
        other, _ = backend.programs.lowered(forward, backend.params, placed, frames, None)
    assert lowered.as_text() == other.as_text()


def test_operations_say_whose_they_are(configs: Path) -> None:
    text = candidate(configs).lowered("none").as_text(debug_info=True)
    assert "/transformer_blocks.0/attn/to_q/" in text
    assert "/context_embedder/token_refiner/refiner_blocks.1/" in text


def test_observing_adds_outputs(configs: Path) -> None:
    found = candidate(configs)
    plain, observed = (len(jax.tree.leaves(found.lowered(sites).out_info)) for sites in ("none", "proj_out"))
    assert observed > plain


def test_what_compiles_nothing_is_refused(configs: Path) -> None:
    with pytest.raises(UsageError, match="jit=false"):
        candidate(configs, "jit=false")
