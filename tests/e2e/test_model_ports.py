"""Ports of full models: with attention, schedule and loop of their own, in its authors' code; any diffusers class."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import diffusers
import pytest
import safetensors.torch
import torch

from parity.compare.independent import differences
from parity.compare.result import Result
from parity.errors import InconclusiveError, UsageError
from parity.paths.live import Host
from parity.paths.port.ported import _accepted
from parity.port import Port
from parity.runs.request import Request
from parity.settings import parse
from tests.support.lab import run
from tests.support.models import CONFIGS, NANO, checkpoint
from tests.support.ports import check, compare, origin, port

pytest.importorskip("torchax")

COG = "tiny-cogvideox-1.0"
ATTENTION = "transformer_blocks.0.attn.attention:out@image"

# --- attention that a torchax port installs

KERNEL = """
import functools
import torch
import torchax
from diffusers import CogVideoXTransformer3DModel
from torchax.ops import ops_registry
from parity.port import Port

SDPA = torch.nn.functional.scaled_dot_product_attention
env = torchax.default_env()


def kernel(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False, env=None):
    weights = torch.softmax(query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5, dim=-1)
    return FACTOR * (weights @ value)


def build(case):
    net = CogVideoXTransformer3DModel.from_pretrained(case.folder / "transformer")
    INSTALL
    return Port(module=net, runs="torchax")
"""
TABLE = """env._ops[SDPA] = ops_registry.Operator(
        SDPA, functools.partial(kernel, env=env), is_jax_function=False, is_user_defined=True, needs_env=False,
        is_view_op=False,
    )"""
OVERRIDE = "env.override_op_definition(SDPA, kernel)"
COMPILED = """
    with env:
        net.load_state_dict(env.to_xla(net.state_dict()), assign=True)
        net = torchax.compile(net, torchax.CompileOptions(jax_jit_kwargs={"static_argnames": ("return_dict",)}))"""


@pytest.mark.parametrize(
    ("install", "factor", "site", "whose"),
    [
        (TABLE, "1.0", None, "the port's own function kernel (port.py:13)"),
        pytest.param(TABLE, "0.0", "transformer_blocks.0.attn1.attention:out", "kernel", marks=pytest.mark.slow),
        pytest.param(OVERRIDE, "0.0", "transformer_blocks.0.attn1.attention:out", "kernel", marks=pytest.mark.slow),
        pytest.param(TABLE + COMPILED, "1.0", None, "the port's own function kernel", marks=pytest.mark.slow),
        pytest.param("pass", "1.0", None, "torchax's own", marks=pytest.mark.slow),
    ],
    ids=["right", "zeros", "zeros by override", "right, compiled", "none"],
)  # fmt: skip
def test_attention_of_a_torchax_port(install: str, factor: str, site: str | None, whose: str, tmp_path: Path) -> None:
    text = KERNEL.replace("INSTALL", install).replace("FACTOR", factor)
    result = compare(None, port(tmp_path, text), model=COG, openers=Host() if install == "pass" else None)
    verdict, found = origin(result)
    assert (verdict, found and found.partition("@")[0]) == ("pass" if site is None else "fail", site), result.reason
    (note,) = (n.text for n in result.notes if "attention of the candidate" in n.text)
    assert whose in note
    assert "(4 modules)" in note
    if install == "pass":
        assert check(result, "candidate: replaced by parity").detail == "nothing: its code runs as it is"


# --- ports that trace for themselves

TRACES = """
import functools
import jax
import torch
from diffusers import CogVideoXTransformer3DModel
from torchax import interop
from parity.port import Case, Port

FACTOR = {factor}


class Remembering(CogVideoXTransformer3DModel):
    @functools.lru_cache(maxsize=None)
    def scale(self, tokens, device):
        return torch.ones(tokens, device=device) * FACTOR

    def forward(self, hidden_states, *args, **kwargs):
        scale = self.scale(hidden_states.shape[-1], hidden_states.device)
        return super().forward(hidden_states * scale, *args, **kwargs)


