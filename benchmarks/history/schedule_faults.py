"""Schedules and schedulers: what is set, and what a step does with it. Recorded in two scripts."""

from __future__ import annotations

import math
from typing import Any

import diffusers
import numpy as np
import torch
from change import Change, Scene
from scripts import STEPS, Script, denormalised, euler

SCHEDULE = ("schedule:*", "loop:timestep", "loop:sigma", "loop:dt")


class TimestepsOfSigmas(diffusers.FlowMatchEulerDiscreteScheduler):
    """Timesteps that were given are shifted with their sigmas; a later version took that back."""

    def set_timesteps(self, *args: Any, **kwargs: Any) -> None:
        super().set_timesteps(*args, **kwargs)
        self.timesteps = self.sigmas[:-1] * self.config.num_train_timesteps


def timesteps_not_shifted(fixed: bool, dtype: torch.dtype) -> Scene:
    kind = TimestepsOfSigmas if fixed else diffusers.FlowMatchEulerDiscreteScheduler
    given = [1000.0, 700.0, 300.0]
    return Script(dtype=dtype, scheduler=kind(shift=3.0), schedule=lambda s: s.set_timesteps(timesteps=given)).scene()


def terminal_step_twice(fixed: bool, dtype: torch.dtype) -> Scene:
    def schedule(scheduler: Any) -> None:
        if fixed:
            scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / STEPS, STEPS).tolist())
        else:
            scheduler.sigma_min = 0.0
            scheduler.set_timesteps(STEPS)

    return Script(dtype=dtype, schedule=schedule).scene()


def flow_shift_not_forwarded(fixed: bool, dtype: torch.dtype) -> Scene:
    return Script(dtype=dtype, scheduler=euler(shift=12.0 if fixed else 3.0)).scene()


def shifted_by(mu: float, dtype: torch.dtype) -> Scene:
    scheduler = euler(shift=1.0, use_dynamic_shifting=True)
    return Script(dtype=dtype, scheduler=scheduler, schedule=lambda s: s.set_timesteps(STEPS, mu=mu)).scene()


def mu_of(tokens: float, most: float = 1.15) -> float:
    """The shift of a sequence: 0.5 at 256 tokens, `most` at 4096."""
    return 0.5 + (most - 0.5) / (4096 - 256) * (tokens - 256)


def sequence_not_capped(fixed: bool, dtype: torch.dtype) -> Scene:
    return shifted_by(mu_of(6144.0 if fixed else 16000.0, 2.05), dtype)


def sequence_before_patches(fixed: bool, dtype: torch.dtype) -> Scene:
    return shifted_by(mu_of(1024.0 if fixed else 4096.0), dtype)


def largest_shift(fixed: bool, dtype: torch.dtype) -> Scene:
    return shifted_by(mu_of(4096.0, 1.15 if fixed else 1.16), dtype)


def shift_missing(fixed: bool, dtype: torch.dtype) -> Scene:
    return shifted_by(mu_of(2048.0, 0.9) if fixed else 0.0, dtype)


class Rounded(diffusers.DPMSolverMultistepScheduler):
    """Timesteps rounded to whole ones, whatever the schedule of betas."""

    def set_timesteps(self, *args: Any, **kwargs: Any) -> None:
        super().set_timesteps(*args, **kwargs)
        known = ((1 - self.alphas_cumprod) / self.alphas_cumprod).sqrt().log().numpy()
        exact = [self._sigma_to_t(sigma, known) for sigma in self.sigmas[:-1].double().numpy()]
        self.timesteps = torch.tensor(np.array(exact).round()).to(self.timesteps.dtype)


def timesteps_rounded(fixed: bool, dtype: torch.dtype) -> Scene:
    kind = diffusers.DPMSolverMultistepScheduler if fixed else Rounded
    scheduler = kind(beta_schedule="squaredcos_cap_v2", use_karras_sigmas=True, prediction_type="v_prediction")
    return Script(dtype=dtype, scheduler=scheduler).scene()


class EvenSteps(diffusers.DDPMScheduler):
    """The step before, by the spacing that `leading` has, whatever the spacing is."""

    def previous_timestep(self, timestep: Any) -> Any:
        return timestep - self.config.num_train_timesteps // self.num_inference_steps


def previous_timestep(fixed: bool, dtype: torch.dtype) -> Scene:
    kind = diffusers.DDPMScheduler if fixed else EvenSteps
    scheduler = kind(timestep_spacing="linspace", prediction_type="v_prediction", clip_sample=False)
    return Script(dtype=dtype, scheduler=scheduler, seed=3).scene()


class WrongSigma(diffusers.HeunDiscreteScheduler):
    """Heun's second half takes the sigma of the first."""

    def step(self, model_output: Any, timestep: Any, sample: Any, return_dict: bool = True) -> Any:
        if self.step_index is None:
            self._init_step_index(timestep)
        if self.state_in_first_order:
            return super().step(model_output, timestep, sample, return_dict)
        at, next_ = self.sigmas[self.step_index - 1], self.sigmas[self.step_index]
        # The prediction from which the mended formula, with `next_`, makes the clean sample that `at` gave.
        clean = sample / (at**2 + 1) - model_output * (at / (at**2 + 1) ** 0.5)
        other = (sample / (next_**2 + 1) - clean) / (next_ / (next_**2 + 1) ** 0.5)
        return super().step(other, timestep, sample, return_dict)


