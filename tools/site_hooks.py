"""What mkdocs does besides rendering docs/ (`hooks` in mkdocs.yml): pages of the site that docs/ does not hold.

The site begins with README.md, and has the reference pages, CONTRIBUTING.md and the tables of benchmarks/results. Links
in the repository are those of its folders; on the site docs/ is the top.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import reference
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not in docs/."""
    made = {"commands.md": reference.commands(), "api.md": reference.api()}
    others = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "benchmarks" / "results").glob("*.md"))]
    made |= {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in others}
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put the README before the list of pages, and lead links to where the site has the file."""
    if page.file.src_uri == "index.md":
        pages = markdown.partition("-->")[2]
        markdown = (ROOT / "README.md").read_text(encoding="utf-8") + "\n## Pages\n" + pages
    for there, here in (("](docs/", "]("), ("](../../docs/", "](../../"), ("](../benchmarks/", "](benchmarks/")):
        markdown = markdown.replace(there, here)
    return markdown
