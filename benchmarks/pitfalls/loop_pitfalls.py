"""Pitfalls of the loop: noise, timesteps, guidance, stages, the scheduler."""

from __future__ import annotations

import functools
from typing import Any

import diffusers
import numpy as np
import torch
from change import drawn
from pitfall import pitfall
from scripts import STEPS, Script, euler, guidance, noise, stepped

B16 = torch.bfloat16
GUIDED = guidance(4.0)
Wan = functools.partial(Script, guided=GUIDED)


@pitfall(1, "Global CPU RNG", "initial noise is another", "seed")
def global_rng(right: bool) -> Script:
    """`MultivariateNormal.sample()` without `torch.manual_seed` right before it: something else drew first."""

    def start(script: Script) -> torch.Tensor:
        torch.manual_seed(5)
        if not right:
            torch.randn(3)
        normal = torch.distributions.MultivariateNormal(torch.zeros(8), torch.eye(8))
        return normal.sample((1, 4, 3, 8))  # from torch's global generator, whatever generator the script has

    return Wan(start=start)


@pitfall(2, "Timestep dtype", "timestep", "integer")
def timestep_dtype(right: bool) -> Script:
    """The reference casts timesteps to int64 (745 for 745.3), the candidate does not."""
    return Wan(time=lambda t: (t.long() if right else t).expand(1))


@pitfall(3, "Guidance parameter mapping", "step 1", "zeros")
def guidance_parameters(right: bool) -> Script:
    """`zero_steps=1` (i <= 1) is taken for `zero_init_steps=1` (step < 1)."""

    def zero_init(cond: torch.Tensor, uncond: torch.Tensor, step: int) -> torch.Tensor:
        return torch.zeros_like(cond) if step <= (1 if right else 0) else GUIDED(cond, uncond, step)

    return Wan(guided=zero_init)


@pitfall(4, "`patch_size` in noise generation", "initial noise", "correlat")
def patch_size_of_noise(right: bool) -> Script:
    """Noise of correlated blocks of 2 x 2; the candidate's patch size is not passed on."""
    patch, gamma = 2 if right else 1, 0.3
    size, across = patch * patch, 8 // patch
    root = torch.linalg.cholesky(torch.eye(size) * (1 + gamma) - torch.ones(size, size) * gamma)
    z = (drawn(1, 4, 3, across, across, size, seed=7) @ root.T).unflatten(-1, (patch, patch))
    return Wan(start=lambda script: z.transpose(4, 5).reshape(1, 4, 3, 8, 8))


@pitfall(5, "Variable shadowing in nested loops", "goes on from the latents of the step before")
def shadowed_latents(right: bool) -> Script:
    """Two chunks: the inner loop assigns to the name that holds the second chunk's noise."""
    return Wan(stages=2, start=lambda script: noise(7 + script.stage) if right or not script.stage else script.latents)


@pitfall(6, "Float precision differences", "computes in bfloat16", "wider dtype", verdict="inconclusive")
def precision(right: bool) -> Script:
    """The candidate's transformer computes in bfloat16, the reference's in float32."""
    return Wan(computes=None if right else B16)


@pitfall(7, "Scheduler state between stages", "scheduler", "predictions of earlier steps")
def scheduler_state(right: bool) -> Script:
    """UniPC enters the second stage with the predictions of the first."""

    def schedule(scheduler: Any, stage: int) -> None:  # the second stage begins in the middle of the schedule
        kept = scheduler.model_outputs, scheduler.timestep_list, scheduler.lower_order_nums, scheduler.last_sample
        scheduler.set_timesteps(STEPS * (1 + stage))
        scheduler.set_begin_index(STEPS * stage)
        if stage and not right:
            scheduler.model_outputs, scheduler.timestep_list, scheduler.lower_order_nums, scheduler.last_sample = kept

    unipc = diffusers.UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0, disable_corrector=[0]
    )
    return Wan(stages=2, skipped=STEPS, scheduler=unipc, schedule=schedule)


