"""Config values are said of the component in which a divergence starts, and of no other."""

from __future__ import annotations

import pytest

from parity.compare.detect.configs import MOST, config_cause
from parity.compare.result import Birth, Origin, SettingDifference
from parity.golden.records import Key

ROPE = SettingDifference("transformer.rope_type", "split", "interleaved")
VAE = SettingDifference("vae.upsample_residual", "(True,)", "(False,)")


def said(*fields: SettingDifference, site: str, stage: str = "transformer", birth: Birth = "module") -> list[str]:
    key = Key(stage, -1 if stage == "vae" else 0, "", site)
    return [cause.cause for cause in config_cause(fields, Origin(key, birth))]


def test_the_component_s_own_values_are_said() -> None:
    (text,) = said(ROPE, VAE, site="blocks.0.attn:out")
    assert text.endswith("config value differs: transformer.rope_type is interleaved, not split")
    (text,) = said(ROPE, VAE, site="decode:out", stage="vae")
    assert text.endswith("vae.upsample_residual is (False,), not (True,)")


@pytest.mark.parametrize("site", ["loop:noise_pred", ":in.timestep", "loop:latents.before"])
def test_what_is_given_to_the_model_is_not_its_config_s_doing(site: str) -> None:
    assert said(ROPE, site=site) == []


def test_another_component_and_another_model_are_not_said() -> None:
    assert said(VAE, site="blocks.0:out") == said(ROPE, site="decode:in.z", stage="vae") == []
    many = [SettingDifference(f"transformer.x{i}", "1", "2") for i in range(MOST + 1)]
    assert said(*many, site="blocks.0:out") == []
    assert len(said(*many[:-1], site="blocks.0:out")) == 1
