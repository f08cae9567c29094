"""What a flow run leaves on Prefect's page besides its steps."""

from __future__ import annotations

import re


def publish(study: str, text: str) -> None:
    """Leave a study's answer, in Markdown, as an artifact of this flow run; each study's artifacts have one key."""
    from prefect.artifacts import create_markdown_artifact  # loads Prefect, which a printed answer does not need

    key = re.sub(r"[^a-z0-9]+", "-", f"answer {study}".lower()).strip("-")
    create_markdown_artifact(key=key, markdown=text, description=f"{study}: what to do")