def checkpointed(block):
    own = block.forward

    def forward(hidden_states, encoder_hidden_states, temb, image_rotary_emb=None, **kwargs):
        def run(*given):
            image, text = own(*given, image_rotary_emb=image_rotary_emb, **kwargs)
            return image * FACTOR, text

        run = interop.jax_view(run)
        return interop.call_jax(jax.checkpoint(run), hidden_states, encoder_hidden_states, temb)

    block.forward = forward


def remembering(case: Case) -> Port:
    return Port(module=Remembering.from_pretrained(case.folder / "transformer"), runs="torchax")


def rematerialised(case: Case) -> Port:
    model = CogVideoXTransformer3DModel.from_pretrained(case.folder / "transformer")
    for block in model.transformer_blocks:
        checkpointed(block)
    return Port(module=model, runs="torchax")
"""


@pytest.mark.slow
@pytest.mark.parametrize("function", ["remembering", "rematerialised"])
@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "pass"), (1.01, "fail")])
def test_port_that_traces_for_itself_is_judged(function: str, factor: float, verdict: str, tmp_path: Path) -> None:
    """A closer look makes a second program of a module; what the first one's trace left behind is no value there."""
    result = compare(None, port(tmp_path, TRACES.replace("{factor}", str(factor)), function), model=COG)
    assert result.verdict == verdict, result.reason
    if result.origin is not None:
        assert result.origin.key.module.split(".")[0] in ("transformer_blocks", "patch_embed")


# --- a mask for another order of the rows than they stand in

MISPLACED = """
from diffusers import HunyuanVideoTransformer3DModel
from parity.port import Port


def build(case):
    net = HunyuanVideoTransformer3DModel.from_pretrained(case.folder)
    for block in [*net.transformer_blocks, *net.single_transformer_blocks]:
        own = block.forward
        block.forward = lambda x, text, temb, mask, *rest, own=own: own(
            x, text, temb, mask.roll(text.shape[1], -1), *rest
        )
    return Port(module=net)
"""


@pytest.mark.slow
def test_a_mask_that_lets_other_rows_through_is_the_only_difference(tmp_path: Path) -> None:
    """As many of them: it does not say that the rows stand elsewhere, as their values show."""
    made = diffusers.HunyuanVideoTransformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=16, num_layers=2, num_single_layers=1,
        num_refiner_layers=1, rope_axes_dim=(4, 6, 6), text_embed_dim=16, pooled_projection_dim=8,
    )  # fmt: skip
    made.save_pretrained(tmp_path / "model")
    options: dict[str, Any] = {"model": str(tmp_path / "model"), "openers": Host(), "sites": "all"}
    result = compare(None, port(tmp_path, MISPLACED), **options)
    assert [d.place for d in differences(result)] == ["transformer_blocks.*.attn's input attention_mask"]
    assert any(c.cause.endswith("keys through, others than the reference's") for c in result.causes)


# --- schedule and loop of a port's own

