"""Pitfalls of the loop: noise, timesteps, guidance, stages, the scheduler."""

from __future__ import annotations

from typing import Any

import diffusers
import numpy as np
import torch
from change import drawn
from loops import STEPS, Wan, euler, guided, noise
from pitfall import Pitfall, Side

B16 = torch.bfloat16


def global_rng(right: bool) -> Side:
    """`MultivariateNormal.sample` draws from torch's global generator, whatever generator the script has."""

    def start(stage: int, before: torch.Tensor | None) -> torch.Tensor:
        torch.manual_seed(5)
        if not right:
            torch.randn(3)  # somebody drew in between
        normal = torch.distributions.MultivariateNormal(torch.zeros(8), torch.eye(8))
        return normal.sample((1, 4, 3, 8))

    return Wan(start=start).side()


def timestep_dtype(right: bool) -> Side:
    return Wan(time=lambda t: (t.long() if right else t).expand(1)).side()


def zeroed(most: int) -> Any:
    def zero_init(cond: torch.Tensor, uncond: torch.Tensor, step: int) -> torch.Tensor:
        return torch.zeros_like(cond) if step <= most else guided(cond, uncond, step)

    return zero_init


def guidance_parameters(right: bool) -> Side:
    """`zero_steps=1` zeroes while i <= 1, `zero_init_steps=1` while step < 1."""
    return Wan(guided=zeroed(1 if right else 0)).side()