@pitfall(9, "Guider state across stages", "step 3", "zeros")
def guider_state(right: bool) -> Script:
    """A guider that zeroes its first step counts on into the second stage."""
    seen: list[int] = []  # steps, which the guider counts itself

    def guided(cond: torch.Tensor, uncond: torch.Tensor, step: int) -> torch.Tensor:
        seen.append(step)
        return torch.zeros_like(cond) if len(seen) <= 1 else GUIDED(cond, uncond, step)

    def schedule(scheduler: Any, stage: int) -> None:
        if right:
            seen.clear()
        scheduler.set_timesteps(STEPS)

    return Wan(stages=2, guided=guided, schedule=schedule)


@pitfall(11, "Noise dtype", "initial noise is rounded to bfloat16")
def noise_dtype(right: bool) -> Script:
    """Noise in float32; the candidate's went through bfloat16."""
    return Wan(start=lambda script: noise() if right else noise().to(B16))


@pitfall(13, "1/sigma amplification", "initial noise is rounded to bfloat16")
def one_over_sigma(right: bool) -> Script:
    """Eight steps of v = (latents - x0) / sigma from noise that is bfloat16's: the first step is to be named, not where
    it has grown.
    """

    def step(scheduler: Any, v: torch.Tensor, t: torch.Tensor, latents: torch.Tensor) -> torch.Tensor:
        sigma = (t / 1000).item()
        return stepped(scheduler, (latents - (latents - sigma * v)) / sigma, t, latents)

    return Wan(
        start=lambda script: noise() if right else noise().to(B16),
        schedule=lambda scheduler, stage: scheduler.set_timesteps(8),
        step=step,
    )


@pitfall(16, "Incomplete injection", "shift is 5, not 3")
def incomplete_injection(right: bool) -> Script:
    """Latents and text are the reference's, the sigmas are the candidate's own."""
    return Wan(scheduler=euler(shift=3.0 if right else 5.0))


@pitfall(18, "Stale test fixtures", "weights")
def stale_fixtures(right: bool) -> Script:
    """The reference was recorded before the weights changed."""
    return Wan(weights=1 if right else 2)


@pitfall(
    20, "Order of arithmetic in guidance", "guidance", "cond + (scale - 1) (cond - uncond)", verdict="pass"
)  # fmt: skip
def guidance_order(right: bool) -> Script:
    """cond + 3 (cond - uncond) for uncond + 4 (cond - uncond), both in bfloat16."""
    return Wan(computes=B16, guided=GUIDED if right else lambda cond, uncond, step: cond + 3.0 * (cond - uncond))


@pitfall(21, "Scheduler float64 intermediates", "schedule", "rounding", verdict="pass")
def float64_schedule(right: bool) -> Script:
    """The shift by exp(mu) in float64 through numpy, in float32 on the reference."""
    mu = 1.1

    def schedule(scheduler: Any, stage: int) -> None:
        t = np.linspace(1.0, 1 / 8, 8, dtype=np.float32)
        if right:
            e = torch.exp(torch.tensor(mu))
            sigmas = (e / (e + (1 / torch.as_tensor(t) - 1))).numpy()
        else:
            sigmas = np.exp(np.float64(mu)) / (np.exp(np.float64(mu)) + (1 / t.astype(np.float64) - 1))
        scheduler.set_timesteps(sigmas=[float(s) for s in sigmas])

    return Wan(scheduler=euler(shift=1.0), schedule=schedule)


class OwnEuler(diffusers.FlowMatchEulerDiscreteScheduler):
    """Euler in float32, or with a dt that takes the prediction's dtype, as a 0-d tensor does."""

    upcasts = True

    def step(self, model_output: Any, timestep: Any, sample: Any, *args: Any, **kwargs: Any) -> Any:
        if self.step_index is None:
            self._init_step_index(timestep)
        dt = self.sigmas[self.step_index + 1] - self.sigmas[self.step_index]
        self._step_index += 1
        return (sample + dt * (model_output.float() if self.upcasts else model_output),)


class RoundedProduct(OwnEuler):
    """Its product is rounded to bfloat16."""

    upcasts = False


@pitfall(22, "Zero-dim tensor type promotion", "scheduler", "bfloat16", verdict="pass")
def zero_dim_promotion(right: bool) -> Script:
    """dt (0-d, float32) times a bfloat16 prediction is bfloat16; the reference upcasts first."""
    return Wan(computes=B16, scheduler=OwnEuler(shift=3.0) if right else RoundedProduct(shift=3.0))
