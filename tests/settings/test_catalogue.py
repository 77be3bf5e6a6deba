"""The settings' contract: names, values, errors that help; each is applied, reported and told."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

import parity
from parity.commands.record import Floors
from parity.errors import UsageError
from parity.hooks.faults import FAULTS
from parity.settings import (
    BITS,
    BY_NAME,
    SETTINGS,
    Backend,
    changed_by,
    differences,
    meaningless,
    parse,
    remedy,
    sentence,
)
from parity.settings.catalogue import Capability, Input, Place
from parity.settings.chips import CHIPS, NO_CHIP, chip_of
from tests.support.settings import tries


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("attention.msk=none", "did you mean 'attention.mask'"),
        ("attention.mask=non", "did you mean 'none'"),
        ("attention.mask", "not of the form"),
        ("scheduler.warmup_steps=-1", "at least 0"),
        ("mesh=dp=0,sp=1,tp=1", "dp=N,sp=N,tp=N"),
        ("attention.kernel=splash", "it takes: flex, sdpa"),
        ("jit=true", "it takes: false"),
    ],
)
def test_what_a_side_cannot_take_is_refused_with_what_it_can(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse("torch", [text])


SPLASH = "attention.kernel=splash"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ["attention.block_q=64"],
            "'attention.block_q=64' does nothing with attention.kernel=sdpa: give .*=splash too",
        ),
        (["attention.block_kv=256"], "'attention.block_kv=256' does nothing"),
        (["attention.block_padding=unmasked"], "'attention.block_padding=unmasked' does nothing"),
        (["sharding=replicated"], "'sharding=replicated' does nothing with mesh=dp=1,sp=1,tp=1: give mesh=.*tp=2 too"),
        ([SPLASH, "attention.block_kv=200"], "'attention.block_kv' in multiples of 128, found 200"),
        ([SPLASH, "attention.block_q=60"], "'attention.block_q' in multiples of 8, found 60"),
        ([SPLASH, "attention.softmax_dtype=bfloat16"], "float32: .* needs attention.kernel=sdpa"),
        ([SPLASH, "matmul_precision=high"], "'matmul_precision=high' needs attention.kernel=sdpa"),
    ],
)
def test_what_does_nothing_beside_the_rest_is_refused_with_what_it_needs(given: list[str], message: str) -> None:
    for order in (given, given[::-1]):
        with pytest.raises(UsageError, match=message):
            parse("torchax", order)


def test_the_reference_emulates_blocks_of_any_size_whatever_its_kernel() -> None:
    given = ["attention.block_q=60", "attention.block_kv=200", "attention.block_padding=unmasked"]
    for kernel in ("flex", "sdpa"):
        assert parse("torch", [*given, f"attention.kernel={kernel}"])["attention.block_kv"] == 200


def test_a_repeated_setting_is_refused() -> None:
    with pytest.raises(UsageError, match="given twice"):
        parse("torch", ["dtype=float32", "dtype=bfloat16"])


def test_backends_at_their_own_defaults_do_not_differ() -> None:
    assert differences(parse("torch"), parse("torchax")) == ()
    (found,) = differences(parse("torch"), parse("torchax", ["attention.mask=none"]))
    assert (found.setting, found.reference, found.candidate) == ("attention.mask", "exact", "none")


@pytest.mark.parametrize("device", ["tpu", "mps:0", "cuda", "cpu"])
def test_a_device_without_flex_attention_has_another_default(device: str) -> None:
    side = parse("torchax", [f"device={device}"])
    assert side.text("attention.kernel") == ("flex" if device in ("cuda", "cpu") else "sdpa")
    assert not side.changed("attention.kernel")
    assert {d.setting for d in differences(parse("torch"), side)} == {"device"}


def test_the_neutral_settings_keep_every_choice_but_the_dtypes() -> None:
    given = parse("torchax", ["dtype=bfloat16", "rope_dtype=bfloat16", "attention.mask=zero_kv", "jit=false"])
    neutral = given.neutral
    assert neutral.text("attention.mask") == "zero_kv"
    assert neutral["jit"] is False
    assert {neutral.text(name) for name in ("dtype", "rope_dtype")} == {"float32"}
    assert neutral.exact
    assert neutral.neutral == neutral
    assert parse("torch").neutral == parse("torch")  # the defaults only round where they must


@pytest.mark.parametrize(
    ("given", "bits"),
    [
        ((), 24),
        (("dtype=bfloat16",), 8),
        (("dtype=float16",), 11),
        (("matmul_precision=default",), 8),
        (("matmul_precision=high",), 16),
        (("text.byt5_dtype=bfloat16",), 8),
        (("dtype=float16", "matmul_precision=default"), 11),
        (("latents_dtype=bfloat16", "rope_dtype=bfloat16"), 24),
    ],
)
def test_the_working_dtype_is_the_networks_coarsest(given: tuple[str, ...], bits: int) -> None:
    assert parse("torch", given).working_bits == bits


@pytest.mark.parametrize("cache", ["deepcache:3,3,2", "deepcache:1,3,1", "deepcache:1,3,0"])
def test_a_cache_that_skips_nothing_is_refused(cache: str) -> None:
    for backend in ("torch", "torchax"):
        with pytest.raises(UsageError, match="skips nothing: START must be below END, and INTERVAL at least 2"):
            parse(backend, [f"cache={cache}"])  # type: ignore[arg-type]


def test_a_cache_says_at_which_steps_all_blocks_run() -> None:
    cache = parse("torchax", ["cache=deepcache:1,3,2"]).deep_cache
    assert cache is not None
    assert (cache.start, cache.end, [cache.full(step) for step in range(4)]) == (1, 3, [True, False, True, False])
    assert parse("torch").deep_cache is None


# --- The catalogue is whole

ROOT = Path(parity.__file__).parent
BACKENDS: tuple[Backend, ...] = ("torch", "torchax")


def test_every_setting_is_applied_reported_and_told() -> None:
    code = (path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py") if path.parent != ROOT / "settings")
    applied = {name for text in code for name in re.findall(r'\b(?:mark|asked)\(\s*"([^"]+)"\s*\)', text)}
    applied |= {name.partition("=")[0] for name in FAULTS}  # each marks its own
    assert applied == {setting.name for setting in SETTINGS}
    assert all(BY_NAME[name].read(value) for name, _, value in (fault.partition("=") for fault in FAULTS))
    for setting in SETTINGS:
        for backend in BACKENDS:
            values = tries(setting, backend)
            assert values, setting.name
            taken = setting.takes.get(backend, values)
            needs = setting.needs if backend == "torchax" else ()
            for value in values:
                if value in taken:
                    assert parse(backend, [*needs, f"{setting.name}={value}"]).changed(setting.name)
                else:
                    with pytest.raises(UsageError, match="cannot take"):
                        parse(backend, [f"{setting.name}={value}"])
        assert setting.meaning
        assert remedy(setting.name)
        assert not re.search(r"[{}]", sentence(setting.name, tries(setting, "torch")[0])), setting.name
        assert set(get_args(Place)) >= set(setting.places) > set(), setting.name
        rounds = bool(set(setting.kind.values) & set(BITS)) or setting.name == "matmul_precision"
        assert (setting.neutral is not None) == rounds, setting.name


def test_what_a_model_lacks_takes_the_meaning_of_settings() -> None:
    for need in get_args(Capability):
        assert set(meaningless({need: "it has none"}).values()) == {"it has none"}
    found = meaningless({"text mask": "no mask", "attention": "no attention"})
    assert (found["attention.mask"], found["text.reorder"]) == ("no attention", "no mask")
    assert "dtype" not in found


def test_what_changes_least_else_explains_an_input_first() -> None:
    assert changed_by("embeddings") == ("text.byt5_dtype", "dtype")
    assert all(changed_by(what) for what in get_args(Input))


# --- The published bounds of TPUs' elementary functions


def test_every_chip_has_every_function_and_every_bound_is_one() -> None:
    known = {chip: bounds for chip, bounds in CHIPS.items() if chip != NO_CHIP}
    assert len({frozenset(bounds) for bounds in known.values()}) == 1
    assert all(b.absolute + b.relative > 0 for bounds in known.values() for b in bounds.values())
    assert CHIPS[NO_CHIP] == {}
    assert {*get_args(Floors)} - {"measured", "none"} == known.keys()


@pytest.mark.parametrize(
    ("kind", "chip"),
    [
        (["TPU v6 lite"], "v6e"),
        (["TPU v5"], "v5p"),
        (["TPU7x x 8"] * 2, "tpu7x"),
        (["tpu"], "v4"),
        (["cpu"], NO_CHIP),
        ([], NO_CHIP),
    ],
)
def test_a_device_is_known_by_its_kind(kind: list[str], chip: str) -> None:
    assert chip_of(kind) == chip
