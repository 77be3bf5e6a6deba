"""The documents: their links lead somewhere, their commands and programs end as they say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = [
    "README.md",
    *(f"docs/{name}.md" for name in ["agents", "bisect", "ci", "documents", "explain", "goldens", "ports", "stages"]),
]
DIFFERS = re.compile(r"attention.mask=(none|zero_kv)( |$)|explain( story| zeroed)?$")
"""Commands that end with exit code 1."""


def blocks(document: str, language: str) -> list[str]:
    text = (ROOT / document).read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def anchors(document: Path) -> set[str]:
    """What a link may lead to within a document, as both GitHub and mkdocs call it."""
    text = re.sub(r"^```.*?^```", "", document.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_links_lead_somewhere_and_every_document_is_in_the_nav() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"(?<!`)\]\(([^)\s]+)\)", document.read_text("utf-8")):
            name, _, anchor = target.partition("#")
            where = document if not name else (document.parent / name).resolve()
            if not target.startswith("http"):
                assert where.exists(), (document.name, target)
                assert not anchor or anchor in anchors(where), (document.name, target)
    named = re.findall(r"^ +- (\S+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    assert sorted(named) == [document.name for document in DOCUMENTS[1:]]


def test_extras_that_are_named_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for document in DOCUMENTS:
        for named in re.findall(r"pip install '?tpu-parity\[([\w,]+)\]", document.read_text("utf-8")):
            assert set(named.split(",")) <= set(extras), (document.name, named)


def script() -> dict[str, Any]:
    """What the script of docs/recording.md has already."""
    import torch
    from diffusers import CogVideoXPipeline

    from parity.models.registry import resolve_model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipe = CogVideoXPipeline.from_pretrained(resolve_model("tiny-cogvideox-1.5"))
    size = {"height": 32, "width": 32, "num_frames": 9, "generator": torch.Generator().manual_seed(0)}

    def my_loop(transformer: Any, scheduler: Any) -> Any:
        own = {**size, "generator": torch.Generator().manual_seed(0)}
        latents = pipe("a cat", num_inference_steps=2, output_type="latent", **own).frames
        return latents[:, 1:]  # CogVideoX 1.5 makes a frame more than it shows

    def my_decoder(vae: Any, latents: Any) -> Any:
        with torch.no_grad():
            return pipe.video_processor.postprocess_video(video=pipe.decode_latents(latents), output_type="np")

    parts = {name: getattr(pipe, name) for name in ("transformer", "vae", "scheduler")}
    return {"pipe": pipe, **parts, "size": size, "my_loop": my_loop, "my_decoder": my_decoder}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["python", "recording"])
def test_programs_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchax")
    monkeypatch.chdir(tmp_path)
    known: dict[str, Any] = {"__name__": name, **(script() if name == "recording" else {})}
    for block in blocks(f"docs/{name}.md", "python"):
        exec(compile(block, f"{name}.md", "exec"), known)
    if name == "recording":
        commands_end_as_they_say("docs/recording.md", tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("document", COMMANDS)
def test_commands_run(document: str, tmp_path: Path) -> None:
    pytest.importorskip("torchax")
    shutil.copytree(ROOT / "golden", tmp_path / "golden")
    commands_end_as_they_say(document, tmp_path)


def commands_end_as_they_say(document: str, folder: Path) -> None:
    """Run the lines of a document's shell blocks in order, but for those that install or make something."""
    (folder / "gitconfig").write_text("[user]\nname = n\nemail = n@example.org\n[init]\ndefaultBranch = main\n")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = {**os.environ, "PATH": path, "GIT_CONFIG_GLOBAL": f"{folder}/gitconfig"}
    lines = [line.partition("   #")[0].strip() for block in blocks(document, "sh") for line in block.splitlines()]
    commands = [line for line in lines if not line.startswith(("make ", "pip "))]
    assert commands
    for command in commands:
        bash = ["bash", "-e", "-o", "pipefail", "-c", command]
        done = subprocess.run(bash, cwd=folder, env=variables, capture_output=True, text=True)
        assert done.returncode == bool(DIFFERS.search(command)), (command, done.stdout, done.stderr)
        if entered := re.search(r"&& cd (\S+)$", command):  # each command has a shell of its own
            folder /= entered[1]