SCHEDULE = """
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


def with_schedule(folder: Path, change: str = "pass", scale: str = "6.0", steps: int = 2) -> Result:
    text = port(folder, SCHEDULE.replace("CHANGE", change).replace("SCALE", scale))
    return compare(None, text, model=str(checkpoint(NANO)), openers=Host(), steps=steps)


@pytest.mark.slow
def test_schedule_and_loop_of_a_port_pass_if_they_are_right(tmp_path: Path) -> None:
    result = with_schedule(tmp_path)
    assert result.verdict == "pass", result.reason
    assert [s.noise_pred.ratio < 3 for s in result.steps] == [True, True]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["torch.Tensor.tolist", "__import__('jax').numpy.asarray", "np.asarray"])
def test_a_schedule_may_be_of_any_numbers(kind: str, tmp_path: Path) -> None:
    own = (
        f"from types import SimpleNamespace; to = lambda x: {kind}(x); made = (lambda m: SimpleNamespace("
        "timesteps=to(m.timesteps), sigmas=to(m.sigmas), step=lambda v, t, x, return_dict: m.step(v, "
        "m.timesteps[m.step_index or 0], x, return_dict=False)))(made)"
    )
    result = with_schedule(tmp_path, own, steps=1)
    assert result.verdict == "pass", result.reason


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ("return guided, None", "the latents after of `loop` is an object of type NoneType"),
        pytest.param(
            "return predictions, latents",
            "the guided prediction of `loop` is an object of type dict",
            marks=pytest.mark.slow,
        ),
        pytest.param("return guided, latents[:, :2]", "the latents after of `loop` is [1, 2, ", marks=pytest.mark.slow),
        pytest.param(
            "return guided",
            "`loop` returned one Tensor, not (guided prediction, latents after)",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_loop_that_returns_something_else_is_refused(change: str, wrong: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        with_schedule(tmp_path, scale=f"6.0 * (cond - uncond)\n    {change}\n    0", steps=1)
    assert wrong in str(refused.value)


def test_wrong_guidance_scale_of_a_ports_loop_fails_at_noise_pred(tmp_path: Path) -> None:
    result = with_schedule(tmp_path, scale="5.0", steps=1)
    assert origin(result) == ("fail", "loop:noise_pred")
    assert [cause.cause for cause in result.causes] == ["the guidance scale is 5, not 6"]


@pytest.mark.parametrize(
    ("change", "steps", "said"),
    [
        (
            "made.timesteps = (made.timesteps * 1.02).clamp(max=1000).to(torch.bfloat16)",
            50,
            {
                "candidate schedule": "timesteps repeat: 1000 (steps 0, 1",
                "scheduler state": "the candidate's scheduler already stands at step 1 before step 0: warm-up calls "
                "moved it or equal first timesteps, of which diffusers' schedulers begin at the second",
            },
        ),
        (
            "x = torch.zeros(1); [made.step(x, t, x) for t in made.timesteps[:2]]",
            4,
            {"scheduler state": "the candidate's scheduler already stands at step 2 before step 0: warm-up calls"},
        ),
    ],
    ids=["repeats in bfloat16", "warm-up"],
)
def test_wrong_schedule_fails_before_a_forward(change: str, steps: int, said: dict[str, str], tmp_path: Path) -> None:
    result = with_schedule(tmp_path, change, steps=steps)
    assert (result.verdict, result.failed, result.steps) == ("fail", "preflight", ())
    for name, detail in said.items():
        assert check(result, name).detail.startswith(detail)


@pytest.mark.parametrize(
    ("change", "said"),
    [("return 3", "returned an object of type int without `timesteps`"), ("raise ValueError('no')", "ValueError: no")],
)
def test_schedule_that_is_none_is_an_error_of_one_line(change: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        with_schedule(tmp_path, change)


# --- a native port: its authors' names, no vision tokens

EXAMPLES = Path(__file__).parents[2] / "examples"
NATIVE = (EXAMPLES / "native_hunyuan.py").read_text("utf-8")
ORDER = "torch.argsort((~mask).int(), dim=1, stable=True)"
KEEP = "keep = functional.pad(text_mask, (img.shape[1], 0), value=True) if self.masked else None"
ZEROED = KEEP.partition(" if ")[0] + "[:, :, None, None]; k, v, keep = k * keep, v * keep, None"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "site"),
    [(ORDER, "torch.arange(mask.shape[1])[None].expand_as(mask)", None), (KEEP, ZEROED, ATTENTION)],
    ids=["another order", "zeroed keys"],
)
def test_port_with_other_names_and_another_order_of_text(
    before: str, after: str, site: str | None, tmp_path: Path
) -> None:
    assert before in NATIVE
    shutil.copy(EXAMPLES / "hunyuan_names.py", tmp_path)
    text = port(tmp_path, NATIVE.replace(before, after))
    result = compare(None, text, model="tiny-hunyuan-video-1.5", openers=Host())
    assert origin(result) == ("pass" if site is None else "fail", site), result.reason
    assert result.differing_settings == ()
    if site is None:  # the reference has vision tokens, which are padding
        named = {d.key.site: d for d in result.sites if d.key.branch == "cond" and d.verdict == "pass"}
        ours, theirs = named["transformer_blocks.0:in.encoder_hidden_states"].shapes
        assert ours[1] > theirs[1]
        assert "transformer_blocks.0:in.attention_mask" in named, "arguments are renamed as modules are"


CHANNELS_LAST = """
from diffusers import CogVideoXTransformer3DModel
from parity.port import Port


