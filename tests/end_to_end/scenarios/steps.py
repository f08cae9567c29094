"""Steps by themselves."""

from __future__ import annotations

import json
from typing import Any

from scenarios.place import Place


def probed(place: Place) -> dict[str, Any]:
    """Run the probes (tests/end_to_end/run_probes.py) on a copy of the project; returns their results."""
    said = place.copy("probed").run("python", "-m", "run_probes")
    found: dict[str, Any] = json.loads(said.out.splitlines()[-1])
    return found
