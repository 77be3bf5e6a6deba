"""Models and loops that are not as diffusers' are: weights that are elsewhere, several videos at a time, calls that are
made again."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import parity
from parity.compare.conclude import LAST_STEP
from parity.compare.diff import diff
from parity.compare.independent import differences
from parity.errors import UsageError
from parity.golden import Golden
from tests.support.scripts import drawn, recorded, referenced


class Model(torch.nn.Module):
    """Blocks over rows, of which a mask says which are read."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(2))

    def forward(self, x: torch.Tensor, text: Any = None, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        for block in self.blocks:
            x = torch.tanh(block(x))
        if attention_mask is not None:
            x = x + (self.blocks[0](text) * attention_mask[..., None]).sum(1, keepdim=True)
        return x


class Scheduler:
    timesteps: Any = None
    sigmas: Any = None
    step_index: int | None = None

    def step(self, model_output: torch.Tensor, timestep: Any, sample: torch.Tensor) -> torch.Tensor:
        return sample - 0.1 * model_output


X = drawn(1, 8, 16)
TWO, TEXT = drawn(2, 8, 16), drawn(2, 6, 16, seed=2)
MASK = torch.tensor([[1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0]])


def loop(model: Any, x: torch.Tensor = X, *given: Any, scheduler: Scheduler | None = None) -> torch.Tensor:
    for i in range(2):
        x = (scheduler or Scheduler()).step(model(x, *given), i, x)
    return x


def golden(where: Path, call: Callable[[Scheduler], Any], model: Any, *, once: bool = True) -> Path:
    scheduler = Scheduler()
    (recorded if once else referenced)(where, lambda: call(scheduler), transformer=model, scheduler=scheduler)
    return where


def offloaded(model: Model) -> Any:
    return pytest.importorskip("accelerate").cpu_offload(model, execution_device=torch.device("cpu"))


def stored_in_8_bits(model: Model) -> Any:
    from diffusers.hooks import apply_layerwise_casting

    apply_layerwise_casting(model, storage_dtype=torch.float8_e4m3fn, compute_dtype=torch.float32)
    return model


class DistributedDataParallel(torch.nn.Module):
    def __init__(self, module: Model) -> None:
        super().__init__()
        self.module = module

    def forward(self, *given: Any) -> Any:
        return self.module(*given)


@pytest.mark.parametrize("change", [offloaded, DistributedDataParallel])
def test_a_model_that_is_wrapped_or_elsewhere_is_recorded(change: Callable[[Model], Any], tmp_path: Path) -> None:
    ours, theirs = Model(), change(Model())
    golden(tmp_path / "gpu", lambda s: loop(ours, scheduler=s), ours, once=False)
    golden(tmp_path / "tpu", lambda s: loop(theirs, scheduler=s), theirs, once=False)
    for pair in (("gpu", "tpu"), ("tpu", "gpu")):
        found = diff(*(tmp_path / name for name in pair))
        assert found.verdict == "pass", found.reason
        assert "blocks.1:out" in {d.key.site for d in found.sites}


def test_weights_that_are_stored_in_8_bits_are_recorded(tmp_path: Path) -> None:
    model = stored_in_8_bits(Model())
    where = golden(tmp_path / "gpu", lambda s: loop(model, scheduler=s), model)
    assert Golden.open(where).provenance.settings["dtype"] == "float32"
    assert diff(where, where).verdict == "pass"


@pytest.mark.parametrize(
    ("text", "item", "origin"),
    [
        (torch.where(MASK[..., None] > 0, TEXT, 5.0), -1, ""),
        (TEXT.index_put((torch.tensor(1), torch.tensor(4)), torch.tensor(5.0)), -1, ":in.text"),
        (TEXT, 1, "blocks.1:out"),
    ],
)
def test_each_item_of_a_batch_has_its_own_padding(text: torch.Tensor, item: int, origin: str, tmp_path: Path) -> None:
    model, other = Model(), Model()
    hook = lambda module, given, out: out.index_put((torch.tensor(item), torch.tensor(3)), out.new_zeros(16))  # noqa: E731
    if item >= 0:
        other.blocks[1].register_forward_hook(hook)
    golden(tmp_path / "gpu", lambda s: loop(model, TWO[:, :6], TEXT, MASK, scheduler=s), model, once=False)
    golden(tmp_path / "tpu", lambda s: loop(other, TWO[:, :6], text, MASK, scheduler=s), other)
    found = diff(tmp_path / "gpu", tmp_path / "tpu")
    assert ("" if found.origin is None else found.origin.key.site) == origin, found.reason


def test_two_videos_at_a_time_are_no_guidance_branches(tmp_path: Path) -> None:
    model = Model()

    def call(scheduler: Scheduler) -> None:
        x = TWO
        for i in range(2):
            x = scheduler.step(model(x) + 3 * (model(x) - model(x, TEXT, MASK)), i, x)

    where = golden(tmp_path / "gpu", call, model)
    first, second = (
        {r.key.branch: r.shape[0] for r in Golden.open(where).read_step(i).records if r.key.site == ":out"}
        for i in range(2)
    )
    assert first == second == {"cond": 2, "uncond": 2, "call3": 2}


def test_two_videos_from_one_noise_are_known_once_they_are_given_again(tmp_path: Path) -> None:
    model, same = Model(), X.repeat(2, 1, 1)

    def call(scheduler: Scheduler) -> None:
        for i in range(2):
            scheduler.step(model(same) + 3 * (model(same) - model(same, TEXT, MASK)), i, same)

    where = golden(tmp_path / "gpu", call, model)
    first, second = (
        {r.key.branch: r.shape[0] for r in Golden.open(where).read_step(i).records if r.key.site == ":out"}
        for i in range(2)
    )
    assert first == {"uncond": 2, "call3": 2}  # of the first call it is known once it is over
    assert second == {"cond": 2, "uncond": 2, "call3": 2}


Guided = Callable[[Model, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""The predictions of two videos: unconditional, and with a text each."""
ONES = torch.ones_like(MASK)


def in_order_of(rows: list[int]) -> Guided:
    """One call: rows 0 and 1 are the videos without a text, 2 and 3 with one; more of them fill the batch up."""

    def guided(model: Model, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        latents, text = torch.cat([x, x])[rows], torch.cat([TEXT * 0, TEXT])[rows]
        out = model(latents, text, torch.cat([ONES, ONES])[rows])
        return out[[rows.index(0), rows.index(1)]], out[[rows.index(2), rows.index(3)]]

    return guided


def filled_with_zeros(model: Model, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    zeros = torch.zeros_like(torch.cat([x, x]))
    out = model(torch.cat([x, x, zeros]), torch.cat([TEXT * 0, TEXT, TEXT, TEXT]), torch.cat([ONES] * 4))
    return out[:2], out[2:4]


def one_after_the_other(model: Model, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    with_text = model(x, TEXT, ONES)
    return model(x, TEXT * 0, ONES), with_text


def video_by_video(model: Model, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    both = [
        model(x[i : i + 1].repeat(2, 1, 1), torch.cat([TEXT[i : i + 1] * 0, TEXT[i : i + 1]]), ONES) for i in (0, 1)
    ]
    return torch.stack([x[0] for x in both]), torch.stack([x[1] for x in both])


@pytest.mark.parametrize(
    ("guided", "compared"),
    [
        (in_order_of([0, 1, 2, 3]), 2),
        (in_order_of([2, 3, 0, 1]), 2),
        (in_order_of([0, 2, 1, 3]), 2),
        (in_order_of([0, 1, 2, 3, 3, 3, 3, 3]), 2),
        (filled_with_zeros, 2),
        (one_after_the_other, 2),
        (video_by_video, 0),
    ],
    ids=["batched", "cond first", "interleaved", "filled up", "with zeros", "one after the other", "video by video"],
)
@pytest.mark.parametrize("scale", [3.0, 4.0])
def test_branches_of_several_videos_lie_anywhere_in_batches(
    guided: Guided, compared: int, scale: float, tmp_path: Path
) -> None:
    model = Model()

    def call(scheduler: Scheduler, how: Guided, scale: float) -> None:
        x = TWO
        for i in range(2):
            uncond, cond = how(model, x)
            x = scheduler.step(uncond + scale * (cond - uncond), i, x)

    golden(tmp_path / "gpu", lambda s: call(s, in_order_of([0, 1, 2, 3]), 3.0), model, once=False)
    golden(tmp_path / "tpu", lambda s: call(s, guided, scale), model)
    found = diff(tmp_path / "gpu", tmp_path / "tpu")
    right = "pass" if compared else "inconclusive"
    assert found.verdict == (right if scale == 3.0 else "fail"), found.reason
    assert found.origin is None or found.origin.key.site == "loop:noise_pred"
    assert any(f"{compared} of the reference's 2 modules" in note.text for note in found.notes) or scale == 4.0
    assert compared or "shape [2, 8, 16] against [1, 8, 16]" in found.reason + str(found.notes)
    assert list(map(str, differences(found))) == ([] if scale == 3.0 else ["guidance"])


THREE = ("uncond", "cond", "skip")


@pytest.mark.parametrize("x", [X, TWO], ids=["one video", "two"])
@pytest.mark.parametrize("calls", [[3], [2, 1], [1, 2], [1, 1, 1]], ids=str)
def test_names_of_branches_are_used_up_in_the_order_of_a_steps_rows(
    calls: list[int], x: torch.Tensor, tmp_path: Path
) -> None:
    model, scheduler = Model(), Scheduler()
    texts = [TEXT[: len(x)] * factor for factor in (0, 1, 2)]
    with (
        torch.no_grad(),
        parity.record(
            tmp_path / "gpu", transformer=model, scheduler=scheduler, branches=THREE, runs=0, values=[":in.text"]
        ),
    ):
        left = list(texts)
        for many in calls:
            given, left = torch.cat(left[:many]), left[many:]
            model(torch.cat([x] * many), given, torch.ones(given.shape[:2]))
        scheduler.step(x, 0, x)
    records = Golden.open(tmp_path / "gpu").read_step(0).records
    found = {r.key.branch: r.value for r in records if r.key.site == ":in.text"}
    assert list(found) == list(THREE)
    assert all(np.array_equal(found[name], text) for name, text in zip(THREE, texts, strict=True))


def test_a_call_that_failed_and_is_made_again_counts_once(tmp_path: Path) -> None:
    model = Model()

    def call(scheduler: Scheduler) -> None:
        with pytest.raises(RuntimeError):
            model(X[..., :8])
        loop(model, scheduler=scheduler)

    where = golden(tmp_path / "gpu", call, model)
    assert {r.key.branch for r in Golden.open(where).read_step(0).records} == {"", "cond"}


def test_what_is_complex_is_named_whole(tmp_path: Path) -> None:
    model = Model()

    def call(scheduler: Scheduler, imaginary: float) -> None:
        parity.tap("rope", torch.ones(4, 8) + imaginary * 1j)
        loop(model, scheduler=scheduler)

    golden(tmp_path / "gpu", lambda s: call(s, 0.3), model, once=False)
    golden(tmp_path / "tpu", lambda s: call(s, -0.3), model)
    found = diff(tmp_path / "gpu", tmp_path / "tpu")
    assert (found.verdict, found.origin and found.origin.key.site) == ("fail", "rope:out")


def test_a_nest_that_holds_itself_is_recorded(tmp_path: Path) -> None:
    model, given = Model(), {"x": X}
    given["self"] = given  # type: ignore[assignment]
    where = golden(tmp_path / "gpu", lambda s: loop(model, X, given, scheduler=s), model)
    assert Golden.open(where).complete


class Timed(Model):
    def forward(self, x: torch.Tensor, timestep: float, text: Any = None) -> torch.Tensor:
        return super().forward(x) * (1 + timestep / 1000) + (0 if text is None else text.mean())


def own_loop(model: Timed, by: float, *, guided: bool = True, warm: bool = False, scheduler: Any = None) -> None:
    x = X
    if warm:
        model(torch.zeros_like(x), 900.0, TEXT)
    for timestep in (900.0, 600.0, 300.0):
        out = model(x, timestep, TEXT)
        out = out + 2 * (out - model(x, timestep)) if guided else out
        x = x + by * out if scheduler is None else scheduler.step(out, timestep, x)


def test_steps_end_where_any_of_the_timesteps_changes(tmp_path: Path) -> None:
    """Diffusion forcing: each frame has its own, of which the largest stays for long."""

    class PerRow(Model):
        def forward(self, x: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * (1 + timestep[:, :, None] / 1000)

    model, x = PerRow(), X
    with torch.no_grad(), parity.record(tmp_path / "gpu", transformer=model, runs=0):
        for times in ([900.0] * 8, [600.0] * 4 + [900.0] * 4, [300.0] * 4 + [900.0] * 4, [300.0] * 4 + [600.0] * 4):
            x = x - 0.1 * model(x, timestep=torch.tensor([times])) - 0.2 * model(x, timestep=torch.tensor([times]))
    golden = Golden.open(tmp_path / "gpu")
    assert golden.steps == (0, 1, 2, 3)
    assert all({r.key.branch for r in golden.read_step(i).records} == {"cond", "uncond"} for i in range(4))


@pytest.mark.parametrize("guided", [True, False])
@pytest.mark.parametrize(
    ("by", "scheduler", "warm", "origin"),
    [
        (-0.1, Scheduler(), False, ""),
        (-0.1, None, False, ""),
        (-0.1, None, True, ""),
        (0.1, Scheduler(), False, ":in.x"),
        (0.1, None, False, ":in.x"),
    ],
)
def test_a_loop_that_computes_its_own_updates_has_steps(
    by: float, scheduler: Any, warm: bool, origin: str, guided: bool, tmp_path: Path
) -> None:
    ours, theirs = Timed(), Timed()
    golden(tmp_path / "gpu", lambda s: own_loop(ours, 0, guided=guided, scheduler=s), ours, once=False)
    call = lambda: own_loop(theirs, by, guided=guided, warm=warm)  # noqa: E731
    recorded(tmp_path / "tpu", call, transformer=theirs, scheduler=scheduler)
    found = diff(tmp_path / "gpu", tmp_path / "tpu")
    assert Golden.open(tmp_path / "tpu").steps == (0, 1, 2)
    assert {d.key.step for d in found.sites if d.key.site == "blocks.1:out"} == {0, 1, 2}
    assert (found.verdict, found.origin and (found.origin.key.step, found.origin.key.site)) == (
        ("fail", (1, origin)) if origin else ("pass", None)
    ), found.reason
    assert any(note.text == LAST_STEP for note in found.notes) == (found.verdict == "pass")


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("scheduler", [None, Scheduler()])
def test_a_timestep_of_heun_is_of_two_steps(scheduler: Any, warm: bool, tmp_path: Path) -> None:
    """A corrector's calls and the next predictor's, each of both branches, on latents that are hardly apart."""
    model, x, out = Timed(), X, torch.zeros_like(X)
    with torch.no_grad(), parity.record(tmp_path / "gpu", transformer=model, scheduler=scheduler, runs=0):
        for timestep in (900.0, 600.0, 600.0, 300.0, 300.0):
            _ = [model(out, timestep)] if warm and timestep == 900.0 else []
            x = x - 1e-3 * (model(x, timestep) + 2 * model(x, timestep))
    golden = Golden.open(tmp_path / "gpu")
    assert [{r.key.branch for r in golden.read_step(i).records} for i in golden.steps] == [{"cond", "uncond"}] * 5


@pytest.mark.parametrize("first", [0.0, math.nan])
def test_a_loop_that_hardly_moves_its_latents_keeps_both_branches(first: float, tmp_path: Path) -> None:
    model, scheduler, x = Timed(), Scheduler(), X.clone()
    x[0, 0, 0] += first
    with torch.no_grad(), parity.record(tmp_path / "gpu", transformer=model, scheduler=scheduler, runs=0):
        for timestep in (900.0, 899.0, 898.0):
            uncond, cond = model(torch.cat([x, x]), timestep).chunk(2)
            x = x + 1e-4 * (uncond + 2 * (cond - uncond))
    golden = Golden.open(tmp_path / "gpu")
    assert [{r.key.branch for r in golden.read_step(i).records} for i in golden.steps] == [{"cond", "uncond"}] * 3


@pytest.mark.parametrize(("last", "origin"), [(1.0, None), (1.01, "final:out")])
def test_what_a_loop_without_a_scheduler_ends_in_is_compared_where_it_is_named(
    last: float, origin: str | None, tmp_path: Path
) -> None:
    """The last update is in no later call."""

    def run(scheduler: Any = None) -> None:
        x = X
        for timestep in (900.0, 600.0, 300.0):
            out = model(x, timestep)
            parity.tap("each", out)
            by = -0.1 * (last if timestep == 300.0 else 1.0)
            x = x + by * out if scheduler is None else scheduler.step(out, timestep, x)
        parity.tap("final", x)

    model = Timed()
    golden(tmp_path / "gpu", run, model, once=False)
    recorded(tmp_path / "tpu", run, transformer=model)
    found = diff(tmp_path / "gpu", tmp_path / "tpu")
    assert (found.verdict, found.origin and found.origin.key.site) == ("fail" if origin else "pass", origin), (
        found.reason
    )


@pytest.mark.parametrize(("wrong", "listed"), [(1.0, []), (1.01, ["scaled"])])
@pytest.mark.parametrize("first", [True, False])
def test_what_is_named_around_an_update_is_of_the_same_step_with_and_without_a_scheduler(
    first: bool, wrong: float, listed: list[str], tmp_path: Path
) -> None:
    """Args: first: whether the reference is the side with the scheduler."""

    def run(scheduler: Any, wrong: float = 1.0) -> None:
        x = X
        for timestep in (900.0, 600.0, 300.0, 100.0):
            parity.tap("begun", 2 * x)
            out = parity.tap("scaled", model(x, timestep) * (wrong if timestep == 600.0 else 1.0))
            x = parity.tap("moved", x - 0.1 * out if scheduler is None else scheduler.step(out, timestep, x))
        parity.tap("final", x)

    model = Timed()
    ours, theirs = (Scheduler(), None) if first else (None, Scheduler())
    referenced(tmp_path / "gpu", lambda: run(ours), transformer=model, scheduler=ours)
    recorded(tmp_path / "tpu", lambda: run(theirs, wrong), transformer=model, scheduler=theirs)
    found = diff(tmp_path / "gpu", tmp_path / "tpu")
    assert [d.place for d in differences(found)] == listed, found.reason
    met = {(d.key.module, d.key.step) for d in found.sites if d.key.branch == "" and all(d.dtypes)}
    assert met >= {("moved", 1), ("moved", 2), ("moved", 3), ("moved", -1), *(("begun", step) for step in range(4))}


PICTURE = drawn(1, 16, 2, 4)
LAYOUTS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]] = {
    "first": (lambda x: x, lambda x: x),
    "last": (lambda x: x.movedim(1, -1), lambda x: x.movedim(-1, 1)),
    "tokens": (lambda x: x.flatten(2).mT, lambda x: x.mT.unflatten(2, (2, 4))),
}
"""Of a picture, and back."""


class Short(Scheduler):
    def step(self, model_output: torch.Tensor, timestep: Any, sample: torch.Tensor) -> torch.Tensor:
        return sample - 0.09 * model_output


@pytest.mark.parametrize(
    ("layout", "scheduler", "origin"),
    [
        ("last", Scheduler(), None),
        ("last", Short(), (0, "loop:latents.after")),
        ("tokens", Scheduler(), None),
        ("tokens", Short(), (1, ":in.x")),
    ],
)
def test_a_loop_may_keep_its_latents_in_another_layout(
    layout: str, scheduler: Scheduler, origin: Any, tmp_path: Path
) -> None:
    model, tokens = Model(), LAYOUTS["tokens"]

    def run(layout: str, scheduler: Scheduler) -> torch.Tensor:
        into, back = LAYOUTS[layout]
        x = into(PICTURE)
        for i in range(3):
            out = model(tokens[0](back(x)), TEXT[:1], MASK[:1])
            x = scheduler.step(into(tokens[1](out)), i, x)
        return x

    golden(tmp_path / "gpu", lambda s: run("first", s), model, once=False)
    recorded(tmp_path / "tpu", lambda: run(layout, scheduler), transformer=model, scheduler=scheduler)
    found = diff(tmp_path / "gpu", tmp_path / "tpu")
    assert found.verdict == ("fail" if origin else "pass"), found.reason
    assert (found.origin and (found.origin.key.step, found.origin.key.site)) == origin, found.reason
    assert any(note.text == LAST_STEP for note in found.notes) == (layout == "tokens" and not origin)


def test_what_is_called_to_compile_is_no_step(tmp_path: Path) -> None:
    model = Timed()
    golden(tmp_path / "gpu", lambda s: own_loop(model, 0, scheduler=s), model, once=False)
    where = golden(tmp_path / "tpu", lambda s: own_loop(model, 0, warm=True, scheduler=s), model)
    assert {r.key.branch for r in Golden.open(where).read_step(0).records} == {"", "cond", "uncond"}
    assert diff(tmp_path / "gpu", where).verdict == "pass"


def test_a_scheduler_that_is_not_the_loop_s_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, scheduler = Timed(), Scheduler()
    scheduler.timesteps = torch.arange(1000)
    recorded(tmp_path / "g", lambda: own_loop(model, 0), transformer=model, scheduler=scheduler)
    assert "the scheduler that was given made no step" in capsys.readouterr().err
    golden(tmp_path / "gpu", lambda s: own_loop(model, 0), model, once=False)
    assert diff(tmp_path / "gpu", tmp_path / "g").verdict == "pass"


def test_named_values_of_every_library_are_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jax = pytest.importorskip("jax")
    model = Timed()

    def run() -> Any:
        for name, x in (
            ("numpy", X.numpy()),
            ("jax", jax.numpy.asarray(X.numpy(), jax.numpy.bfloat16)),
            ("number", 3.0),
            ("object", np.array([object()])),
            ("loop:noise_pred", X),
        ):
            parity.tap(name, x)
        jax.jit(lambda x: parity.tap("traced", x))(1.0)
        return own_loop(model, 0)

    recorded(tmp_path / "g", run, transformer=model)
    sites = {r.key.site: r.dtype for r in Golden.open(tmp_path / "g").read_step(0).records}
    assert (sites["numpy:out"], sites["jax:out"]) == ("float32", "bfloat16")
    said = capsys.readouterr().err
    assert "tap('number', x): x is of type float and is not recorded" in said
    assert "tap('traced', x): x is a value of a compiled function and is not recorded" in said
    assert "tap('object', x): x is not recorded: TypeError" in said
    assert "tap('loop:noise_pred', x): x is not recorded: its name" in said


def test_calls_in_several_threads_end_the_recording_and_not_the_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = threading.Barrier(2, timeout=60)

    class Waiting(Model):
        def forward(self, x: torch.Tensor, text: Any = None) -> torch.Tensor:
            both.wait()
            return super().forward(x)

    model = Waiting()
    with torch.no_grad(), ThreadPoolExecutor(2) as pool:
        alone = list(pool.map(model, (X, 2 * X)))
        with parity.record(tmp_path / "g", transformer=model, runs=0):
            observed = list(pool.map(model, (X, 2 * X)))
        both.reset()
        again = list(pool.map(model, (X, 2 * X)))
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(alone, observed, again, strict=True))
    assert "the transformer is called in several threads at once" in capsys.readouterr().err


class Wrapping(torch.nn.Module):
    """A function of somebody else's library in a module, which names what it computes; it holds no modules itself."""

    def __init__(self, wrong: float = 1.0) -> None:
        super().__init__()
        self.blocks_of, self.wrong = [*Model().blocks], wrong

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i, block in enumerate(self.blocks_of):
            x = torch.tanh(parity.tap(f"blocks.{i}", block(parity.tap(f"blocks.{i}:in.input", x)) * self.wrong**i))
        return x


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize(("wrong", "origin"), [(1.0, ""), (1.1, "blocks.1:out")])
def test_values_that_a_call_names_are_of_its_branch(wrong: float, origin: str, batched: bool, tmp_path: Path) -> None:
    def run(model: Any, scheduler: Scheduler) -> Any:
        x = X
        for i in range(2):
            both = model(torch.cat([x, x])) if batched else torch.cat([model(x), model(x)])
            x = scheduler.step(both[:1] + 2.0 * (both[1:] - both[:1]), i, x)
        return x

    ours, theirs = Model(), Wrapping(wrong)
    golden(tmp_path / "gpu", lambda s: run(ours, s), ours, once=False)
    found = diff(tmp_path / "gpu", golden(tmp_path / "tpu", lambda s: run(theirs, s), theirs))
    compared = {d.key.branch for d in found.sites if d.key.site == "blocks.1:out" and d.verdict != "not compared"}
    assert compared == {"cond", "uncond"}
    assert ("" if found.origin is None else found.origin.key.site) == origin, found.reason
    assert found.verdict == ("fail" if origin else "pass"), found.reason


def test_a_transformer_that_was_not_called_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path / "g", lambda: parity.tap("x:out", X), transformer=Timed())
    assert "no call of the transformer was seen" in capsys.readouterr().err


def test_a_weight_that_is_not_finite_is_other_weights(tmp_path: Path) -> None:
    model, broken = Timed(), Timed()
    with torch.no_grad():
        broken.blocks[1].weight[3, 5] = torch.nan
    golden(tmp_path / "gpu", lambda s: own_loop(model, 0, scheduler=s), model, once=False)
    found = diff(tmp_path / "gpu", golden(tmp_path / "tpu", lambda s: own_loop(broken, 0, scheduler=s), broken))
    assert (found.verdict, "hold NaN or infinities in the candidate alone" in found.reason) == ("fail", True)


class Adapted(torch.nn.Linear):
    """A layer with an adapter, whose product `merge` adds to the weight."""

    def __init__(self) -> None:
        super().__init__(16, 16)
        self.down, self.up = (torch.nn.Parameter(0.3 * torch.randn(shape)) for shape in ((2, 16), (16, 2)))
        self.merged = False

    def merge(self, scale: float) -> None:
        self.weight.data += scale * (self.up.double() @ self.down.double()).to(self.weight.dtype)
        self.merged = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = super().forward(x)
        return made if self.merged else made + x @ self.down.T @ self.up.T


@pytest.mark.parametrize(
    ("dtype", "scale", "verdict"),
    [
        (torch.float32, 1.0, "pass"),
        (torch.float32, 1.01, "fail"),
        (torch.bfloat16, 1.0, "fail"),  # in whose floors a small weight hides
    ],
)
def test_a_merged_adapter_is_no_fault_where_float32_shows_it(
    dtype: torch.dtype, scale: float, verdict: str, tmp_path: Path
) -> None:
    ours, theirs = Model(), Model()
    for model in (ours, theirs):
        torch.manual_seed(3)
        model.blocks = torch.nn.ModuleList(Adapted() for _ in range(2))
        model.to(dtype)
    for block in theirs.blocks:
        assert isinstance(block, Adapted)
        block.merge(scale)
    x = X.to(dtype)
    golden(tmp_path / "gpu", lambda s: loop(ours, x, scheduler=s), ours, once=False)
    found = diff(tmp_path / "gpu", golden(tmp_path / "tpu", lambda s: loop(theirs, x, scheduler=s), theirs))
    assert found.verdict == verdict, found.reason
    assert ("2 of 8 parameters have other values" in found.reason) == (verdict == "fail")


def test_two_recordings_without_a_scheduler_say_what_was_not_compared(tmp_path: Path) -> None:
    model = Model()
    referenced(tmp_path / "gpu", lambda: loop(model), transformer=model)
    recorded(tmp_path / "tpu", lambda: loop(model), transformer=model)
    found = diff(tmp_path / "gpu", tmp_path / "tpu")
    assert found.verdict == "pass", found.reason
    assert any(note.text.startswith("no scheduler was recorded") for note in found.notes)


def test_steps_without_a_scheduler_are_not_counted_off(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="stop_after counts steps of a scheduler"):
        parity.record(tmp_path / "gpu", transformer=Model(), stop_after=1)


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (lambda: torch.randn(4, dtype=torch.complex64).conj(), ""),
        (lambda: torch.eye(4).to_sparse(), ""),
        (lambda: torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)]), "1 parameters cannot be read"),
    ],
    ids=["a conjugate", "sparse", "nested"],
)
def test_what_numpy_does_not_hold_ends_no_recording(
    held: Callable[[], torch.Tensor], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Model()
    model.register_buffer("held", held())
    golden(tmp_path / "tpu", lambda s: loop(model, scheduler=s), model)
    assert ("held" in Golden.open(tmp_path / "tpu").provenance.weights) == (not said)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("timestep", [None, "last", {"at": 1}])
def test_a_step_without_a_number_ends_no_recording(timestep: object, tmp_path: Path) -> None:
    model, scheduler = Model(), Scheduler()
    scheduler.timesteps, scheduler.sigmas, scheduler.step_index = torch.zeros(2, 3), torch.ones(2, 3), 1

    def go() -> None:
        scheduler.step(model(X), timestep, X)

    recorded(tmp_path / "tpu", go, transformer=model, scheduler=scheduler)
    assert Golden.open(tmp_path / "tpu").complete


class Own(Scheduler):
    """A scheduler of one's own, whose numbers are of any library."""

    def __init__(self, of: Callable[[Any], Any], wrong: float = 1.0) -> None:
        self.timesteps, self.sigmas = of(np.float32([0, 1, 2])), of(np.float32([1.0, 0.7, 0.3 * wrong, 0.0]))

    def step(self, model_output: torch.Tensor, timestep: Any, sample: torch.Tensor) -> torch.Tensor:
        return sample + (float(self.sigmas[timestep + 1]) - float(self.sigmas[timestep])) * model_output


@pytest.mark.parametrize("of", [np.asarray, np.ndarray.tolist, lambda x: pytest.importorskip("jax.numpy").asarray(x)])
@pytest.mark.parametrize("wrong", [1.0, 1.1])
def test_a_schedule_may_be_of_any_numbers_and_its_steps_are_no_other_difference(
    of: Callable[[Any], Any], wrong: float, tmp_path: Path
) -> None:
    model, ours, theirs = Model(), Own(torch.tensor), Own(of, wrong)

    def go(scheduler: Own) -> torch.Tensor:
        x = X
        for i in range(3):
            x = scheduler.step(model(x), i, x)
        return x

    referenced(tmp_path / "gpu", lambda: go(ours), transformer=model, scheduler=ours)
    recorded(tmp_path / "tpu", lambda: go(theirs), transformer=model, scheduler=theirs)
    found = diff(tmp_path / "gpu", tmp_path / "tpu")
    assert [d.place for d in differences(found)] == ([] if wrong == 1.0 else ["the schedule"]), found.reason


@pytest.mark.parametrize(
    ("unit", "given", "places"),
    [
        (1e-3, 1.0, []),
        (1.1e-3, 1.0, ["the schedule"]),
        (1e-3, 1e-3, ["the argument timestep"]),
    ],
)
def test_a_schedule_may_have_another_unit_than_the_model(
    unit: float, given: float, places: list[str], tmp_path: Path
) -> None:
    def go(scheduler: Scheduler, unit: float = 1.0, given: float = 1.0) -> None:
        x, times = X, np.float32([900.0, 600.0, 300.0])
        scheduler.timesteps = torch.tensor(times * np.float32(unit))
        for timestep, own in zip(times, scheduler.timesteps, strict=True):
            x = scheduler.step(model(x, timestep=torch.tensor([timestep * given])), own, x)

    model = Timed()
    ours, theirs = Scheduler(), Scheduler()
    referenced(tmp_path / "gpu", lambda: go(ours), transformer=model, scheduler=ours)
    recorded(tmp_path / "tpu", lambda: go(theirs, unit, given), transformer=model, scheduler=theirs)
    found = diff(tmp_path / "gpu", tmp_path / "tpu")
    assert [d.place for d in differences(found)] == places, found.reason
    assert (found.verdict == "pass") == (not places)


class Lists(Model):
    """A batch as a list, as the authors of Wan have it; the text comes first."""

    def forward(self, text: list[torch.Tensor], video: list[torch.Tensor]) -> list[torch.Tensor]:
        return [super(Lists, self).forward(x[None])[0] + t.sum() for x, t in zip(video, text, strict=True)]


def at_once(model: Lists, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.stack(model([*(TEXT * 0), *TEXT], [*x, *x]))
    return out[:2], out[2:]


def in_turn(model: Lists, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    with_text = torch.stack(model(list(TEXT), list(x)))
    return torch.stack(model(list(TEXT * 0), list(x))), with_text


@pytest.mark.parametrize("guided", [at_once, in_turn])
@pytest.mark.parametrize("scale", [3.0, 4.0])
def test_a_list_of_tensors_is_a_batch(guided: Any, scale: float, tmp_path: Path) -> None:
    model = Lists()

    def call(scheduler: Scheduler, how: Any, scale: float) -> None:
        x = TWO[:, None]  # of more axes than the text
        for i in range(2):
            uncond, cond = how(model, x)
            x = scheduler.step(uncond + scale * (cond - uncond), i, x)

    golden(tmp_path / "gpu", lambda s: call(s, at_once, 3.0), model, once=False)
    golden(tmp_path / "tpu", lambda s: call(s, guided, scale), model)
    found = diff(tmp_path / "gpu", tmp_path / "tpu")
    assert found.verdict == ("pass" if scale == 3.0 else "fail"), found.reason
    assert list(map(str, differences(found))) == ([] if scale == 3.0 else ["guidance"])


@pytest.mark.parametrize("guided", [in_order_of([2, 3, 0, 1]), in_order_of([0, 2, 1, 3]), one_after_the_other])
def test_videos_from_one_noise_in_another_layout_pass(guided: Guided, tmp_path: Path) -> None:
    """In the first step nothing tells a branch from a video, until the scheduler is given so many of these."""
    model = Model()

    def call(scheduler: Scheduler, how: Guided) -> None:
        x = X.repeat(2, 1, 1)
        for i in range(2):
            uncond, cond = how(model, x)
            x = scheduler.step(uncond + 3.0 * (cond - uncond), i, x)

    golden(tmp_path / "gpu", lambda s: call(s, in_order_of([0, 1, 2, 3])), model, once=False)
    golden(tmp_path / "tpu", lambda s: call(s, guided), model)
    found = diff(tmp_path / "gpu", tmp_path / "tpu")
    assert found.verdict == "pass", found.reason
    assert any("2 of the reference's 2 modules" in note.text for note in found.notes)


@pytest.mark.parametrize("frames_first", [True, False])
def test_condition_channels_of_a_branch_lie_behind_the_latents(frames_first: bool, tmp_path: Path) -> None:
    model, axis = torch.nn.Conv3d(3, 2, 1), 2 if frames_first else 1
    latents, picture = drawn(1, 2, 2, 4, 4), drawn(1, 2, 1, 4, 4) if frames_first else drawn(1, 1, 2, 4, 4)

    def call(scheduler: Scheduler, order: list[int]) -> None:
        x = latents
        for i in range(2):
            given = torch.cat([torch.cat([x, x]), torch.cat([picture * 0, picture])], axis)[order]
            out = model(given.transpose(1, 2) if frames_first else given)[[order.index(0), order.index(1)]]
            out = out.transpose(1, 2) if frames_first else out
            x = scheduler.step(out[:1] + 3.0 * (out[1:] - out[:1]), i, x)

    golden(tmp_path / "gpu", lambda s: call(s, [0, 1]), model, once=False)
    golden(tmp_path / "tpu", lambda s: call(s, [1, 0]), model)
    assert diff(tmp_path / "gpu", tmp_path / "tpu").verdict == "pass"


def test_values_may_be_of_what_a_port_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One of JAX that a script wraps has no modules; its attention is what it names so."""

    model = Timed()

    def call() -> None:
        model(X, 900.0)
        parity.tap("blocks.0.attention:in.query", X)
        parity.tap("named", X)

    recorded(tmp_path / "g", call, transformer=model, values=["*.attention", "blocks.7"])
    held = {r.key.site for r in Golden.open(tmp_path / "g").read_step(0).records if isinstance(r.value, np.ndarray)}
    assert {site for site in held if site.startswith(("blocks", "named"))} == {"blocks.0.attention:in.query"}
    assert "no module and no name of a parity.tap matches 'blocks.7'" in capsys.readouterr().err