def build(case):
    net = CogVideoXTransformer3DModel.from_pretrained(case.folder / "transformer")

    def call(inputs):
        inputs = {**inputs, "hidden_states": inputs["hidden_states"].movedim(-1, 2)}  # of [B, T, H, W, C]
        return net(**inputs, return_dict=False)[0].movedim(2, -1)

    return Port(call=call, module=net, runs="torch", layout="channels_last")
"""


def test_channels_come_last_wherever_the_model_has_them(tmp_path: Path) -> None:
    result = compare(None, port(tmp_path, CHANNELS_LAST), model=COG, openers=Host(), checks="logic", sites="none")
    assert result.verdict == "pass", result.reason


@pytest.mark.slow
def test_port_of_diffusers_own_class_is_given_what_the_pipeline_computes(tmp_path: Path) -> None:
    text = "from diffusers import CogVideoXTransformer3DModel as Model\nfrom parity.port import Port\n\n"
    text += "def build(case):\n    return Port(module=Model.from_pretrained(case.folder / 'transformer'))\n"
    result = compare(None, port(tmp_path, text), model="tiny-cogvideox-1.5")
    assert result.verdict == "pass", result.reason


class _Of(torch.nn.Module):
    def __init__(self, forward: Any) -> None:
        super().__init__()
        self.forward = forward


@pytest.mark.parametrize(
    ("forward", "call", "taken"),
    [
        (lambda hidden_states, image_rotary_emb=None: None, None, True),
        (lambda **inputs: None, None, True),
        (lambda hidden_states: None, None, False),
        (lambda hidden_states: None, lambda inputs: None, True),
    ],
)
def test_module_that_computes_rotary_tables_itself_is_not_given_them(forward: Any, call: Any, taken: bool) -> None:
    assert ("image_rotary_emb" in _accepted(Port(module=_Of(forward), call=call), {"image_rotary_emb": 0})) == taken


# --- transformers of no family, by class and config


def request(folder: Path, **options: Any) -> Request:
    return Request(str(folder), parse("torch"), parse("torchax"), **options)


def test_transformer_saved_alone_runs_with_its_own_weights_and_given_inputs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = {k: v for k, v in CONFIGS["flux"].items() if k != "_class_name"}
    diffusers.FluxTransformer2DModel(**config).save_pretrained(tmp_path / "model")
    given = {
        "hidden_states": torch.randn(1, 12, 16),
        "img_ids": torch.arange(36).reshape(12, 3),
        "encoder_hidden_states": torch.randn(1, 5, 32),
        "txt_ids": torch.zeros(5, 3, dtype=torch.int64),
        "timestep": torch.tensor([0.7, 0.2]),
    }
    safetensors.torch.save_file(given, tmp_path / "inputs.safetensors")
    result = run(request(tmp_path / "model", inputs=tmp_path / "inputs.safetensors", steps=2))
    assert result.verdict == "pass", result.reason
    assert [s.timestep[0] for s in result.steps] == pytest.approx([0.7, 0.2])
    said = check(result, "inputs").detail
    assert "weights drawn" not in said
    assert "made for FluxTransformer2DModel: pooled_projections;" in said
    shapes = {d.key.site: d.shapes[0] for d in result.sites if d.shapes and d.key.module == ""}
    assert (shapes[":in.hidden_states"], shapes[":in.encoder_hidden_states"]) == ((1, 12, 16), (1, 5, 32))


@pytest.mark.parametrize(
    ("tensors", "changes", "message"),
    [
        ({"nothing": torch.zeros(1)}, {}, "'nothing' is no argument of LTXVideoTransformer3DModel.forward"),
        ({"hidden_states": torch.zeros(2, 48, 8)}, {}, "must have a batch of one"),
        ({"encoder_hidden_states": torch.full((1, 4, 16), torch.nan)}, {}, "'encoder_hidden_states': expected finite"),
        ({"encoder_hidden_states": torch.zeros(1, 16, 9)}, {}, "called with the inputs of --inputs and those made"),
        ({"timestep": torch.tensor([1.0, 0.5])}, {}, "the inputs hold 2 timesteps for --steps 1"),
        ({}, {"_class_name": "AceStepTransformer1DModel"}, "'hidden_states'|cannot make the argument|takes no"),
        ({}, {"_class_name": "AutoencoderKLWan"}, "whose forward takes no 'hidden_states'"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(
    tensors: dict[str, torch.Tensor], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    from benchmarks.tiny_families import make

    folder = make(tmp_path / "model", "ltx", **changes)
    safetensors.torch.save_file(tensors, tmp_path / "inputs.safetensors")
    with pytest.raises(UsageError, match=message):
        run(request(folder, inputs=tmp_path / "inputs.safetensors" if tensors else None))


LTX = """
from parity.models.folder import load_part
from parity.port import Port

