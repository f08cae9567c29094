"""A hook of mkdocs: the page papers.md, made from papers/ when the site is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from fedcore.config.papers import read_papers
from fedcore.config.params import read
from fedcore.report.papers import index


def on_files(files: Files, config: Any) -> Files:
    """Add the index of the papers' figures and tables."""
    root = Path(config.config_file_path).parent
    text = index(read_papers(read(root)["studies"], root), root)
    files.append(File.generated(config, "papers.md", content=text))
    return files
