"""What is known of a VAE from its config, and what a user of another one can do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parity.errors import UsageError
from parity.models.vae_config import vae_config


def test_a_vae_that_no_stage_decodes_can_be_compared_as_ports(tmp_path: Path) -> None:
    (tmp_path / "vae").mkdir()
    (tmp_path / "vae" / "config.json").write_text(json.dumps({"_class_name": "AutoencoderKLWan"}))
    with pytest.raises(UsageError, match=r"'AutoencoderKLWan', .*give both decoders as ports"):
        vae_config(tmp_path)
