"""Ports of the tiny HunyuanVideo-1.5 as strangers write them: native modules' names, another order of the text, no
vision tokens, masks dropped or replaced by zeroed keys. Over diffusers' own layers, so that weights are shared."""

from __future__ import annotations

from pathlib import Path

MODEL = "tiny-hunyuan-video-1.5"

HUNYUAN = '''
import torch
import torch.nn.functional as F
from diffusers import HunyuanVideo15Transformer3DModel
from diffusers.models.embeddings import apply_rotary_emb
from parity.port import Port

ORDER, TRIM, ATTEND = "ORDER_", "TRIM_", "ATTEND_"


def attend(q, k, v, keep):
    if ATTEND == "zeroed":
        k, v = (torch.cat([x[:, :-keep.shape[1]], x[:, -keep.shape[1]:] * keep[:, :, None, None]], 1) for x in (k, v))
    visible = F.pad(keep, (q.shape[1] - keep.shape[1], 0), value=True)[:, None, None]
    if ATTEND == "padded":
        k, v = (F.pad(x, (0, 0, 0, 0, 0, -x.shape[1] % 128)) for x in (k, v))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=visible if ATTEND == "masked" else None)
    return out.transpose(1, 2)


class Double(torch.nn.Module):
    """A block as the native code has it: no module of its own for the attention."""

    def __init__(self, block):
        super().__init__()
        self.inner = block
        self.attention = [block.attn]

    def forward(self, img, txt, vec, freqs_cis=None, text_mask=None):
        block, attn = self.inner, self.attention[0]
        x, gate, shift, scale, mlp_gate = block.norm1(img, emb=vec)
        y, text_gate, text_shift, text_scale, text_mlp = block.norm1_context(txt, emb=vec)
        heads = lambda t: t.unflatten(2, (attn.heads, -1))
        q, k = attn.norm_q(heads(attn.to_q(x))), attn.norm_k(heads(attn.to_k(x)))
        q, k = (apply_rotary_emb(t, freqs_cis, sequence_dim=1) for t in (q, k))
        tq, tk = attn.norm_added_q(heads(attn.add_q_proj(y))), attn.norm_added_k(heads(attn.add_k_proj(y)))
        v, tv = heads(attn.to_v(x)), heads(attn.add_v_proj(y))
        out = attend(*(torch.cat(pair, 1) for pair in ((q, tq), (k, tk), (v, tv))), text_mask.bool()).flatten(2)
        n = img.shape[1]
        img = img + attn.to_out[0](out[:, :n]) * gate[:, None]
        txt = txt + attn.to_add_out(out[:, n:]) * text_gate[:, None]
        img = img + mlp_gate[:, None] * block.ff(block.norm2(img) * (1 + scale[:, None]) + shift[:, None])
        inner = block.norm2_context(txt) * (1 + text_scale[:, None]) + text_shift[:, None]
        return img, txt + text_mlp[:, None] * block.ff_context(inner)


class Native(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.double_blocks = torch.nn.ModuleList(Double(block) for block in net.transformer_blocks)
        net.transformer_blocks = torch.nn.ModuleList()

    def forward(self, hidden_states, timestep, text_states, text_mask, byt5_states, byt5_mask, vision_states=None):
        net = self.net
        vec, img = net.time_embed(timestep), net.x_embedder(hidden_states)
        kind = lambda x, i: x + net.cond_type_embed(torch.full_like(x[:, :, 0], i, dtype=torch.long))
        if TRIM == "trimmed":  # fewer padded rows
            text_states, text_mask = text_states[:, :60], text_mask[:, :60]
        txt = kind(net.context_embedder(text_states, timestep, text_mask), 0)
        streams = [(kind(net.context_embedder_2(byt5_states), 1), byt5_mask), (txt, text_mask)]
        if ORDER == "other":
            streams.reverse()
        txt = torch.cat([x * m[:, :, None] for x, m in streams], 1)
        mask = torch.cat([m for _, m in streams], 1)
        if ORDER == "valid_first":
            at = torch.argsort((mask == 0).int(), dim=1, stable=True)
            txt, mask = torch.gather(txt, 1, at[:, :, None].expand(-1, -1, txt.shape[2])), torch.gather(mask, 1, at)
        freqs = net.rope(hidden_states)
        for block in self.double_blocks:
            img, txt = block(img, txt, vec, freqs, text_mask=mask)
        x = net.proj_out(net.norm_out(img, vec))
        b, _, t, h, w = hidden_states.shape
        x = x.reshape(b, t, h, w, -1, 1, 1, 1).permute(0, 4, 1, 5, 2, 6, 3, 7)
        return (x.flatten(6, 7).flatten(4, 5).flatten(2, 3), None)


RENAME = {
    r"double_blocks\\\\.(\\\\d+)\\\\.attention": r"transformer_blocks.\\\\1.attn.attention",
    r"double_blocks\\\\.(\\\\d+)\\\\.inner\\\\.(.*)": r"transformer_blocks.\\\\1.\\\\2",
    r"double_blocks\\\\.(\\\\d+)": r"transformer_blocks.\\\\1",
    r"net": r"unused",
    r"net\\\\.(.*)": r"\\\\1",
    r"double_blocks\\\\.(\\\\d+):in\\\\.img": r"transformer_blocks.\\\\1:in.hidden_states",
    r"double_blocks\\\\.(\\\\d+):in\\\\.txt": r"transformer_blocks.\\\\1:in.encoder_hidden_states",
    r"double_blocks\\\\.(\\\\d+):in\\\\.vec": r"transformer_blocks.\\\\1:in.temb",
    r"double_blocks\\\\.(\\\\d+):in\\\\.text_mask": r"transformer_blocks.\\\\1:in.attention_mask",
}


def build(case):
    net = Native(HunyuanVideo15Transformer3DModel.from_pretrained(case.folder / "transformer"))

    def call(i):
        masks = (i["encoder_attention_mask"], i["encoder_attention_mask_2"])
        return net(i["hidden_states"], i["timestep"], i["encoder_hidden_states"], masks[0].float(),
                   i["encoder_hidden_states_2"], masks[1].float())[0]

    return Port(module=net, call=call, runs="RUNS_", rename=RENAME)
'''.replace("\\\\", "\\")


def write(
    folder: Path, *, order: str = "interleaved", trim: str = "", attend: str = "masked", runs: str = "torch"
) -> str:
    """Write the port; returns what --port is given.

    Args:
        order: of the text: `interleaved` (ByT5, Qwen, each with its padding), `valid_first`, or `other` (Qwen first).
        trim: `trimmed` for fewer padded rows. attend: `masked`, `zeroed` keys and values, or `padded`: zeros in blocks.
    """
    text = HUNYUAN
    for name, value in (("ORDER_", order), ("TRIM_", trim), ("ATTEND_", attend), ("RUNS_", runs)):
        text = text.replace(name, value)
    (folder / "port.py").write_text(text)
    return f"{folder / 'port.py'}:build"
