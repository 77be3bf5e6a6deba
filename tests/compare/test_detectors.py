"""Mistakes around the model (guidance, schedule, latents, pictures) are named from values, and only those made."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from parity.compare import guidance, relations, values as around
from parity.compare.detectors import Detectors
from parity.compare.diff import judge_streams
from parity.compare.judge import Judge
from parity.compare.result import Cause
from parity.compare.values import Seen, Values
from parity.records import AFTER, LOOP, Floor, Key, StepRecords
from parity.sketch import value_record
from parity.transforms import bfloat16

SITES = {
    "x": ("cond", ":in.hidden_states"),
    "cond": ("cond", f"{LOOP}:noise_pred"),
    "uncond": ("uncond", f"{LOOP}:noise_pred"),
    "skip": ("skip", f"{LOOP}:noise_pred"),
    "guided": ("", f"{LOOP}:noise_pred"),
    "before": ("", f"{LOOP}:latents.before"),
    "after": ("", f"{LOOP}:latents.after"),
    "dt": ("", f"{LOOP}:dt"),
    "step_index": ("", f"{LOOP}:step_index"),
    "timestep": ("", f"{LOOP}:timestep"),
    "history": ("", f"{LOOP}:history"),
    "sigmas": ("", "schedule:sigmas"),
    "times": ("", "schedule:timesteps"),
    "z": ("", "decode:in.z"),
    "floats": ("", "decode:out"),
    "video": ("", "video:out"),
}
Made = Callable[[np.ndarray], np.ndarray]


def step(at: int = 0, **values: Any) -> StepRecords:
    records = []
    for name, x in values.items():
        branch, site = SITES[name]
        stage = "vae" if at < 0 else "transformer"
        dtype = "float64" if name in ("sigmas", "times") else "uint8" if name == "video" else "float32"
        records.append(value_record(Key(stage, at, branch, site), np.asarray(x, dtype), dtype))
    return StepRecords(at, tuple(records))


def found(*steps: tuple[StepRecords, StepRecords], settings: Sequence[dict[str, str]] = ({}, {})) -> list[Cause]:
    first, second = settings
    detectors = Detectors((first, second))
    for i, (ours, theirs) in enumerate(steps):
        detectors.add(ours, theirs, differs=i == len(steps) - 1)
    return detectors.told


def named(ours: StepRecords, theirs: StepRecords, *settings: dict[str, str]) -> list[str]:
    return [cause.setting for cause in found((ours, theirs), settings=settings or ({}, {}))]


COND, UNCOND, X, Y, Z = np.random.default_rng(0).normal(size=(5, 64))
GUIDED = {"cond": COND, "uncond": UNCOND, "guided": UNCOND + 6 * (COND - UNCOND)}
RESIZED = GUIDED | {"guided": 0.7 * GUIDED["guided"]}
HALVES = [
    {"cond": bfloat16(c), "uncond": bfloat16(u), "guided": bfloat16(size * bfloat16(u + 6 * (c - u)))}
    for c, u, size in ((COND, UNCOND, 0.7), (X, Y, 1.0))
]
ZEROED = GUIDED | {"guided": np.zeros(64)}
LATENTS = np.random.default_rng(2).normal(size=(1, 4, 2, 4, 4))
MEAN, STD = np.random.default_rng(3).normal(size=(2, 1, 4, 1, 1, 1))
NOISE = np.random.default_rng(4).normal(size=LATENTS.shape)


def shifted(shift: float, x: np.ndarray) -> np.ndarray:
    return shift * x / (1 + (shift - 1) * x)


def sigmas(shift: float) -> StepRecords:
    """As FlowMatchEuler sets them: spaced down to a least sigma that is itself shifted."""
    return step(sigmas=np.append(shifted(shift, np.linspace(1.0, shifted(shift, np.array(1e-3)), 8)), 0.0))


def stepped(dt: float, says: float = -0.1, **more: int) -> StepRecords:
    return step(guided=X, before=Y, after=Y + dt * X, dt=says, **more)


def unpatchified(x: np.ndarray) -> np.ndarray:
    """A prediction [B, C, T, H, W] whose patches, rows x columns x channels, were read as channels x rows x columns."""
    b, c, t, h, w = x.shape
    laid = x.reshape(b, c, t, h // 2, 2, w // 2, 2).transpose(0, 2, 3, 5, 4, 6, 1)
    read = laid.reshape(b, t, h // 2, w // 2, c, 2, 2)
    return read.transpose(0, 4, 1, 2, 5, 3, 6).reshape(x.shape)


def looped(scale: float, by: float = 0.0, kept: float = 1.0, **numbers: float) -> StepRecords:
    """A whole step whose update is an offset too far; of the latents it may keep a share, as DDIM does."""
    guided = UNCOND + scale * (COND - UNCOND)
    after = kept * Y - 0.1 * guided + by
    return step(cond=COND, uncond=UNCOND, guided=guided, before=Y, after=after, **{"dt": -0.1, **numbers})


OUT = np.random.default_rng(5).normal(size=(1, 3, 2, 8, 12))
OTHER = np.random.default_rng(6).normal(size=OUT.shape)
MOVED = OUT + 0.1 * OTHER

SUMMED = looped(6, 0.0, 0.9, timestep=900.0)
CONFIG = ({"scheduler.shift": "12.0"}, {"scheduler.shift": "3.0"})
ORDERS = ({"scheduler.solver_order": "2"}, {"scheduler.solver_order": "1"})


@pytest.mark.parametrize(
    ("ours", "theirs", "settings", "causes"),
    [
        (step(step_index=1), step(step_index=2), (), ["scheduler.step_index"]),
        (step(**GUIDED), step(**GUIDED | {"guided": COND}), (), ["guidance"]),
        (step(**GUIDED), step(cond=COND, guided=COND), (), ["guidance"]),  # lost with its branch
        (step(**GUIDED), step(cond=COND, guided=1.1 * COND), (), []),
        (step(1, **ZEROED), step(1, **GUIDED), (), ["guidance.zero_steps"]),
        (step(1, **ZEROED), step(1, **ZEROED), (), []),
        (step(3, history=0), step(3, history=2), (), ["scheduler.history"]),
        (step(3, history=2), step(3, history=2), (), []),
        (step(3, history=2), step(3, history=1), ORDERS, []),  # its config says why it remembers fewer
        (sigmas(12.0), sigmas(3.0), CONFIG, ["shift"]),
        (sigmas(12.0), sigmas(5.0), CONFIG, []),  # another shift than the config's made that
        (stepped(-0.1), stepped(-0.2), (), ["scheduler.step"]),
        (stepped(-0.1), stepped(-0.4, says=-0.2), (), ["scheduler.step"]),  # beside another schedule
        (stepped(-0.1), stepped(-0.2, says=-0.2), (), []),  # another schedule alone
        (stepped(-0.05), stepped(-0.2), (), []),  # no Euler step: its dt cannot be read off
        (stepped(-0.1, step_index=1), stepped(-0.2, step_index=2), (), ["scheduler.step_index"]),  # which says it
        # Guidance is fitted on each side, whatever its branches are.
        (step(**GUIDED), step(cond=X, uncond=Y, guided=Y + 4 * (X - Y)), (), ["guidance"]),
        (step(**GUIDED), step(cond=X, uncond=Y, guided=Y + 6 * (X - Y)), (), []),
        # A factor is fitted to the values: of others it is another.
        (step(**RESIZED), step(cond=X, uncond=Y, guided=0.6 * (Y + 6 * (X - Y))), (), []),
        (step(**RESIZED), step(**GUIDED), (), ["guidance_rescale"]),
        # A factor that is none at all, or that is no factor of both branches, is another guidance whatever they are.
        (step(**RESIZED), step(cond=X, uncond=Y, guided=Y + 6 * (X - Y)), (), ["guidance_rescale"]),
        (step(**RESIZED), step(cond=X, uncond=Y, guided=0.6 * (Y + 6 * (X - Y)) + 0.1 * Z), (), ["guidance"]),
        (step(cond=X, uncond=Y, guided=0.1 * Z), step(**GUIDED), (), ["guidance"]),
        (step(cond=X, uncond=Y, guided=0.1 * Z), step(cond=X, uncond=Z, guided=0.1 * Y), (), []),
        (step(**RESIZED), step(cond=X, uncond=Y, guided=0.0 * Y), (), []),
        (step(**HALVES[0]), step(**HALVES[1]), (), []),  # in 16 bits a factor may be hidden
        (step(**GUIDED), step(cond=X, uncond=X + 1e-6 * Y, guided=X + 1e-3 * Z), (), []),  # they hardly part
        (step(**GUIDED), step(**GUIDED | {"guided": bfloat16(np.float32(GUIDED["guided"]))}), (), ["guidance_dtype"]),
        # Behind another guidance the step is judged by what it makes of that.
        (looped(6), looped(5), (), ["guidance"]),
        (looped(6), looped(5, 0.01), (), ["guidance", "scheduler.step"]),
        (looped(6), looped(6, 0.01), (), []),  # where the judge says so
        (looped(6), looped(5, 0.01), ({}, {"latents_dtype": "bfloat16"}), ["guidance"]),
        (SUMMED, looped(5, 0.01, 0.9, timestep=900.0), (), ["guidance", "scheduler.step"]),
        (SUMMED, looped(5, 0.01, 0.9, timestep=900.0, dt=-0.1 - 3e-8), (), ["guidance", "scheduler.step"]),  # rounded
        (SUMMED, looped(5, 0.01, 0.9, timestep=900.0, dt=-0.11), (), ["guidance"]),  # of another schedule
        (SUMMED, looped(5, np.inf, 0.9, timestep=900.0), (), ["guidance", "scheduler.step"]),
        (SUMMED, looped(5, 0.0, 0.9, timestep=900.0, dt=-0.1 - 3e-8), (), ["guidance"]),
        # A prediction in another order, its inputs the same or not.
        (step(cond=OUT), step(cond=unpatchified(OUT)), (), ["order"]),
        (step(cond=OUT), step(cond=unpatchified(OUT + 0.7 * OTHER)), (), ["order"]),
        (step(x=X, cond=OUT), step(x=X, cond=np.flip(OUT, 2)), (), ["order"]),
        (step(cond=OUT), step(cond=np.flip(OUT, 2)), (), []),  # as what is given may be
        (step(cond=OUT), step(cond=OTHER), (), []),
        (step(cond=OUT), step(cond=-OUT), (), []),
        (step(cond=OUT), step(cond=OUT + 0.7 * OTHER), (), []),
        # Latents that are not denormalised by channel.
        (step(-1, z=LATENTS * STD + MEAN), step(-1, z=LATENTS), (), ["vae.scaling_factor"]),
        (step(-1, z=LATENTS), step(-1, z=LATENTS + 1.5e-3 * NOISE), (), []),  # near by itself
    ],
)
def test_a_mistake_around_the_model_is_named(
    ours: StepRecords, theirs: StepRecords, settings: tuple[dict[str, str], ...], causes: list[str]
) -> None:
    assert named(ours, theirs, *settings) == causes


@pytest.mark.parametrize(("kept", "causes"), [(1.0, ["guidance", "scheduler.step"]), (0.9, ["guidance"])])
def test_a_scheduler_that_steps_by_its_dt_does_so_at_every_step(kept: float, causes: list[str]) -> None:
    """One that keeps a share of the latents may come to the same at the last step, which hardly moves them."""
    before, last = looped(6, kept=kept), (looped(6), looped(5, 0.01))
    assert [cause.setting for cause in found((before, before), last)] == causes


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (bfloat16(Y - 0.1 * X), "the latents that a step makes are rounded to bfloat16"),
        (bfloat16(Y) - 0.1 * X, "a step starts from latents that it rounds to bfloat16"),
        (Y - 0.1 * bfloat16(X), ""),
        (np.full(64, np.inf), ""),
        (np.zeros(64), ""),
        (bfloat16(1.02 * Y), ""),  # not of what this step makes
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_in_bfloat16_is_named(after: np.ndarray, said: str, dtype: str) -> None:
    ours, theirs = (step(guided=X, before=Y, after=x, dt=-0.1) for x in (Y - 0.1 * X, after))
    causes = found((ours, theirs), settings=({"dtype": "float32"}, {"dtype": dtype}))
    assert [cause.cause for cause in causes] == [said] * (said != "" and dtype == "float32")


@pytest.mark.parametrize(("cond", "uncond"), [(6.0, -4.7), (5.7, -5.0)])
def test_branches_that_are_weighed_otherwise_have_no_guidance_scale(cond: float, uncond: float) -> None:
    """A factor on the unconditional branch, as of CFG-Zero*, or what is left of a projection, as of APG."""
    (cause,) = found((step(**GUIDED), step(cond=COND, uncond=UNCOND, guided=cond * COND + uncond * UNCOND)))
    assert f"{cond:g} cond - {-uncond:g} uncond, not 6 cond - 5 uncond" in cause.cause
    assert "scale" not in cause.cause


ROWS = np.random.default_rng(10).normal(size=(2, 1, 12, 16))


def normed(scale: float, of: int = 0) -> np.ndarray:
    """The guided prediction whose rows have the norms of a branch's: of cond, or of uncond."""
    guided = ROWS[1] + scale * (ROWS[0] - ROWS[1])
    norms = (np.linalg.norm(x, axis=-1, keepdims=True) for x in (ROWS[of], guided))
    return guided * np.divide(*norms)


