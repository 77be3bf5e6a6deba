"""The documents: their links lead somewhere, their commands and programs end as they say.

A block of commands (`sh`) or of a program (`python`) runs as it stands, unless it has a title: that says what it needs
and this machine lacks (`sh title="with your checkpoint"`), and readers of the site see it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
"""Written by hand for users; the rest of the site is made (tools/site_hooks.py)."""
DOCUMENTS = [*PAGES, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "benchmarks" / "results").glob("*.md"))]
BLOCK = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
DIFFERS = re.compile(r"attention.mask=(none|zero_kv)( |$)|explain( faulty| story)?$")
"""Commands that end with exit code 1."""
INSTALLS = ("make ", "pip ")


def executed(document: Path) -> Iterator[tuple[str, str]]:
    """(language, text) of the blocks that run, in their order."""
    for language, title, text in BLOCK.findall(document.read_text("utf-8")):
        if language in ("sh", "python") and not title:
            yield language, text


def anchors(document: Path) -> set[str]:
    """What a link may lead to within a document, as both GitHub and mkdocs call it."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", document.read_text("utf-8")), re.MULTILINE)
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
    assert sorted(named) == sorted(["api.md", "commands.md", *(page.name for page in PAGES[1:])])


def test_extras_that_are_named_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for document in PAGES:
        for named in re.findall(r"pip install '?tpu-parity\[([\w,]+)\]", document.read_text("utf-8")):
            assert set(named.split(",")) <= set(extras), (document.name, named)


def test_commands_stand_in_blocks_that_run_or_say_what_they_need() -> None:
    for document in PAGES:
        text = document.read_text("utf-8")
        others = [block for language, _, block in BLOCK.findall(text) if language not in ("sh", "yaml")]
        others += re.findall(r"^ {4}\S.*$", BLOCK.sub("", text), re.MULTILINE)
        found = [block for block in others if re.search(r"^ *(parity|pip|make) ", block, re.MULTILINE)]
        assert found == [], document.name


def script() -> dict[str, Any]:
    """What the scripts of docs/two-machines.md have already."""
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
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("document", [page for page in PAGES if any(executed(page))], ids=lambda page: page.name)
def test_what_a_document_shows_runs(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchax")
    shutil.copytree(ROOT / "golden", tmp_path / "golden")
    monkeypatch.chdir(tmp_path)
    known: dict[str, Any] = {"__name__": "document", **(script() if document.name == "two-machines.md" else {})}
    folder = tmp_path
    for language, text in executed(document):
        if language == "python":
            exec(compile(text, document.name, "exec"), known)
        else:
            folder = run_commands(text, folder)


def run_commands(text: str, folder: Path) -> Path:
    """Run the lines of a block, but for those that install or make something.

    Returns:
        the folder that the last of them left the reader in.
    """
    config = folder / "gitconfig"
    config.write_text("[user]\nname = n\nemail = n@example.org\n[init]\ndefaultBranch = main\n")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = {**os.environ, "PATH": path, "GIT_CONFIG_GLOBAL": str(config)}
    for command in (re.split(r" +# ", line)[0].strip() for line in text.splitlines()):
        if command and not command.startswith(INSTALLS):
            bash = ["bash", "-e", "-o", "pipefail", "-c", command]
            done = subprocess.run(bash, cwd=folder, env=variables, capture_output=True, text=True)
            assert done.returncode == bool(DIFFERS.search(command)), (command, done.stdout, done.stderr)
            if entered := re.search(r"&& cd (\S+)$", command):  # each command has a shell of its own
                folder /= entered[1]
    return folder