def heun_sigma(fixed: bool, dtype: torch.dtype) -> Scene:
    kind = diffusers.HeunDiscreteScheduler if fixed else WrongSigma
    return Script(dtype=dtype, scheduler=kind(prediction_type="v_prediction", beta_schedule="scaled_linear")).scene()


class IgnoresGenerator(diffusers.FlowMatchEulerDiscreteScheduler):
    """Draws its noise from the global generator."""

    def step(self, *args: Any, generator: Any = None, **kwargs: Any) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(99)
            return super().step(*args, generator=None, **kwargs)


def generator_ignored(fixed: bool, dtype: torch.dtype) -> Scene:
    kind = diffusers.FlowMatchEulerDiscreteScheduler if fixed else IgnoresGenerator
    return Script(dtype=dtype, scheduler=kind(shift=3.0, stochastic_sampling=True), seed=3).scene()


def noised(script: Any, clean: torch.Tensor, sigma: float) -> torch.Tensor:
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(5)).to(clean)
    return sigma * noise + (1 - sigma) * clean


def start_of_a_picture(fixed: bool, dtype: torch.dtype) -> Scene:
    """Picture to picture from the second of four steps."""

    def schedule(scheduler: Any) -> None:
        scheduler.set_timesteps(4)
        scheduler.timesteps = scheduler.timesteps[1:]
        scheduler.set_begin_index(1)

    def start(script: Any) -> torch.Tensor:
        clean = torch.ones(1, 4, 3, 8, 8, dtype=script.dtype) * math.sqrt(0.5)
        return noised(script, clean, float(script.scheduler.sigmas[1 if fixed else 0]))

    return Script(dtype=dtype, schedule=schedule, start=start, denormalised=denormalised).scene()


SCHEDULE_FAULTS = (
    Change(
        name="timesteps_not_shifted", source="huggingface/diffusers#14011", commit="d1b988b08f", kind="glue",
        at=SCHEDULE, cause="schedule", script=timesteps_not_shifted,
        what="FlowMatchEuler kept timesteps that it was given, while their sigmas were shifted. Since: timesteps are "
        "the sigmas' own.",
    ),
    Change(
        name="terminal_step_twice", source="huggingface/diffusers#13730", commit="32ecbe3836", kind="glue",
        at=SCHEDULE, cause="schedule", script=terminal_step_twice,
        what="Z-Image's schedule ended in a step at sigma 0, before the scheduler added its own. Since: it ends at "
        "1 / steps.",
    ),
    Change(
        name="flow_shift_not_forwarded", source="vllm-project/vllm-omni#3116", kind="glue", at=SCHEDULE,
        cause="shift", script=flow_shift_not_forwarded,
        what="`flow_shift` was not forwarded to Wan's scheduler: 3 for 12. Since: forwarded.",
    ),
    Change(
        name="sequence_not_capped", source="AI-Hypercomputer/maxdiffusion@9f17723d", commit="9f17723d", kind="glue",
        at=SCHEDULE, cause="shift", script=sequence_not_capped,
        what="LTX-2's dynamic shift grew with the video's tokens without a bound. Since: of 6,144 tokens at most.",
    ),
    Change(
        name="sequence_before_patches", source="sgl-project/sglang#21041", kind="glue", at=SCHEDULE, cause="shift",
        script=sequence_before_patches,
        what="Flux's dynamic shift was that of the latents' pixels. Since: of its tokens, patches of 2 x 2.",
    ),
    Change(
        name="largest_shift", source="huggingface/diffusers#10807", commit="b75b204a58", kind="glue", at=SCHEDULE,
        cause="shift", script=largest_shift, what="Flux's largest shift was 1.16. Since: 1.15.",
    ),
    Change(
        name="shift_missing", source="mflux-community/mflux#362", kind="glue", at=SCHEDULE, cause="shift",
        script=shift_missing, what="A port of QwenImage shifted no sigmas. Since: dynamically, to 0.9 at most.",
    ),
    Change(
        name="timesteps_rounded", source="huggingface/diffusers#10740", commit="ca6330dc53", kind="glue",
        at=SCHEDULE, cause="schedule", script=timesteps_rounded,
        what="DPM with Karras' sigmas rounded timesteps of a cosine schedule, some to the same. Since: not rounded.",
    ),
    Change(
        name="previous_timestep", source="huggingface/diffusers#9384", commit="5effcd3e64", kind="glue",
        at=("loop:latents.after", "loop:noise_pred"), script=previous_timestep,
        what="DDPM took the step before by the `leading` spacing in every spacing. Since: from its timesteps.",
    ),
    Change(
        name="heun_sigma", source="huggingface/diffusers#1512", kind="glue", at=("loop:latents.after",),
        script=heun_sigma,
        what="Heun's second half used the first half's sigma for the clean sample. Since: the next one.",
    ),
    Change(
        name="generator_ignored", source="huggingface/diffusers#13678", commit="dcbb18a30a", kind="glue",
        at=("loop:latents.after",), cause="noise", script=generator_ignored,
        what="FlowMatchEuler's stochastic steps ignored the generator that they were given. Since: drawn from it.",
    ),
    Change(
        name="start_of_a_picture", source="huggingface/diffusers#8678", commit="3b01d72a64", kind="glue",
        at=("loop:latents.before",), cause="noise", script=start_of_a_picture,
        what="Noise was added to a picture by the first sigma, not that of the step at which the loop begins.",
    ),
)  # fmt: skip
