"""Tables for claims: two devices, three seeds and a grid of two keys, whose numbers are stated."""

import pandas as pd

POINTS = {
    f"alpha={alpha} net={net}": {"federation.alpha": alpha, "net": net}
    for alpha in (1.0, 0.1)
    for net in ("mlp", "cnn")
}

BASE = {"good": 0.8, "fair": 0.7, "even": 0.7, "single": 0.5}

NOISE = {0: -0.02, 1: 0.0, 2: 0.02}
"""What a seed adds to every method alike."""


def table(**more):
    """good is .1 above fair everywhere, even within .005 of it; all fall with alpha and are the same in both nets."""
    rows = []
    for setting, point in POINTS.items():
        for method, base in BASE.items():
            for seed, noise in NOISE.items():
                if method == "single" and seed:
                    continue
                wobble = 0.005 * (seed - 1) if method == "even" else 0.0
                value = base + noise + wobble - (0.1 if point["federation.alpha"] == 1.0 else 0.0)
                for round_info in (1, 2):
                    for device, side in (("a", 0.01), ("b", -0.01)):
                        row = (
                            setting, method, seed, 0, round_info, device, "shared", "accuracy",
                            value - 0.2 * (2 - round_info) + side,
                        )  # fmt: skip
                        rows.append(row)
    columns = ["setting", "method", "seed", "stage", "round", "device", "split", "metric", "value"]
    return pd.DataFrame(rows, columns=columns)


def drawn(values, a="a", b="b"):
    """Rows of a and b = 0: values of a, settings x seeds."""
    rows = [
        (str(place), method, seed, 0, 1, "x", "shared", "accuracy", value)
        for place, seeds in enumerate(values)
        for seed, difference in enumerate(seeds)
        for method, value in ((a, difference), (b, 0.0))
    ]
    return pd.DataFrame(rows, columns=list(table().columns)), {str(place): {} for place in range(len(values))}


def course(**values):
    """Rows of one device in setting "one", seeds 0 to 2: method -> values after rounds 1, 2, ...; a list of stages."""
    rows = [
        ("one", method, seed, stage, round_info, "a", "shared", "accuracy", value + seed / 1000)
        for method, stages in values.items()
        for stage, of in enumerate(stages)
        for round_info, value in enumerate(of, 1)
        for seed in range(3)
        if value is not None
    ]
    return pd.DataFrame(rows, columns=list(table().columns))
