"""What is compared of a text stage before any encoder runs: token ids, masks, and the rows they leave."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from parity.compare.result import Check
from parity.models.text import TextStage


def token_checks(ours: TextStage, theirs: TextStage) -> tuple[Check, ...]:
    """Token ids and masks of both sides, which each tokenized by itself.

    Ids beyond the table of embeddings are an error in torch and whatever lies there in JAX, so they are looked for.
    """
    a, b = ours.tokens(), theirs.tokens()
    if a.keys() != b.keys():
        return (Check("text tokens", "fail", f"only one side has '{min(a.keys() ^ b.keys())}'"),)
    for name, x in a.items():
        if not torch.equal(x, b[name]):
            apart = int((x != b[name]).sum()) if x.shape == b[name].shape else "shape"
            return (Check("text tokens", "fail", f"'{name}' differs ({apart})"),)
    for encoder in ours.encoders:
        top = max((int(given["input_ids"].max()) for given in encoder.tokens.values()), default=0)
        if top >= encoder.vocabulary:
            detail = f"{encoder.part}: token id {top} is beyond its {encoder.vocabulary} embeddings: another tokenizer"
            return (Check("text tokens", "fail", detail),)
    valid = [
        f"{encoder.part} {branch} {int(encoder.mask(branch).sum())} of {encoder.length}"
        for encoder in ours.encoders
        for branch in ("cond", "uncond")
    ]
    silent = [
        f"{encoder.part} is not called for {branch}, whose prompt quotes nothing"
        for encoder in ours.encoders
        for branch in ("cond", "uncond")
        if branch not in encoder.tokens
    ]
    said = f"{len(a)} tensors equal; rows that count: {', '.join(valid)}"
    return (Check("text tokens", "pass", "; ".join([said, *silent])),)


def file_checks(text: TextStage, given: Mapping[str, Mapping[str, torch.Tensor]]) -> tuple[Check, ...]:
    """A stage-1 file's masks, or where it has none its lengths, against this tokenizer's."""
    said = []
    for encoder in text.encoders:
        for branch, name in (("cond", encoder.stream.name), ("uncond", f"negative_{encoder.stream.name}")):
            expected = int(encoder.mask(branch).sum())
            arguments, stream = given[branch], encoder.stream
            mask = arguments[stream.mask_argument] if stream.masked else None
            count = arguments[stream.argument].shape[1] if mask is None else int((mask > 0).sum())
            if count != expected:
                detail = (
                    f"'{name}' has {count} valid tokens, the prompt {expected}: another prompt (--prompt), template, "
                    "length or mask"
                )
                return (Check("stage1 rows", "fail", detail),)
            said.append(f"{name} {count}")
    return (Check("stage1 rows", "pass", f"as many valid tokens as the prompts: {', '.join(said)}"),)
