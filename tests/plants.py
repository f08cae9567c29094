"""A plant's rows, which a study has in one table and the field in one for each site."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

SITES = {"north": 40, "south": 31, "west": 58}


def plant() -> pd.DataFrame:
    """Rows of three sites in turn, with a text, a boolean, a constant on one site, and gaps: west knows no flow."""
    rng, site = np.random.default_rng(3), np.repeat([*SITES], [*SITES.values()])
    rng.shuffle(site)
    rows = pd.DataFrame({"site": site, "heat": rng.normal(1000, 3, len(site)), "flow": rng.normal(size=len(site))})
    rows["kind"] = rng.choice(["pump", "fan", "mill"], len(site))
    rows["old"] = rng.random(len(site)) < 0.5
    rows["fault"] = rng.choice(["none", "leak", "crack"], len(site), p=[0.5, 0.3, 0.2])
    rows.loc[rows["site"] == "west", "flow"] = math.nan
    rows.loc[rng.random(len(site)) < 0.1, "heat"] = math.nan
    rows["part"] = rng.choice(["train", "test"], len(site))
    return rows
