"""Hooks of MkDocs: the notebooks of `tutorials/` become pages of the site, with their stored
outputs and pictures; none is run. The schemas of files are part of the site. What the API
has is a link wherever it is named."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter
from traitlets.config import Config

TOGETHER = {"CoalesceStreamsPreprocessor": {"enabled": True}}
"""What a cell prints is one block, however many pieces it is stored in."""

ROOT = Path(__file__).parents[1]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds `tutorials/NAME.md` for each notebook, and what it shows; and `schemas/`."""
    for path in sorted((ROOT / "checkmate" / "core" / "schemas").glob("*.json")):
        files.append(File.generated(config, f"schemas/{path.name}", abs_src_path=str(path)))
    for path in sorted((ROOT / "tutorials").glob("*.ipynb")):
        text, resources = MarkdownExporter(config=Config(TOGETHER)).from_filename(
            str(path), resources={"unique_key": path.stem}
        )
        files.append(File.generated(config, f"tutorials/{path.stem}.md", content=links(text)))
        for name, content in resources["outputs"].items():
            files.append(File.generated(config, f"tutorials/{name}", content=content))
    return files


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links names in code to what the API says of them, and options to their list."""
    targets = {"PlanOptions": "checkmate.tf2.PlanOptions"}
    for path in (ROOT / "docs" / "api").glob("*.md"):
        found = re.findall(
            r"^::: (\S+)\n +options: \{heading: ([\w.]+)", path.read_text("utf-8"), re.M
        )
        targets |= {heading: name for name, heading in found}
    html = html.replace("checkmate.tf2.options.PlanKeywords", "checkmate.tf2.PlanOptions")

    def link(name: re.Match[str]) -> str:
        to = targets.get(name[1], name[1])
        return f'<autoref optional identifier="{to}">{name[0]}</autoref>'

    return re.sub(r"(?<!>)<code>(PlanOptions|checkmate(?:\.\w+)+)</code>", link, html)


def links(text: str) -> str:
    """Links between notebooks become links between their pages. Files that are no pages of the site
    are named instead."""
    text = re.sub(r"\]\((\w+)\.ipynb\)", r"](\1.md)", text)
    text = text.replace("](../docs/", "](../")
    return re.sub(
        r"\[([^\]]+)\]\(\.\./([\w.-]*/README\.md)\)", r"\1 (`\2` in the repository)", text
    )
