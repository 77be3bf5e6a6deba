"""A port's own scheduler and its own step of the loop run as they are: repeated timesteps and a wrong index are
named from them, before anything is computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.compare.result import Result
from parity.errors import UsageError
from parity.paths.live import InProcess
from tests.test_run_ports import check, compare

PORT = """
import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, HunyuanVideo15Transformer3DModel
from parity.port import Port


def schedule(steps):
    made = FlowMatchEulerDiscreteScheduler(shift=7.0)
    made.set_timesteps(sigmas=np.linspace(1.0, 0.0, steps + 1)[:-1])
    CHANGE
    return made


def loop(predictions, latents, step, scheduler):
    cond, uncond = predictions["cond"], predictions["uncond"]
    guided = uncond + SCALE * (cond - uncond)
    return guided, scheduler.step(guided, scheduler.timesteps[step], latents, return_dict=False)[0]


def build(case):
    net = HunyuanVideo15Transformer3DModel.from_pretrained(case.folder / "transformer")
    return Port(module=net, schedule=schedule, loop=loop)
"""


def run(folder: Path, change: str = "pass", scale: str = "6.0", steps: int = 2) -> Result:
    (folder / "port.py").write_text(PORT.replace("CHANGE", change).replace("SCALE", scale))
    model = "tiny-hunyuan-video-1.5"
    return compare(None, f"{folder}/port.py:build", model=model, openers=InProcess(), steps=steps, timeout=300.0)


def test_its_own_schedule_and_loop_pass_where_they_are_right(tmp_path: Path) -> None:
    result = run(tmp_path)
    assert result.verdict == "pass", result.reason
    assert [s.noise_pred.ratio < 3 for s in result.steps] == [True, True]


def test_a_lost_guidance_scale_of_its_own_loop_fails_at_noise_pred(tmp_path: Path) -> None:
    result = run(tmp_path, scale="5.0", steps=1)
    assert result.origin is not None
    assert (result.verdict, result.origin.key.site) == ("fail", "loop:noise_pred")


def test_timesteps_that_repeat_in_bfloat16_and_the_index_that_follows_are_named(tmp_path: Path) -> None:
    result = run(tmp_path, "made.timesteps = (made.timesteps * 1.02).clamp(max=1000).to(torch.bfloat16)", steps=50)
    assert (result.verdict, result.failed) == ("fail", "preflight")
    assert check(result, "candidate schedule").detail.startswith("timesteps repeat: 1000 (steps 0, 1")
    state = check(result, "scheduler state")
    assert state.detail.startswith("the candidate's scheduler already stands at step 1 before step 0: its first ")


def test_warm_up_calls_are_seen_on_its_own_counter(tmp_path: Path) -> None:
    warm = "x = torch.zeros(1); [made.step(x, t, x) for t in made.timesteps[:2]]"
    state = check(run(tmp_path, warm, steps=4), "scheduler state")
    assert state.verdict == "fail"
    assert state.detail.startswith("the candidate's scheduler already stands at step 2 before step 0: warm-up calls")


@pytest.mark.parametrize(
    ("change", "said"),
    [("return 3", "returned an object of type int without `timesteps`"), ("raise ValueError('no')", "ValueError: no")],
)
def test_a_schedule_that_is_none_is_an_error_of_one_line(change: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        run(tmp_path, change)
