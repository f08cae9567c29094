"""What a run holds and says besides its metrics: parameters, files and descriptions."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pandas as pd

from fedcore import __version__
from fedcore.pipeline.files import FINAL_FIT, OUTCOMES, SETTING
from fedcore.pipeline.record import origin
from fedcore.pipeline.record.result import Result

NOTE = 8000
"""The most characters that MLflow keeps of a run's description."""


REST = "The rest is on the page, among the artifacts."


def describe_final_fit(result: Result) -> str:
    """Say what a final fit is, on which rows, and which score stands for it."""
    final = result.final
    assert final is not None
    limit = "" if "val" not in final.held_out else " but for validation rows, by which the method chooses"
    left = f" {final.left:,} rows of the shared test set stay out." if final.left else ""
    if final.left and "shared" in final.held_out:
        left = f" The shared test set stays out, {final.left:,} rows, as the method chooses by it."
    threshold = (
        f" {result.threshold.label!r} is predicted from probability {result.threshold.value:.3g} on, which "
        "validation rows of that study decided." if result.threshold else ""
    )  # fmt: skip
    return (
        f"Final fit of version {final.version}: {result.row.label} once more, with the same settings, code and seed "
        f"({result.seed}), on all labelled rows of each device{limit}: {sum(final.rows.values()):,} rows in place of "
        f"{sum(final.before.values()):,}, those marked as test among them.{left} Nothing tests it: the "
        f"{result.metric.words} to expect is that of version {final.version}, measured by study {result.setting.study} "
        f"({result.size}), not its own.{threshold} Dataset {final.study.dataset.digest}; {FINAL_FIT} of its run counts "
        "the rows of each device."
    )


def origin_files(result: Result) -> dict[str, bytes]:
    """Return what made a result, its outcomes, and the rows of a final fit, as files of its run."""
    files = {SETTING: origin.to_json(origin.origin_of(result))}
    if (final := result.final) is not None:
        card = {
            "final_fit_of": final.version, "study_run": final.run, "dataset": final.study.dataset.digest,
            "rows": final.rows, "rows_in_study": final.before, "held_out": final.held_out,
            "shared_rows_left_out": final.left, "config": result.config, "fedcore": __version__,
        }  # fmt: skip
        files[FINAL_FIT] = (json.dumps(card, indent=1) + "\n").encode()
    if result.outcomes is not None:
        files[OUTCOMES] = (json.dumps(result.outcomes.to_json()) + "\n").encode()
    return files


def shorten_note(note: str) -> str:
    """Leave out the last parts of a description, each a paragraph or a table, until MLflow can keep it."""
    if len(note) <= NOTE:
        return note
    parts = note.split("\n\n")
    while parts and (len("\n\n".join([*parts, REST])) > NOTE or parts[-1].startswith("#")):  # no title without a table
        parts.pop()
    return "\n\n".join([*parts, REST])


def params_of(result: Result) -> dict[str, Any]:
    """Return all settings of a run by their keys in params.yaml."""
    setting = result.setting
    sections = {"data": setting.data, "federation": setting.federation, "net": setting.net}
    flat = {f"{section}.{key}": value for section, values in sections.items() for key, value in values.items()}
    decided = {"threshold": result.threshold.value} if result.threshold else {}
    return {
        "study": setting.study,
        "setting": setting.name,
        "seed": result.seed,
        **flat,
        **result.row.flat(),
        **decided,
    }


def cut_value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 500 else text[:497] + "..."


def to_parquet(table: pd.DataFrame) -> bytes:
    out = io.BytesIO()
    table.to_parquet(out, index=False)
    return out.getvalue()


def to_npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()
