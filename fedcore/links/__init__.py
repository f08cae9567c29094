"""Who teaches whom, over which link, at what energy: the bounds, energies and programs of ST-LF."""

from __future__ import annotations

from fedcore.links.problem import Answer, Problem, best_links, objective, spent
from fedcore.links.programs import solve

__all__ = ["Answer", "Problem", "best_links", "objective", "solve", "spent"]
