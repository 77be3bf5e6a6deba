"""Which rows of a generic transformer's tensors are padded text, from the mask among its inputs."""

from __future__ import annotations

import pytest
import torch

from parity.hooks.rows import SEQUENCE, WHOLE, Part
from parity.models.generic.rows import TextRows, frame_of_mask, text_mask

TEXT = (Part(frame="text"),)


@pytest.mark.parametrize(
    ("site", "shape", "found"),
    [
        ("context_embedder:out", (1, 16, 32), TEXT),
        ("blocks.0:out.1", (1, 16, 32), TEXT),
        ("blocks.0.attn.attention:in.key", (1, 16, 4, 8), TEXT),
        ("blocks.0:out.0", (1, 48, 32), WHOLE),
        ("blocks.0.attn.attention:out", (1, 64, 4, 8), WHOLE),  # joint
        ("time:out", (1, 16), WHOLE),
        ("blocks.0:in.attention_mask", (1, 16, 1), WHOLE),
    ],
)
def test_tensors_with_as_many_rows_as_the_text_are_text(
    site: str, shape: tuple[int, ...], found: tuple[Part, ...]
) -> None:
    module, _, port = site.partition(":")
    assert TextRows(16, (48, 24)).parts(module, port, shape) == found


def test_a_port_may_keep_fewer_of_them_where_it_has_a_mask_of_so_many() -> None:
    rule = TextRows(16, (48,))
    assert rule.paired("context_embedder", "out", (1, 12, 32), {12}) == TEXT
    assert rule.paired("context_embedder", "out", (1, 12, 32), {9}) == WHOLE
    assert rule.paired("blocks.0.text", "out", (1, 64, 32), {64}) != TEXT, "a joint mask is none of the text's"


def test_a_joint_sequence_is_whole_and_beside_it_what_its_mask_lets_be_read() -> None:
    rule = TextRows(16)
    assert rule.paired("blocks.0.attn.attention", "in.key", (1, 48, 2, 8), {48, 16}) == SEQUENCE
    assert rule.paired("blocks.0.attn.attention", "in.key", (1, 48, 2, 8), {16}) == WHOLE, "no mask says"
    assert rule.paired("blocks.0", "in.attention_mask", (1, 48, 1), {48}) == WHOLE


def test_the_mask_among_the_inputs_says_which_are_valid() -> None:
    mask = torch.tensor([[1, 0, 1, 1]])
    found = text_mask({"encoder_attention_mask": mask})
    assert found is not None
    assert found.tolist() == [True, False, True, True]
    frame = frame_of_mask(found)
    assert (frame.index.tolist(), frame.weight.tolist()) == ([0, 2, 3, 1], [1.0, 1.0, 1.0, 0.0])
    assert text_mask({"encoder_attention_mask": torch.ones(1, 4)}) is None, "nothing is padded"
    assert text_mask({"encoder_hidden_states": torch.ones(1, 4)}) is None