@pytest.mark.parametrize(
    ("guided", "said"),
    [
        (normed(4.0), ""),
        (normed(5.0), "the guidance scale is 5, not 4"),
        (-normed(4.0), "the guided prediction is negated on the candidate"),
        (normed(-3.0, 1), "guidance is applied the wrong way round"),
        (ROWS[1] + 4.0 * (ROWS[0] - ROWS[1]), "given a branch's norm on the reference, not on the candidate"),
        (ROWS[0] + 0.1 * ROWS[1] ** 2, ""),  # no guidance that anybody knows
    ],
)
@pytest.mark.parametrize("narrow", [np.asarray, bfloat16])
def test_guidance_that_is_normed_row_by_row_is_fitted(guided: np.ndarray, said: str, narrow: Made) -> None:
    branches = {"cond": narrow(ROWS[0]), "uncond": narrow(ROWS[1])}
    ours, theirs = (step(**branches, guided=narrow(x)) for x in (normed(4.0), guided))
    causes = [cause.cause for cause in found((ours, theirs))]
    if narrow is np.asarray or not said.startswith("the guidance scale"):
        assert [said in cause for cause in causes] == [True] * (said != "")
    else:  # as near as 16 bits tell
        assert re.fullmatch(r"the guidance scale is (5|4\.9\d*|5\.0\d*), not (4|3\.9\d*|4\.0\d*)", causes[0])


