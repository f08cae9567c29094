"""A script and the pipeline give the same numbers to the last bit."""

from pathlib import Path
from typing import Any

import own_modules
import pandas as pd
import pytest
from project import METHODS
from scenarios import Own, Repro

import fedcore as fc

TRAINING = {"epochs": 5, "batch": 32}
"""What the small project of these tests changes in local training (`project.small`)."""


def federation() -> Any:
    """The small project's federation."""
    settings: dict[str, Any] = {"devices": 4, "net": fc.mlp(16, 8), "name": "digits"}
    return fc.federate(fc.load("digits"), fc.dirichlet(1.0), **settings)


def same(scripted: pd.DataFrame, piped: pd.DataFrame) -> None:
    """Compare two tidy tables but for the name of the study, and the guesses that a script's comparison has always."""
    scripted = scripted[scripted["method"].isin(piped["method"])].reset_index(drop=True)
    assert set(piped["method"]) == set(scripted["method"])
    assert scripted["metric"].eq("accuracy").sum() > 0
    pd.testing.assert_frame_equal(scripted.drop(columns="study"), piped.drop(columns="study"), check_exact=True)


def test_a_script_gives_the_accuracies_of_dvc_repro_to_the_last_bit(repro: Repro):
    """The pipeline's table is that of its last run, `dvc exp run -S code_ot.reg=0.1`."""
    rows = []
    for label, changes in METHODS.items():
        settings = {"method": label, **changes, **({"reg": 0.1} if label == "code_ot" else {})}
        training = TRAINING | settings.pop("training", {})
        rows.append(fc.method(settings.pop("method"), label=label, training=training, **settings))
    found = fc.compare(rows, federation(), seeds=[0])
    piped = pd.read_parquet(repro.project.folder / "pipeline" / "federate" / "code" / "code-0" / "table.parquet")
    same(found.table, piped)


def test_a_method_of_ones_own_does_the_same_by_script(own: Own, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(own.project.folder))
    training = {**TRAINING, "shared_init": True}
    rows = [fc.method("own_method:median", rounds=2, training=training), fc.fedavg(rounds=2, training=training)]
    found = fc.compare(rows, federation(), seeds=[0])
    assert own.methods.said is not None
    folder = own.project.folder / Path(own.methods.said.out.rpartition("page: ")[2].partition("/report.html")[0])
    piped = pd.read_parquet(folder / "code-0" / "table.parquet")
    same(found.table, piped[piped["method"] != "throwaway"].reset_index(drop=True))


@pytest.mark.filterwarnings("ignore:.*deprecated.*")
def test_modules_of_many_kinds_do_the_same_by_script(own: Own, monkeypatch: pytest.MonkeyPatch):
    """The script's are compared with plain PyTorch in nets/test_trial.py."""
    monkeypatch.syspath_prepend(str(own.project.folder))
    assert own.kinds.said is not None
    folder = own.project.folder / Path(own.kinds.said.out.rpartition("page: ")[2].partition("/report.html")[0])
    data = fc.load("table", path=own.project.folder / "data" / "rows.csv", label="state")
    row = fc.fedavg(rounds=2, training={"epochs": 2, "batch": 32, "shared_init": True})
    piped = pd.read_parquet(folder / "kinds-0" / "table.parquet")
    for kind, (setting, rows) in zip(own_modules.EQUAL, piped.groupby("setting", sort=False), strict=True):
        assert kind.__name__ in setting
        federation = fc.federate(data, fc.dirichlet(1.0), devices=2, net=fc.net(kind), name="rows")
        found = fc.compare([row], federation, seeds=[0])
        same(found.table.assign(setting=setting), rows.reset_index(drop=True))
