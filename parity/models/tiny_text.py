"""The text side of the tiny checkpoints: tokenizers and encoders, small but of the real classes.

A prompt has to become embeddings and masks by the road the full-size model takes (chat template, cropping, glyph
extraction, padding), without a download. So the tokenizers are built here: Qwen's byte-level BPE with a few hundred
merges, and T5's unigrams (ByT5's needs no vocabulary at all). The encoders come with whatever weights their classes
start from; `parity.models.tiny` draws them. Cost: milliseconds, and under a megabyte.
"""

from __future__ import annotations

import tokenizers
import transformers

# Qwen's own template, without its tool calls and images.
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# A whole word becomes one token where its letters merge from the left; earlier words take precedence. What is not
# here falls into pieces, down to single bytes, as rare words do in a real vocabulary.
_WORDS = """
assistant system user You are a helpful Describe the video by detailing following aspects The main content and theme of
color shape size texture quantity text spatial relationships objects Actions events behaviors temporal physical movement
changes background environment light style atmosphere camera angles movements transitions used in A red panda holds
paper sign that says while snow falls slowly on street
"""


def _merges() -> list[tuple[str, str]]:
    """Return the BPE merges, first rank first, each as the two symbols that it joins; a leading space reads `Ġ`."""
    merges = {("Ġ", "Ġ"): None, ("ĠĠ", "ĠĠ"): None}
    for word in _WORDS.split():
        for spelled in ("Ġ" + word, word):
            for end in range(1, len(spelled)):
                merges.setdefault((spelled[:end], spelled[end]))
    return list(merges)


def make_qwen_tokenizer() -> transformers.Qwen2Tokenizer:
    """Return a Qwen2 tokenizer: tiny vocabulary, Qwen's special tokens and chat template, padding on the right."""
    merges = _merges()
    symbols = [*sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()), *(left + right for left, right in merges)]
    vocabulary = {symbol: index for index, symbol in enumerate(dict.fromkeys(symbols))}
    vocabulary["<|endoftext|>"] = len(vocabulary)
    return transformers.Qwen2Tokenizer(
        vocab=vocabulary,
        merges=merges,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
        chat_template=_CHAT_TEMPLATE,
        padding_side="right",
    )


def template_prefix_length(tokenizer: transformers.Qwen2Tokenizer, system_message: str) -> int:
    """Return how many tokens the chat template puts before the user's own text: what the pipeline crops.

    Args:
        tokenizer: with a chat template.
        system_message: the text of the system turn, as the pipeline words it.
    """
    mark = "\u0000"  # no token spans it, so what precedes it is exactly the prefix
    messages = [{"role": "system", "content": system_message}, {"role": "user", "content": mark}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return len(tokenizer(text[: text.index(mark)]).input_ids)


def make_qwen(vocabulary_size: int) -> transformers.Qwen2_5_VLTextModel:
    """Return a Qwen2.5-VL text model of width 64 with 4 layers, float32, in evaluation mode."""
    config = transformers.Qwen2_5_VLTextConfig(
        vocab_size=vocabulary_size,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]},
        bos_token_id=None,
        eos_token_id=None,
    )
    return transformers.Qwen2_5_VLTextModel(config).eval()


def make_t5_tokenizer() -> transformers.T5Tokenizer:
    """Return a T5 tokenizer: a unigram vocabulary of whole words and single characters, `</s>` at the end."""
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    words = [("▁" + word, -3.0) for word in dict.fromkeys(_WORDS.split())]
    characters = [(chr(code), -10.0) for code in range(33, 127)]
    return transformers.T5Tokenizer(vocab=[*special, *words, *characters], extra_ids=0)


def make_t5(vocabulary_size: int, *, width: int = 64, head: int = 16) -> transformers.T5EncoderModel:
    """Return a T5 encoder with 2 layers and a gated GELU, float32, in evaluation mode.

    Args:
        width: of its embeddings. head: of one of its 4 heads.
    """
    config = transformers.T5Config(
        vocab_size=vocabulary_size,
        d_model=width,
        d_kv=head,
        d_ff=2 * width,
        num_layers=2,
        num_heads=4,
        feed_forward_proj="gated-gelu",
        dropout_rate=0.0,
        tie_word_embeddings=False,
        use_cache=False,
    )
    return transformers.T5EncoderModel(config).eval()