def test_predictions_of_one_number_have_no_rows() -> None:
    one = step(cond=1.0, uncond=2.0, guided=-3.0)
    assert found((one, one)) == []


def test_a_norm_that_is_left_out_hides_no_scale() -> None:
    branches = {"cond": ROWS[0], "uncond": ROWS[1]}
    plain = ROWS[1] + 5.0 * (ROWS[0] - ROWS[1])
    causes = found((step(**branches, guided=normed(4.0)), step(**branches, guided=plain)))
    assert [cause.setting for cause in causes] == ["guidance.norm", "guidance"]
    assert causes[1].cause == "the guidance scale is 5, not 4"


@pytest.mark.parametrize(("scale", "said"), [(5.0, "is 5, not 6"), (1.0, "is 1, not 6 (none is applied)")])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_batch_that_has_cond_first_is_guided_by_the_same_scale(scale: float, said: str, sign: int) -> None:
    cond_first = {"uncond": COND, "cond": UNCOND}
    ours, theirs = (step(**cond_first, guided=sign * (UNCOND + s * (COND - UNCOND))) for s in (6.0, scale))
    (cause,) = found((ours, theirs))
    assert cause.cause == f"the guidance scale {said}"
    (cause,) = found((ours, step(uncond=COND, guided=sign * COND)))
    assert cause.cause.startswith("the guidance scale of 6 is lost")


@pytest.mark.parametrize(
    ("model", "timestep", "held", "causes"),
    [
        ("transformer_2", 900.0, True, ["guidance"]),
        ("", 900.0, True, ["boundary_ratio"]),  # whose scale is its own
        ("", 950.0, True, []),  # by its schedule, by which the pipeline chooses
        ("", 850.0, True, ["boundary_ratio"]),
        ("a.b", 900.0, True, ["guidance"]),
        ("", 900.0, False, ["guidance"]),  # one model, which may hold the weights of either
    ],
)
def test_another_model_of_two_that_a_step_calls_is_named(
    model: str, timestep: float, held: bool, causes: list[str]
) -> None:
    def calling(name: str, timestep: float, scale: float) -> StepRecords:
        sites = (f"{name}:in.x", f"{name}.proj:out".lstrip("."))
        seen = (value_record(Key("transformer", 1, "cond", s), X, "float32") for s in sites)
        cond = COND if name == "transformer_2" else COND + 0.3 * Z  # another model predicts otherwise
        values = {"cond": cond, "uncond": UNCOND, "guided": UNCOND + scale * (cond - UNCOND)}
        return StepRecords(1, (*step(1, timestep=timestep, **values).records, *seen))

    sides = calling("transformer_2", 900.0, 6), calling(model, timestep, 5)
    modules = ({"transformer_2"}, {"transformer_2"} if held else {""})
    detectors = Detectors(modules=modules)
    detectors.add(*sides)
    assert [cause.setting for cause in detectors.told] == causes
    first = step(**GUIDED), step(**GUIDED | {"guided": UNCOND + 5 * (COND - UNCOND)})  # the first model's scale too
    both = Detectors(modules=(modules[0], modules[0]))
    for ours, theirs in (first, (sides[0], calling("transformer_2", 900.0, 5))):
        both.add(ours, theirs)
    said = ["the guidance scale is 5, not 6", "the guidance scale is 5, not 6 (of transformer_2)"]
    assert [cause.cause for cause in both.told] == said


@pytest.mark.parametrize("other", [1.01 * LATENTS + 1e-3 * NOISE, 5 * NOISE])
def test_latents_that_differ_are_handed_on_by_a_right_scaling(other: np.ndarray) -> None:
    """What each side makes of its own latents decides, not that these differ, a little or by another fault."""
    loop = step(after=LATENTS), step(after=other)
    for given, causes in ((other * STD + MEAN, []), (other, ["vae.scaling_factor"])):
        told = found(loop, (step(-1, z=LATENTS * STD + MEAN), step(-1, z=given)))
        assert [cause.setting for cause in told] == causes
        pictures = [x.swapaxes(1, 2).reshape(-1, 4, 4, 4)[:1] for x in (LATENTS * STD + MEAN, given)]
        told = found(loop, (step(-1, z=pictures[0]), step(-1, z=pictures[1])))
        assert [cause.setting for cause in told] == causes


ROUNDED_AWAY = (
    "in each channel",
    "latents_mean is added before the product with latents_std",
    "latents_mean and latents_std are exchanged",
)
"""In 16 bits: a hundredth is little more than several roundings, as are channels beside a far larger offset."""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (LATENTS, "latents_mean and latents_std are left out"),
        ((LATENTS * STD + MEAN) * STD + MEAN, "latents_mean and latents_std are applied twice"),
        (LATENTS * STD, "latents_mean is left out"),
        (LATENTS + MEAN, "latents_std is left out"),
        (LATENTS / STD + MEAN, "latents_std divides where it multiplies"),
        ((LATENTS + MEAN) * STD, ROUNDED_AWAY[1]),
        (LATENTS * MEAN + STD, ROUNDED_AWAY[2]),
        ((1.01 * LATENTS) * STD + MEAN, "in each channel"),
    ],
)
def test_what_was_done_with_the_mean_and_deviation_of_latents_is_said(given: np.ndarray, said: str) -> None:
    config = {f"vae.latents_{name}": str(x.ravel().tolist()) for name, x in (("mean", MEAN), ("std", STD))}
    (cause,) = found((step(-1, z=LATENTS * STD + MEAN), step(-1, z=given)), settings=(config, config))
    assert cause.cause.endswith(said)
    rounded = (bfloat16(bfloat16(x) + 0.0) for x in (LATENTS * STD + MEAN, given * (1 + 1e-3 * NOISE)))
    ours, theirs = (step(-1, z=z) for z in rounded)
    known = said not in ROUNDED_AWAY
    assert [cause.setting for cause in found((ours, theirs))] == ["vae.scaling_factor"] * known


