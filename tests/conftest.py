"""What tests that need a model share: the tiny checkpoint, its inputs, and each side loaded once."""

from __future__ import annotations

import os
import signal
import socket
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from parity.models.spec import Case
    from parity.paths.inputs import Inputs
    from parity.paths.loaded import Loaded

# The user's own cache is neither read nor written; a folder beside the tests keeps what is compiled for the next run.
os.environ["PARITY_CACHE"] = str(Path(__file__).parent.parent / ".cache" / "parity")

# Before torch is imported: on the tiny model two threads gain nothing, and where other processes hold the cores each of
# thousands of small parallel regions waits for them (measured: a tenfold slower run).
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The tests run on a CPU; with the TPU compiler installed JAX would look for chips first, one process at a time.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Nothing here computes for long, and compiling is most of what a fresh clone pays: half of it without optimisations.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=1 --xla_llvm_disable_expensive_passes=true")

from tests.support.nursery import warm

# A shell that starts the suite with `nohup` or `&` hands down ignored signals, and so would every process started here.
signal.signal(signal.SIGINT, signal.default_int_handler)
for _number in (signal.SIGHUP, signal.SIGTERM):
    signal.signal(_number, signal.SIG_DFL)

# A comparison's workers are forked from a process that has imported torch and jax; it starts with the first of them.
warm()

# The same examples in every run: a commit is not to fail by what was drawn. `make fuzz` draws anew.
hypothesis.settings.register_profile("same", deadline=None, derandomize="FUZZ_EXAMPLES" not in os.environ)
hypothesis.settings.load_profile("same")

TINY = "tiny-hunyuan-video-1.5"


@pytest.fixture(scope="session")
def tiny_case() -> Case:
    """The tiny HunyuanVideo-1.5 with its own sizes and prompt; the checkpoint is made where it is missing."""
    from parity.models.registry import make_case, resolve_model
    from parity.models.spec import GenerationSpec

    folder = resolve_model(TINY)
    return make_case(TINY, folder, GenerationSpec.load(folder))


@pytest.fixture(scope="session")
def tiny_inputs(tiny_case: Case) -> Callable[..., Inputs]:
    """`tiny_inputs(dtype="float32", steps=1)`: the explicit inputs of both sides, each made once."""
    from parity.models.registry import family_of
    from parity.paths.inputs import Inputs
    from parity.settings import parse
    from tests.inputs import make_inputs

    encoded: dict[str, Inputs] = {}

    def get(dtype: str = "float32", steps: int = 1) -> Inputs:
        if dtype not in encoded:
            given = parse("torch", [f"dtype={dtype}"])
            family = family_of(tiny_case.folder)
            encoded[dtype] = make_inputs(family, tiny_case, given)
        made = encoded[dtype]
        return Inputs(made.conditions, made.noise, steps, made.seed)

    return get


@pytest.fixture(scope="session")
def tiny_side(tiny_case: Case, tiny_inputs: Callable[..., Inputs]) -> Callable[..., Loaded]:
    """`tiny_side("torchax", "jit=false", steps=1)`: a side with these settings, loaded once; its programs stay."""
    from parity.models.registry import family_of
    from parity.paths.reference import load_reference
    from parity.settings import parse

    loaded: dict[tuple[str, tuple[str, ...], int], Loaded] = {}

    def get(backend: str, *assignments: str, steps: int = 1) -> Loaded:
        key = (backend, tuple(sorted(assignments)), steps)
        if key not in loaded:
            settings = parse("torch" if backend == "torch" else "torchax", assignments)
            inputs = tiny_inputs(settings.text("dtype"), steps)
            family = family_of(tiny_case.folder)
            if backend == "torch":
                loaded[key] = load_reference(family, tiny_case, settings, inputs)
            else:
                from parity.paths.jax.candidate import load_candidate

                loaded[key] = load_candidate(family, tiny_case, settings, inputs)
        return loaded[key]

    return get


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """moto's S3 server on a free port of the loopback. One for all tests: its buckets are global to the process."""
    server_module = pytest.importorskip("moto.server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = server_module.ThreadedMotoServer("127.0.0.1", port, verbose=False)
    server.start()
    yield f"http://127.0.0.1:{port}"
    server.stop()


@pytest.fixture
def bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a bucket, with the environment set so that s3fs finds the server."""
    fsspec = pytest.importorskip("fsspec")
    pytest.importorskip("s3fs")
    for name, value in {
        "AWS_ENDPOINT_URL": s3_endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    name = f"goldens-{uuid.uuid4().hex}"
    fsspec.filesystem("s3", skip_instance_cache=True).mkdir(name)
    yield f"s3://{name}"
    fsspec.get_filesystem_class("s3").clear_instance_cache()