def block_noise(patch: int) -> torch.Tensor:
    """Noise [1, 4, 3, 8, 8] whose blocks of `patch` x `patch` pixels are correlated."""
    size, gamma = patch * patch, 0.3
    root = torch.linalg.cholesky(torch.eye(size) * (1 + gamma) - torch.ones(size, size) * gamma)
    z = drawn(1, 4, 3, 8 // patch, 8 // patch, size, seed=7) @ root.T
    z = z.view(1, 4, 3, 8 // patch, 8 // patch, patch, patch)
    return z.permute(0, 1, 2, 3, 5, 4, 6).reshape(1, 4, 3, 8, 8)


def patch_size_of_noise(right: bool) -> Side:
    return Wan(start=lambda stage, before: block_noise(2 if right else 1)).side()


def shadowed_latents(right: bool) -> Side:
    """Two chunks; the loop over timesteps assigns to the name that holds the chunk's noise."""

    def start(stage: int, before: torch.Tensor | None) -> torch.Tensor:
        return noise(7 + stage) if right or before is None else before

    return Wan(stages=2, start=start).side()


def precision(right: bool) -> Side:
    return Wan(dtype=torch.float32 if right else B16).side()


def scheduler_state(right: bool) -> Side:
    """The second stage begins in the middle of the schedule; UniPC keeps the predictions of the first."""

    def schedule(scheduler: Any, stage: int) -> None:
        kept = scheduler.model_outputs, scheduler.timestep_list, scheduler.lower_order_nums, scheduler.last_sample
        scheduler.set_timesteps(STEPS * (1 + stage))
        scheduler.set_begin_index(STEPS * stage)
        if stage and not right:
            scheduler.model_outputs, scheduler.timestep_list, scheduler.lower_order_nums, scheduler.last_sample = kept

    unipc = diffusers.UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0, disable_corrector=[0]
    )
    return Wan(stages=2, skipped=STEPS, scheduler=unipc, schedule=schedule).side()


class Guider:
    """Zero-init guidance that counts the steps itself."""

    def __init__(self) -> None:
        self.step = 0

    def __call__(self, cond: torch.Tensor, uncond: torch.Tensor, step: int) -> torch.Tensor:
        self.step += 1
        return torch.zeros_like(cond) if self.step <= 1 else guided(cond, uncond, step)


def guider_state(right: bool) -> Side:
    guider = Guider()

    def schedule(scheduler: Any, stage: int) -> None:
        if right:
            guider.step = 0
        scheduler.set_timesteps(STEPS)

    return Wan(stages=2, guided=guider, schedule=schedule).side()


def noise_dtype(right: bool) -> Side:
    return Wan(start=lambda stage, before: noise() if right else noise().to(B16).float()).side()


def one_over_sigma(right: bool) -> Side:
    """Euler written with the clean sample: v = (latents - x0) / sigma; noise in bfloat16 on one side, many steps."""

    def step(scheduler: Any, v: torch.Tensor, t: torch.Tensor, latents: torch.Tensor) -> torch.Tensor:
        sigma = (t / 1000).item()
        again = (latents - (latents - sigma * v)) / sigma
        return scheduler.step(again, t, latents, return_dict=False)[0]

    return Wan(
        start=lambda stage, before: noise() if right else noise().to(B16).float(),
        schedule=lambda scheduler, stage: scheduler.set_timesteps(8),
        step=step,
    ).side()


def incomplete_injection(right: bool) -> Side:
    """Latents and text are the reference's; the sigmas are this side's own."""
    return Wan(scheduler=euler(shift=3.0 if right else 5.0)).side()


def stale_fixtures(right: bool) -> Side:
    """The reference's tensors are of another version of the weights."""
    return Wan(seed=1 if right else 2).side()


def guidance_order(right: bool) -> Side:
    def late(cond: torch.Tensor, uncond: torch.Tensor, step: int) -> torch.Tensor:
        return cond + 3.0 * (cond - uncond)

    return Wan(dtype=B16, guided=guided if right else late, start=lambda stage, before: noise()).side()


def float64_schedule(right: bool) -> Side:
    """A shift by exp(mu): in float64 through numpy, or in float32 throughout."""
    mu = 1.1

    def schedule(scheduler: Any, stage: int) -> None:
        t = np.linspace(1.0, 1 / 8, 8, dtype=np.float32)
        if right:
            e = torch.exp(torch.tensor(mu))
            sigmas = (e / (e + (1 / torch.as_tensor(t) - 1))).numpy()
        else:
            sigmas = np.exp(np.float64(mu)) / (np.exp(np.float64(mu)) + (1 / t.astype(np.float64) - 1))
        scheduler.set_timesteps(sigmas=[float(s) for s in sigmas])

    return Wan(scheduler=euler(shift=1.0), schedule=schedule).side()


def zero_dim_promotion(right: bool) -> Side:
    """A 0-d float32 dt takes the dtype of a bfloat16 prediction: their product is rounded to bfloat16."""
    return Wan(dtype=B16, scheduler=OwnEuler(shift=3.0) if right else RoundedProduct(shift=3.0)).side()


class OwnEuler(diffusers.FlowMatchEulerDiscreteScheduler):
    """Euler in float32."""

    def product(self, dt: torch.Tensor, model_output: torch.Tensor) -> torch.Tensor:
        return dt * model_output.float()

    def step(self, model_output: Any, timestep: Any, sample: Any, *args: Any, **kwargs: Any) -> Any:
        if self.step_index is None:
            self._init_step_index(timestep)
        dt = self.sigmas[self.step_index + 1] - self.sigmas[self.step_index]
        self._step_index += 1
        return (sample + self.product(dt, model_output),)


class RoundedProduct(OwnEuler):
    """Euler whose dt takes the prediction's dtype."""

    def product(self, dt: torch.Tensor, model_output: torch.Tensor) -> torch.Tensor:
        return dt * model_output


LOOP_PITFALLS = (
    Pitfall(
        number=1, title="Global CPU RNG", sides=global_rng, says=("initial noise is another", "seed"),
        what="`MultivariateNormal.sample()` without `torch.manual_seed` right before it: something else drew first.",
    ),
    Pitfall(
        number=2, title="Timestep dtype", sides=timestep_dtype, says=("timestep", "integer"),
        what="The reference casts timesteps to int64 (745 for 745.3), the candidate does not.",
    ),
    Pitfall(
        number=3, title="Guidance parameter mapping", sides=guidance_parameters, says=("step 1", "zeros"),
        what="`zero_steps=1` (i <= 1) is taken for `zero_init_steps=1` (step < 1).",
    ),
    Pitfall(
        number=4, title="`patch_size` in noise generation", sides=patch_size_of_noise,
        says=("initial noise", "correlat"),
        what="Noise of correlated blocks of 2 x 2; the candidate's patch size is not passed on.",
    ),
    Pitfall(
        number=5, title="Variable shadowing in nested loops", sides=shadowed_latents,
        says=("goes on from the latents of the step before",),
        what="Two chunks: the inner loop assigns to the name that holds the second chunk's noise.",
    ),
    Pitfall(
        number=6, title="Float precision differences", sides=precision, says=("bfloat16", "modules"),
        what="The candidate's transformer computes in bfloat16, the reference's in float32.",
    ),
    Pitfall(
        number=7, title="Scheduler state between stages", sides=scheduler_state,
        says=("scheduler", "predictions of earlier steps"),
        what="UniPC enters the second stage with the predictions of the first.",
    ),
    Pitfall(
        number=9, title="Guider state across stages", sides=guider_state, says=("step 3", "zeros"),
        what="A guider that zeroes its first step counts on into the second stage.",
    ),
    Pitfall(
        number=11, title="Noise dtype", sides=noise_dtype, says=("initial noise is rounded to bfloat16",),
        what="Noise in float32; the candidate's went through bfloat16.",
    ),
    Pitfall(
        number=13, title="1/sigma amplification", sides=one_over_sigma,
        says=("initial noise is rounded to bfloat16",),
        what="Eight steps of v = (latents - x0) / sigma from noise that is bfloat16's: the first step is to be named, "
        "not where it has grown.",
    ),
    Pitfall(
        number=16, title="Incomplete injection", sides=incomplete_injection, says=("shift is 5, not 3",),
        what="Latents and text are the reference's, the sigmas are the candidate's own.",
    ),
    Pitfall(
        number=18, title="Stale test fixtures", sides=stale_fixtures, verdict="unjudged", says=("weights",),
        what="The reference was recorded before the weights changed.",
    ),
    Pitfall(
        number=20, title="Order of arithmetic in guidance", sides=guidance_order, verdict="pass",
        says=("guidance", "cond + (scale - 1) (cond - uncond)"),
        what="cond + 3 (cond - uncond) for uncond + 4 (cond - uncond), both in bfloat16.",
    ),
    Pitfall(
        number=21, title="Scheduler float64 intermediates", sides=float64_schedule, verdict="pass",
        says=("schedule", "rounding"),
        what="The shift by exp(mu) in float64 through numpy, in float32 on the reference.",
    ),
    Pitfall(
        number=22, title="Zero-dim tensor type promotion", sides=zero_dim_promotion, verdict="pass",
        says=("scheduler", "bfloat16"),
        what="dt (0-d, float32) times a bfloat16 prediction is bfloat16; the reference upcasts first.",
    ),
)  # fmt: skip