@pytest.mark.parametrize(
    ("factor", "offset", "said"),
    [
        (0.4, 0.1 - 0.04, "the latents are not divided by scaling_factor 0.4"),
        (2.5, 0.1 - 0.25, "the latents are divided by scaling_factor 0.4 twice"),
        (0.16, 0.1 - 0.016, "the latents are multiplied by scaling_factor 0.4"),
        (1.0, -0.1, "shift_factor 0.1 is left out"),
        (1.0, 0.25 - 0.1, "shift_factor 0.1 is added before the division"),
        (0.4, -0.04, "scaling_factor 0.4 and shift_factor 0.1 are left out"),
        (0.7, 0.0, "times 0.7"),
        (1.0 + 5e-4, 0.0, "times 1.0005"),
    ],
)
def test_what_was_done_with_the_factors_of_a_vae_is_said(factor: float, offset: float, said: str) -> None:
    config = {"vae.scaling_factor": "0.4", "vae.shift_factor": "0.1"}
    ours, theirs = step(-1, z=LATENTS), step(-1, z=factor * LATENTS + offset)
    (cause,) = found((ours, theirs), settings=(config, config))
    assert cause.cause.endswith(said)


@pytest.mark.parametrize(
    ("frame", "std", "said"),
    [
        (9.0, STD, []),
        (9.0, 1.0, ["latents_std is left out"]),
        (None, STD, ["an image put back on the reference"]),
        (None, 1.0, ["an image put back on the reference", "latents_std is left out"]),
    ],
)
def test_a_first_frame_that_is_put_back_is_not_made_of_latents(frame: float | None, std: Any, said: list[str]) -> None:
    latents = np.random.default_rng(9).normal(size=(2, 1, 4, 5, 8, 8))
    config = {f"vae.latents_{name}": str(x.ravel().tolist()) for name, x in (("mean", MEAN), ("std", STD))}
    ours, theirs = latents[0] * STD + MEAN, latents[1] * std + MEAN
    ours[:, :, 0] = 9.0
    if frame is not None:
        theirs[:, :, 0] = frame
    loop = step(after=latents[0]), step(after=latents[1])  # another fault is before it
    causes = found(loop, (step(-1, z=ours), step(-1, z=theirs)), settings=(config, config))
    assert [any(cause.cause.endswith(x) for cause in causes) for x in said] == [True] * len(said)
    assert len(causes) == len(said)


@pytest.mark.parametrize(
    ("decoded", "causes"),
    [
        (bfloat16(MOVED), ["loop.latents"]),
        (MOVED, ["loop.latents"]),  # each step rounds what it is given
        (1.02 * bfloat16(MOVED), ["loop.latents", "vae.scaling_factor"]),
    ],
)
def test_latents_that_are_rounded_between_steps_are_decoded_so(decoded: np.ndarray, causes: list[str]) -> None:
    detectors = Detectors(({"dtype": "float32"},) * 2)
    detectors.add(step(0, after=OTHER), step(0, after=OTHER))
    detectors.add(step(1, before=OTHER, after=OUT), step(1, before=bfloat16(OTHER), after=MOVED))
    detectors.add(step(-1, z=OUT / 0.4), step(-1, z=decoded / 0.4))
    assert [cause.setting for cause in detectors.told] == causes