TENSORS = ("hidden_states", "encoder_hidden_states", "timestep", "encoder_attention_mask")


def by_name(net, x):
    return net(*(x[name] for name in TENSORS), num_frames=x["num_frames"], height=x["height"], width=x["width"])


def all_of_them(net, x):
    return net(**x)


def its_own_beside(net, x):
    return net(**x, num_frames=2, height=4, width=6)


def build(case):
    net = load_part(case.folder, "transformer").eval()
    return Port(module=net, runs="torch", call=lambda inputs: CALL(net, inputs))
"""


@pytest.mark.parametrize("call", ["by_name", "its_own_beside", pytest.param("all_of_them", marks=pytest.mark.slow)])
def test_call_of_a_port_is_given_numbers_unless_it_has_its_own(call: str, tmp_path: Path) -> None:
    from benchmarks.tiny_families import make

    folder = make(tmp_path / "model", "ltx")
    text = port(tmp_path, LTX.replace("CALL", call))
    result = compare(None, text, model=str(folder), openers=Host())
    assert result.verdict == "pass", result.reason


NARROW = """
import torch
from parity.models.folder import load_part
from parity.port import Port

SETTINGS = {"dtype": "bfloat16"}


def build(case):
    net = load_part(case.folder, "transformer").eval()
    for name, weight in net.named_parameters():  # not its rotary tables, nor what its class keeps in float32
        if not any(kept in name for kept in net._keep_in_fp32_modules):
            weight.data = weight.data.to(torch.bfloat16)
    FAULT
    return Port(module=net, runs="torch")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "verdict"), [("", "pass"), ("net.blocks[1].ffn.net[2].weight.data *= 1.5", "fail")])
def test_port_that_rounds_its_weights_whatever_it_is_asked_for(fault: str, verdict: str, tmp_path: Path) -> None:
    """As one whose checkpoint was converted to bfloat16: it has no float32 to be checked in."""
    from benchmarks.tiny_families import make

    folder = make(tmp_path / "model", "wan")
    sides = {"model": str(folder), "openers": Host()}
    text = port(tmp_path, NARROW.replace("FAULT", fault))
    result = compare(None, text, **sides)
    assert result.verdict == verdict, result.reason
    if verdict == "pass":
        assert [c.name for c in result.checks] == ["precision"]
        assert "rounded to 16 bits even where it is asked for float32" in result.notes[-1].text
        with pytest.raises(InconclusiveError, match="to have it checked in float32 too"):
            compare(None, text, checks="logic", **sides)


def test_pipeline_without_its_weights_is_no_config_alone(tmp_path: Path) -> None:
    from benchmarks.tiny_families import make

    make(tmp_path / "transformer", "wan")
    (tmp_path / "model_index.json").write_text("{}")
    with pytest.raises(UsageError, match="cannot load"):
        run(request(tmp_path))


FAULTS = [
    ("-math.log(10000)", "-math.log(9000)"),
    (KEEP, "keep = None"),
    ("THETA, FREQUENCIES, GLYPHS = 256.0", "THETA, FREQUENCIES, GLYPHS = 300.0"),
    (
        "self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6)",
        "self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-3)",
    ),
    ("+ kinds[1]", "+ kinds[0]"),
    ('linear"](normed(img, *modulation))', 'linear"](normed(img, *modulation[::-1]))'),
]


