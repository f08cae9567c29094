"""Who teaches whom, over which link, at what energy: the bounds, energies and programs of ST-LF."""

from __future__ import annotations

from fedcore.links.problem import Problem, Solution, best_links, energy_of_links, objective
from fedcore.links.programs import solve

__all__ = ["Problem", "Solution", "best_links", "energy_of_links", "objective", "solve"]