def packed(latents: np.ndarray, channels_first: bool) -> np.ndarray:
    """Latents [1, C, T, H, W] as tokens of 2 x 2 patches."""
    b, c, t, h, w = latents.shape
    axes = (0, 2, 3, 5, 1, 4, 6) if channels_first else (0, 2, 3, 5, 4, 6, 1)
    return latents.reshape(b, c, t, h // 2, 2, w // 2, 2).transpose(axes).reshape(b, t * h * w // 4, c * 4)


@pytest.mark.parametrize("channels_first", [True, False])
@pytest.mark.parametrize(("factor", "named"), [(1.0, False), (0.7, True)])
def test_what_is_decoded_of_packed_latents_is_judged_by_each_sides_own(
    channels_first: bool, factor: float, named: bool
) -> None:
    latents = [*np.random.default_rng(8).normal(size=(2, 1, 4, 2, 12, 16))]
    loop = [step(after=packed(x, channels_first)) for x in latents]
    decode = [step(-1, z=x * STD + MEAN) for x in (latents[0], factor * latents[1])]
    causes = found((loop[0], loop[1]), (decode[0], decode[1]))
    assert [cause.setting for cause in causes] == ["vae.scaling_factor"] * named


@pytest.mark.parametrize(
    ("factor", "word"),
    [(3.0, "shifted once more, by 3"), (5 / 7, "the reference's is the candidate's shifted once more, by 1.4:")],
)
def test_a_schedule_of_another_shift_is_named_with_its_factor(factor: float, word: str) -> None:
    a = np.array([1.0, 0.9, 0.6, 0.3, 0.0])
    (cause,) = found((step(sigmas=a), step(sigmas=shifted(factor, a))))
    assert word in cause.cause
    configs = {"scheduler.shift": "7.0"}, {"scheduler.shift": str(7 * factor)}
    (cause,) = found((step(sigmas=a), step(sigmas=shifted(factor, a))), settings=configs)
    assert cause.cause == f"the schedule's shift is {7 * factor:.4g}, not 7"


@pytest.mark.parametrize(("is_rounded", "steps"), [(True, 50), (False, 50), (False, 20)])
def test_a_schedule_in_bfloat16_is_named_with_what_it_repeats(is_rounded: bool, steps: int) -> None:
    """By rounding the values of another, or operation by operation, as if bfloat16 is torch's default dtype."""

    def ramp(narrow: Made) -> np.ndarray:
        x = narrow(np.linspace(1, 0, steps + 1))
        return narrow(narrow(9 * x) / narrow(1 + narrow(8 * x)))

    exact = ramp(lambda x: x)
    theirs = bfloat16(exact) if is_rounded else ramp(bfloat16)
    times = bfloat16(1000 * (exact if is_rounded else theirs)[:-1])
    ours = step(sigmas=exact, times=1000 * exact[:-1])
    causes = found((ours, step(sigmas=theirs, times=times)))
    assert [cause.setting for cause in causes] == ["schedule_dtype", "timesteps"]
    repeats = int(np.sum(np.diff(times) == 0))
    assert (repeats > 0) == (steps == 50)
    assert f"{repeats} of {steps} repeat" in causes[1].cause
    coarser = named(ours, step(sigmas=np.round(exact, 1), times=np.round(1000 * exact[:-1], -2)))
    assert not {"schedule_dtype", "timesteps"} & set(coarser)


@pytest.mark.parametrize(("timestep", "at"), [(900.0, "loop:step_index"), (800.0, "loop:timestep")])
def test_a_scheduler_that_finds_its_place_by_another_timestep_is_no_second_difference(timestep: float, at: str) -> None:
    ours, theirs = step(step_index=0, timestep=900.0), step(step_index=1, timestep=timestep)
    assert [cause.at for cause in found((ours, theirs))] == [at]


@pytest.mark.parametrize(("ours", "theirs", "side"), [(Y, X, "candidate"), (X, Y, "reference")])
def test_a_side_that_goes_on_from_the_step_before_is_named(ours: np.ndarray, theirs: np.ndarray, side: str) -> None:
    first = (step(0, after=X), step(0, after=X))
    (cause,) = found(first, (step(1, before=ours), step(1, before=theirs)))
    assert cause.cause.startswith(f"at step 1 the {side} goes on from the latents of the step before")
    for a, b in ((X, X), (Y, Z), (Y[:32], X[:32])):  # both go on, neither does, other latents than the step before's
        assert found(first, (step(1, before=a), step(1, before=b))) == []
    assert found((step(1, before=X), step(1, before=Y))) == []  # the step before is unknown
    assert found(first, (step(1, before=X), step(1, before=bfloat16(X)))) == []  # cast to the dtype that it works in
    works_in = tuple({"dtype": dtype} for dtype in ("float32", "float32"))
    (cause,) = found(first, (step(1, before=X), step(1, before=bfloat16(X))), settings=works_in)
    assert cause.cause == "the latents are rounded to bfloat16 between two steps"
    broken = np.where(np.arange(64) < 3, np.nan, Y)
    lost = (step(0, after=X), step(0, after=broken))
    assert found(lost, (step(1, before=X), step(1, before=broken))) == []  # both go on, one from what is not finite


@pytest.mark.parametrize(("sigma", "other", "named"), [(0.5, 0.75, True), (0.0089286, 0.750375, False)])
def test_of_two_steps_a_round_factor_alone_is_a_shift(sigma: float, other: float, named: bool) -> None:
    """One sigma is another's shifted by some factor, whatever made it."""
    causes = found((step(sigmas=[1.0, sigma, 0.0]), step(sigmas=[1.0, other, 0.0])))
    assert [cause.setting for cause in causes] == (["shift"] if named else [])


@pytest.mark.parametrize(
    ("ours", "theirs", "dtypes", "setting", "word"),
    [
        (NOISE, bfloat16(NOISE), ("float32", "bfloat16"), "dtype", "rounded to bfloat16, which it works in"),
        (NOISE, bfloat16(NOISE), ("float32", "float32"), "noise", "rounded to bfloat16"),
        (bfloat16(NOISE), NOISE, ("bfloat16", "float32"), "dtype", "on the reference alone, which it works in"),
        (NOISE, 2 * NOISE, ("float32", "float32"), "noise", "the candidate's is the reference's times 2"),
    ],
)
def test_noise_that_a_side_rounds_or_scales_is_named(
    ours: np.ndarray, theirs: np.ndarray, dtypes: tuple[str, str], setting: str, word: str
) -> None:
    steps = [step(0, times=np.array([999.0]), before=x) for x in (ours, theirs)]
    detectors = Detectors(({"dtype": dtypes[0]}, {"dtype": dtypes[1]}))
    detectors.add(*steps)
    (cause,) = detectors.told
    assert cause.setting == setting
    assert word in cause.cause


@pytest.mark.parametrize(
    ("given", "said"), [(NOISE, "the scheduler is given"), (bfloat16(NOISE), "the initial noise is")]
)
def test_a_step_that_is_given_rounded_latents_is_no_other_noise(given: np.ndarray, said: str) -> None:
    times = np.array([999.0])
    key = Key("transformer", 0, "cond", ":in.hidden_states")
    ours, theirs = (
        replace(made, records=[*made.records, value_record(key, x.astype(np.float32), "float32")])
        for made, x in (
            (step(0, times=times, before=NOISE), NOISE),
            (step(0, times=times, before=bfloat16(NOISE)), given),
        )
    )
    assert [c.cause.startswith(said) for c in found((ours, theirs))] == [True]


@pytest.mark.parametrize(("factor", "named"), [(20.0, False), (20.025, True), (3.0, True)])
def test_noise_as_large_as_another_schedule_begins_is_no_second_difference(factor: float, named: bool) -> None:
    """Latents begin as noise times the largest sigma, or its root with 1."""
    ours = step(0, sigmas=[1.0, 0.5, 0.0], before=NOISE)
    theirs = step(0, sigmas=[20.0, 5.0, 0.0], before=factor * NOISE, times=np.array([1.0]))
    causes = found((replace(ours, records=(*ours.records, *step(0, times=[1.0]).records)), theirs))
    assert ("noise" in {cause.setting for cause in causes}) == named


def test_noise_that_differs_by_less_than_its_storing_has_no_factor() -> None:
    steps = [step(0, times=np.array([999.0]), before=x) for x in (NOISE, NOISE * (1 + 1e-5 * np.sign(NOISE)))]
    assert not any("times the reference" in cause.cause for cause in found((steps[0], steps[1])))


def blocks(size: int, seed: int, strength: float = 0.2) -> np.ndarray:
    """Noise whose blocks of `size` x `size` share a part; of size 1 it is white."""
    rng = np.random.default_rng(seed)
    white = rng.normal(size=(1, 4, 4, 16, 16))
    common = rng.normal(size=(1, 4, 4, 16 // size, 16 // size)).repeat(size, -1).repeat(size, -2)
    return white if size == 1 else np.sqrt(1 - strength) * white + np.sqrt(strength) * common


@pytest.mark.parametrize(("ours", "theirs", "word"), [(2, 1, "neighbours"), (1, 4, "neighbours"),
                                                      (1, 1, "another seed"), (2, 2, "another seed")])  # fmt: skip
def test_the_structure_of_noise_is_distinguished_from_another_draw(ours: int, theirs: int, word: str) -> None:
    for seed in range(3):
        sides = [step(times=np.arange(3.0), before=blocks(*b)) for b in ((ours, seed), (theirs, seed + 100))]
        (cause,) = found((sides[0], sides[1]))
        assert word in cause.cause
        later = [step(3, times=np.arange(3.0), before=blocks(*b)) for b in ((ours, seed), (theirs, seed + 100))]
        assert found((later[0], later[1])) == []  # a second loop begins from what the first came to


LEVELS = np.random.default_rng(0).normal(128, 1, (1, 3, 9, 32, 32))


def pictures(levels: np.ndarray, convert: Made) -> StepRecords:
    """Frames as the decoder gives them and as they are shown, some of them cut to black or white."""
    return step(-1, floats=levels / 127.5 - 1, video=convert(np.clip(levels, 0, 255)))


@pytest.mark.parametrize(
    ("ours", "theirs", "causes"),
    [
        (128 + 30 * (LEVELS - 128), None, ["frames"]),
        (LEVELS, LEVELS - 0.3, []),  # darker for another reason
    ],
)
def test_pictures_that_are_truncated_are_named(ours: np.ndarray, theirs: np.ndarray | None, causes: list[str]) -> None:
    rounded = pictures(ours, np.round)
    other = pictures(ours, np.trunc) if theirs is None else pictures(theirs, np.round)
    assert named(rounded, other) == named(other, rounded) == causes


def decoded(out: np.ndarray, frames: np.ndarray, dtype: str = "float32") -> StepRecords:
    """What a decoder gave, [1, T, C, H, W], and the frames that were made of it, each with what is fitted of it."""
    kind = np.uint8 if frames.dtype == np.uint8 else np.float32
    held = {
        "decode:out": (out.astype(np.float32), dtype),
        "decode:out@read": (np.clip(out, -1, 1).astype(np.float32), dtype),
        "decode:frames": (frames.astype(kind)[0].transpose(0, 2, 3, 1), kind.__name__),
        "decode:frames@read": (frames.astype(kind)[0], kind.__name__),
    }
    return StepRecords(-1, tuple(value_record(Key(AFTER, -1, "", site), *value) for site, value in held.items()))


def processed(x: np.ndarray) -> np.ndarray:
    return np.clip(x / 2 + 0.5, 0, 1)


ANOTHER_ORDER = "the frames hold what is decoded in another order"
PROCESSED: dict[str, tuple[Made, str]] = {
    "right": (processed, ""),
    "reversed": (lambda x: processed(x)[:, ::-1], ANOTHER_ORDER),
    "BGR": (lambda x: processed(x)[:, :, ::-1], ANOTHER_ORDER),
    "both": (lambda x: processed(x)[:, ::-1, ::-1], ANOTHER_ORDER),
    "not centred": (lambda x: np.clip(x / 2 + 0.4, 0, 1), "the frames differ by themselves"),
}


@pytest.mark.parametrize("how", PROCESSED)
@pytest.mark.parametrize("levels", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_frames_are_judged_by_what_the_candidate_decodes(how: str, levels: bool, dtype: str) -> None:
    """Whatever that is; in 16 bits too, where rounding moves what is made of it."""
    rng = np.random.default_rng(0)
    out, (process, named) = rng.normal(0, 0.4, (1, 5, 3, 16, 24)), PROCESSED[how]
    other = 0.9 * out + 0.2 * rng.normal(size=out.shape)
    if dtype == "bfloat16":
        out, other = bfloat16(out), bfloat16(other)
    as_shown: Made = (lambda x: np.round(255 * x).astype(np.uint8)) if levels else (lambda x: x)
    as_shown = as_shown if levels or dtype == "float32" else bfloat16
    for own in (other, out):
        causes = found((decoded(out, as_shown(processed(out)), dtype), decoded(own, as_shown(process(own)), dtype)))
        assert [cause.at for cause in causes] == ["decode:frames"] * bool(named)
        assert not causes or causes[0].cause.startswith(named)


def test_frames_that_the_reference_makes_in_another_way_are_not_judged_by_what_is_decoded() -> None:
    out = np.random.default_rng(0).normal(0, 0.4, (1, 5, 3, 16, 24))
    squared = np.clip(out / 2 + 0.5, 0, 1) ** 2
    assert found((decoded(out, squared), decoded(2 * out, processed(2 * out)))) == []


# --- arithmetic in another order or precision: only values that are exactly those it gives --------------------

C, U = (bfloat16(x) for x in np.random.default_rng(0).normal(size=(2, 512)))


def guided(narrow: bool, late: bool) -> Values:
    n = bfloat16 if narrow else np.asarray
    whole = n(C + n(5.5 * n(C - U))) if late else n(U + n(6.5 * n(C - U)))
    return {SITES["cond"]: C, SITES["uncond"]: U, SITES["guided"]: whole}


def stepped(narrow: bool) -> Values:
    before = np.random.default_rng(1).normal(size=512).astype(np.float32).astype(np.float64)
    product = bfloat16(-0.137 * C) if narrow else -0.137 * C
    after = (before + product).astype(np.float32).astype(np.float64)
    return {SITES["guided"]: C, SITES["before"]: before, SITES["after"]: after, ("", f"{LOOP}:dt"): np.array(-0.137)}


S = np.linspace(1, 0.01, 20)


@pytest.mark.parametrize(
    ("ours", "theirs", "word"),
    [
        (guided(True, False), guided(True, True), "cond + (scale - 1) (cond - uncond) on the candidate"),
        (guided(True, True), guided(True, True), ""),
        (stepped(False), stepped(True), "rounded to bfloat16 on the candidate"),
        ({SITES["sigmas"]: S}, {SITES["sigmas"]: S * (1 + 1e-7)}, "differ by rounding alone (1.0e-07 relative)"),
        ({SITES["sigmas"]: S}, {SITES["sigmas"]: S * (1 + 1e-5)}, ""),
    ],
)
def test_arithmetic_in_another_order_or_precision_is_named(ours: Values, theirs: Values, word: str) -> None:
    seen = Seen(ours=ours, theirs=theirs)
    texts = [text for of in (around, guidance, relations) for text in of.rounded_otherwise(seen)]
    assert len(texts) == bool(word)
    assert all(word in text for text in texts)


def test_branches_are_weighed_one_by_one() -> None:
    def guided(skip: float, *lacks: str) -> StepRecords:
        values = {"cond": COND, "uncond": UNCOND, "skip": Z}
        made = UNCOND + 6 * (COND - UNCOND) + skip * (Z - COND)
        return step(guided=made, **{name: x for name, x in values.items() if name not in lacks})

    (cause,) = found((guided(-2.0), guided(-1.5)))
    assert cause.cause.endswith("noise_pred is 7.5 cond - 5 uncond - 1.5 skip, not 8 cond - 5 uncond - 2 skip")
    (cause,) = found((guided(-2.0), guided(0.0)))
    assert cause.cause.endswith("noise_pred is 6 cond - 5 uncond, not 8 cond - 5 uncond - 2 skip")
    (cause,) = found((guided(-2.0), guided(0.0, "skip")))
    assert cause.cause.endswith("noise_pred is 6 cond - 5 uncond, not 8 cond - 5 uncond - 2 skip")


# --- what is made of each side's own values ------------------------------------------------------------------


def whole(x: np.ndarray) -> np.ndarray:
    return x


def half(x: np.ndarray) -> np.ndarray:
    return np.asarray(x, np.float16).astype(np.float64)


def rescaled(c: np.ndarray, u: np.ndarray, scale: float) -> np.ndarray:
    """diffusers' guidance_rescale of 1."""
    flow = u + scale * (c - u)
    return np.asarray(flow * (c.std() / flow.std()))


def zeroed(c: np.ndarray, u: np.ndarray, scale: float) -> np.ndarray:
    """CFG-Zero*: the uncond branch times a factor that is fitted to the values."""
    own = u * (c @ u / (u @ u))
    return np.asarray(own + scale * (c - own))


def projected(c: np.ndarray, u: np.ndarray, scale: float) -> np.ndarray:
    """APG, which halves what of the guidance lies along cond."""
    along = c * (((c - u) @ c) / (c @ c))
    return np.asarray(c + (scale - 1) * (c - u - along / 2))


def negated(c: np.ndarray, u: np.ndarray, scale: float) -> np.ndarray:
    """What LTX's pipelines with conditions hand to their scheduler."""
    return -(u + scale * (c - u))


FITTED = (rescaled, zeroed, projected, negated)


def going(
    narrow: Made,
    seed: int,
    scale: float = 6.0,
    factor: float = 1.0,
    handed: float = 1.0,
    drawn: float = 0.0,
    skip: float | None = None,
    kept: float | None = None,
    alone: bool = False,
    guide: Callable[[np.ndarray, np.ndarray, float], np.ndarray] | None = None,
) -> list[StepRecords]:
    """Two steps of a loop, computed in a dtype, whose floors are wide as those of 16 bits are.

    Args:
        skip: the scale of a third branch. kept: what DDIM, which has no dt, keeps of the latents. alone: whether cond
            alone is run. guide: guidance that fits a factor to branches which move from step to step.
    """
    draw, latents, steps = np.random.default_rng(seed), narrow(4 * Z), []
    for at in range(2):
        latents = narrow(handed * latents) if at else latents
        cond, uncond, third = (narrow(x + 0.02 * draw.normal(size=64)) for x in (X, Y, X + 0.3 * Y))
        flow = narrow(uncond + narrow(scale * narrow(cond - uncond)))
        if guide is not None:
            uncond = narrow(uncond + at * X)
            flow = narrow(guide(cond, uncond, scale))
        flow = flow if skip is None else narrow(flow + narrow(skip * narrow(third - cond)))
        flow = cond if alone else flow
        stays = latents if kept is None else narrow(kept * latents)
        after = narrow(stays - factor * narrow(0.3 * flow) + drawn * np.sin(np.arange(64)))
        numbers = {"dt": -0.3} if kept is None else {"timestep": 900.0 - at}
        others = ({} if skip is None else {"skip": third}) | ({} if alone else {"uncond": uncond})
        made = step(at, cond=cond, guided=flow, before=latents, after=after, **numbers, **others)
        steps.append(StepRecords(at, made.records, {r.key: Floor(20.0) for r in made.records}))
        latents = after
    return steps


@pytest.mark.parametrize("narrow", [whole, half, bfloat16])
@pytest.mark.parametrize(
    ("loop", "other", "site", "cause"),
    [
        ({}, {}, "", []),
        ({}, {"scale": 5.4}, "loop:noise_pred", ["guidance"]),
        ({}, {"factor": 1.1}, "loop:latents.after", ["scheduler.step"]),
        ({}, {"handed": 1.02}, "loop:latents.before", []),
        ({}, {"scale": 5.4, "factor": 1.1}, "loop:noise_pred", ["guidance", "scheduler.step"]),
        ({}, {"alone": True}, "loop:noise_pred", ["guidance"]),
        ({"alone": True}, {}, "", []),
        ({"alone": True}, {"alone": False, "scale": 1.5}, "loop:noise_pred", ["guidance"]),
        ({"skip": -2.0}, {}, "", []),
        ({"skip": -2.0}, {"scale": 5.4}, "loop:noise_pred", ["guidance"]),
        ({"skip": -2.0}, {"skip": -1.6}, "loop:noise_pred", ["guidance"]),
        ({}, {"guide": zeroed}, "loop:noise_pred", ["guidance"]),
        *(({"guide": guide}, {}, "", []) for guide in FITTED),
        *(({"guide": guide}, {"scale": 5.4}, "loop:noise_pred", ["guidance"]) for guide in FITTED),
        ({"kept": 0.9}, {}, "", []),
        ({"kept": 0.9}, {"kept": 0.85}, "loop:latents.after", []),
        ({"kept": 0.9}, {"factor": 1.1}, "loop:latents.after", []),
    ],
)
def test_a_loop_is_judged_by_what_it_makes_of_its_own_values(
    narrow: Made, loop: dict[str, Any], other: dict[str, float], site: str, cause: list[str]
) -> None:
    """In 16 bits floors are percents wide, and a guidance scale a tenth off was within them."""
    detectors = Detectors()
    pairs = zip(going(narrow, 1, **loop), going(narrow, 2, **{**loop, **other}), strict=True)
    collected = judge_streams(pairs, Judge(), detectors)
    failed = [d.key.site for d in collected.sites if d.verdict == "fail"]
    assert failed[:1] == [site][: bool(site)]
    assert [c.setting for c in detectors.told if c.setting in ("guidance", "scheduler.step")] == cause
    # A loop that rounds more than the reference's, and is right.
    pairs = zip(going(whole, 1, **loop), going(narrow, 2, **loop), strict=True)
    assert not any(d.verdict == "fail" for d in judge_streams(pairs, Judge(), Detectors()).sites)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (range(8), "the guidance scale is 5, not 6"),
        (range(2, 8), "at steps 2 to 7 of 8"),
        ([1, 4, 5, 6], "at steps 1, 4 to 6 of 8"),
        ([3], "at step 3 of 8"),
    ],
)
def test_a_cause_says_at_which_steps_it_shows(wrong: Sequence[int], said: str) -> None:
    detectors = Detectors()
    for at in range(8):
        scale = 5 if at in wrong else 6
        other = {**GUIDED, "guided": UNCOND + scale * (COND - UNCOND)}
        detectors.add(step(at, **GUIDED), step(at, **other), differs=scale == 5)
    (cause,) = detectors.told
    assert [piece.detail for piece in cause.evidence] == [said]


@pytest.mark.parametrize(
    ("first", "other", "causes"),
    [
        (GUIDED, {"guided": X}, ["loop.calls"]),
        (GUIDED, GUIDED, []),
        ({"guided": X}, {"guided": X}, []),  # which was never seen to call one
        (GUIDED, {"before": X}, []),  # whose values do not line up
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_a_step_without_a_call_of_the_model_is_named(
    first: dict[str, Any], other: dict[str, Any], causes: list[str], turned: bool
) -> None:
    ours, theirs = [step(0, **GUIDED), step(1, **GUIDED)], [step(0, **first), step(1, **other)]
    pairs = zip(theirs, ours, strict=True) if turned else zip(ours, theirs, strict=True)
    assert [cause.setting for cause in found(*pairs)] == causes


@pytest.mark.parametrize(("scale", "named"), [(1.0, False), (1.5, True)])
def test_guidance_that_moves_nothing_is_not_lost(scale: float, named: bool) -> None:
    ours = step(cond=X, uncond=Y, guided=Y + scale * (X - Y))
    assert bool(found((ours, step(cond=X + 0.1 * Z, guided=X + 0.1 * Z)))) is named


def test_what_a_step_adds_below_the_rounding_of_one_side_is_no_other_dt() -> None:
    """Noise of a scheduler, or a higher order: latents in bfloat16 do not show it."""
    pairs = zip(going(bfloat16, 1, drawn=3e-3), going(whole, 2, drawn=3e-3), strict=True)
    assert not any(d.verdict == "fail" for d in judge_streams(pairs, Judge(), Detectors()).sites)


# --- a decoder's input is judged by its own side's latents -----------------------------------------------------

SCALE = 1.037
OURS = bfloat16(np.random.default_rng(0).normal(size=(1, 4, 3, 6, 6)))
THEIRS = bfloat16(OURS + 0.05 * np.random.default_rng(1).normal(size=OURS.shape))  # another rounding's, within floors


def divided(x: np.ndarray) -> np.ndarray:
    return x / SCALE


def by_channel(x: np.ndarray) -> np.ndarray:
    channel = np.arange(1, 5).reshape(1, 4, 1, 1, 1)
    return x * (0.9 + 0.05 * channel) + 0.1 * channel


def noised(x: np.ndarray) -> np.ndarray:
    return x / SCALE + 0.05 * np.random.default_rng(2).normal(size=x.shape)


def frames_first(make: Made) -> Made:
    return lambda x: make(x.swapaxes(1, 2))


def without_first(make: Made) -> Made:
    """Without the frame of an image that the model was shown."""
    return lambda x: make(x[:, :, 1:])


def channels_last(make: Made) -> Made:
    return lambda x: make(np.moveaxis(x, -1, 1))


def given(latents: np.ndarray, make: Made) -> list[StepRecords]:
    """The last step and what follows it, in bfloat16, with floors of a tenth."""
    last = value_record(Key("transformer", 0, "", "loop:latents.after"), latents.astype(np.float32), "bfloat16")
    z = bfloat16(make(latents)).astype(np.float32)
    after = value_record(Key(AFTER, -1, "", "decode:in.z"), z, "bfloat16")
    return [
        StepRecords(record.key.step, (record,), {record.key: Floor(0.1 * float(np.linalg.norm(x)))})
        for record, x in ((last, latents), (after, z))
    ]


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        (divided, np.asarray, "fail"),
        (by_channel, lambda x: by_channel(x) * 1.02, "fail"),
        *(
            (make, make, "pass")
            for make in (divided, by_channel, noised, np.asarray, frames_first(divided), channels_last(divided))
        ),
        (channels_last(divided), channels_last(np.asarray), "fail"),
        (without_first(divided), without_first(divided), "pass"),
        (without_first(divided), without_first(np.asarray), "fail"),
        (divided, noised, "fail"),
        (divided, lambda x: x / SCALE * np.where(np.arange(6) == 3, 0.9, 1.0), "fail"),  # one column alone
        # Rounding of the scaling itself: a constant in bfloat16, a product by an inverse.
        (divided, lambda x: bfloat16(x * bfloat16(np.array(1 / SCALE))), "pass"),
    ],
)
def test_a_scaling_within_the_floor_of_the_latents_is_found(ours: Made, theirs: Made, verdict: str) -> None:
    detectors = Detectors(({"vae.scaling_factor": str(SCALE)},) * 2)
    collected = judge_streams(zip(given(OURS, ours), given(THEIRS, theirs), strict=True), Judge(), detectors)
    assert next(d.verdict for d in collected.sites if d.key.site == "decode:in.z") == verdict
    if ours is divided and theirs is np.asarray:
        assert ["1.037" in cause.cause for cause in detectors.told] == [True]


Guide = Callable[[np.ndarray, np.ndarray], np.ndarray]


def by(scale: float, size: float = 1.0) -> Guide:
    return lambda c, u: size * (u + scale * (c - u))


def zero_star(c: np.ndarray, u: np.ndarray) -> np.ndarray:
    """CFG-Zero*: the uncond branch times a factor that is fitted to the values."""
    fitted = float(c @ u / (u @ u))
    return fitted * u + 6.0 * (c - fitted * u)


def close(guide: Guide, seed: int) -> StepRecords:
    """A step whose branches are closer than its floors are wide, each rounded otherwise on the other side."""
    draw = np.random.default_rng(seed)
    uncond = X + 1e-2 * draw.normal(size=64)
    cond = X + 2e-2 * Y + 1e-2 * draw.normal(size=64)
    made = step(cond=cond, uncond=uncond, guided=guide(cond, uncond))
    return StepRecords(0, made.records, {r.key: Floor(1.0) for r in made.records})


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict", "causes"),
    [
        (by(6.0), by(5.0), "fail", ["guidance"]),
        (by(6.0), by(1.0), "fail", ["guidance"]),
        (by(6.0), lambda c, u: np.where(np.arange(64) < 8, u, u + 6.0 * (c - u)), "fail", []),  # a part is not guided
        *((guide, guide, "pass", []) for guide in (by(6.0), by(6.0, 0.7), zero_star, lambda c, u: c)),
        (by(6.0), lambda c, u: c + 5.0 * (c - u), "pass", []),
        (by(6.0), lambda c, u: bfloat16(u + bfloat16(6.0 * bfloat16(c - u))), "pass", []),
        (by(6.0), by(-5.0), "pass", []),  # or the branches have each other's names: what is as close tells neither
    ],
)
def test_a_guidance_scale_within_the_floor_of_the_prediction_is_found(
    ours: Guide, theirs: Guide, verdict: str, causes: list[str]
) -> None:
    detectors = Detectors()
    collected = judge_streams([(close(ours, 1), close(theirs, 2))], Judge(), detectors)
    assert (
        next(d.verdict for d in collected.sites if d.key == Key("transformer", 0, "", f"{LOOP}:noise_pred")) == verdict
    )
    assert [c.setting for c in detectors.told] == causes


def test_a_step_whose_latents_overflow_differs_by_itself() -> None:
    """Its own dt says what they had to be, though the candidate's are infinite; its prediction is another already."""
    after = LATENTS - 0.1 * NOISE
    ours = step(before=LATENTS, guided=NOISE, after=after, dt=-0.1)
    theirs = step(before=LATENTS, guided=1.001 * NOISE, after=np.where(after == after.max(), np.inf, after), dt=-0.1)
    causes = [cause for cause in found((ours, theirs)) if cause.at == f"{LOOP}:latents.after"]
    assert ["differs by itself, by inf relative" in cause.cause for cause in causes] == [True]