@pytest.mark.slow
def test_all_faults_of_a_port_with_other_names_and_another_order_of_text_are_listed(tmp_path: Path) -> None:
    """Time embedding (two modules have the class), the refiner's norm, embeddings of the kind of a token, rotary
    tables, the mask, the last modulation; of a port without the vision tokens, whose joint sequence is shorter."""
    text = NATIVE
    for before, after in FAULTS:
        assert text.count(before) == 1
        text = text.replace(before, after)
    shutil.copy(EXAMPLES / "hunyuan_names.py", tmp_path)
    result = compare(None, port(tmp_path, text), model="tiny-hunyuan-video-1.5", openers=Host())
    assert [d.place for d in differences(result)] == [
        "time_embed.timestep_embedder.linear_1's input",
        "context_embedder.time_text_embed.timestep_embedder.linear_1's input",
        "context_embedder.token_refiner.refiner_blocks.*.norm1",
        "transformer_blocks.0's input encoder_hidden_states",
        "transformer_blocks.*.attn.attention's input query",
        "proj_out's input",
        "transformer_blocks.*.attn.attention",  # of uncond, whose text is short
    ]


TEXT_FIRST = [
    ("q, k, v = (torch.cat(pair, dim=1) for pair", "q, k, v = (torch.cat(pair[::-1], dim=1) for pair"),
    ("(img.shape[1], 0), value=True) if", "(0, img.shape[1]), value=True) if"),
    (".split([img.shape[1], txt.shape[1]], dim=1)", ".split([txt.shape[1], img.shape[1]], dim=1)[::-1]"),
]


@pytest.mark.slow
def test_a_joint_sequence_with_its_text_first_is_no_fault_beside_one(tmp_path: Path) -> None:
    """Of which the next output that is compared by itself, the block's, shows nothing then."""
    text = NATIVE
    for before, after in (*TEXT_FIRST, ('act=nn.GELU(approximate="tanh"), fc2', "act=nn.SiLU(), fc2")):
        assert text.count(before) == 1
        text = text.replace(before, after)
    shutil.copy(EXAMPLES / "hunyuan_names.py", tmp_path)
    result = compare(None, port(tmp_path, text), model="tiny-hunyuan-video-1.5", openers=Host())
    places = [f"transformer_blocks.*.ff{kind}.net.2's input" for kind in ("", "_context")]
    assert [d.place for d in differences(result)] == places


TEXT_LAST = """
import torch
import torch.nn.functional as F
from diffusers import CogVideoXTransformer3DModel
from diffusers.models.embeddings import apply_rotary_emb
from parity.port import Port


class TextLast:
    def __call__(self, attn, hidden_states, encoder_hidden_states, attention_mask=None, image_rotary_emb=None):
        x, size = torch.cat([hidden_states, encoder_hidden_states], dim=1), hidden_states.shape[1]
        q, k, v = (make(x).unflatten(2, (attn.heads, -1)).transpose(1, 2) for make in (attn.to_q, attn.to_k, attn.to_v))
        q, k = attn.norm_q(q), attn.norm_k(k)
        if image_rotary_emb is not None:
            q, k = (torch.cat([apply_rotary_emb(y[:, :, :size], image_rotary_emb), y[:, :, size:]], 2) for y in (q, k))
        out = attn.to_out[0](F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return out[:, :size], out[:, size:]


def build(case):
    net = CogVideoXTransformer3DModel.from_pretrained(case.folder / "transformer")
    net.set_attn_processor(TextLast())
    return Port(module=net)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "sites", "listed"),
    [
        ("", "all", []),
        (
            'for b in net.transformer_blocks: b.ff.net[0].approximate = "none"',
            "blocks",
            ["transformer_blocks.*.ff.net.0"],
        ),
    ],
)
def test_every_value_of_a_joint_sequence_may_have_its_text_last(
    fault: str, sites: str, listed: list[str], tmp_path: Path
) -> None:
    text = port(tmp_path, TEXT_LAST.replace("    return Port(", f"    {fault}\n    return Port("))
    result = compare(None, text, model="tiny-cogvideox-1.5", openers=Host(), checks="logic", sites=sites)
    assert [d.place for d in differences(result)] == listed, result.reason
