"""Stand-ins of tables that people brought: answers beside scikit-learn's models of pooled rows and of each site's."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

import fedcore as fc
from fedcore.cli.main import main

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of DVC
SEEDS = [0, 1, 2]


def answer(x: Any, y: Any, site: Any, model: Any = LogisticRegression, **settings: Any) -> tuple[Any, Any, Any]:
    """The answer, and accuracies of scikit-learn's model of pooled rows and of each site's own, means by site."""
    data = fc.from_arrays(x.astype("float32"), y.astype(int), device=[f"s{number}" for number in site])
    fed = fc.federate(data, fc.by_device(), net=fc.mlp(16))
    training = {"optimiser": "adam", "lr": 0.01, "epochs": 10}
    rows = [fc.local_only(training=training), fc.fedavg(rounds=3, training=training), fc.pooled()]
    found, pooled, own = fc.compare(rows, fed, SEEDS, **settings).answer, [], []
    for seed in SEEDS:
        sites = {name: device.data for name, device in fed.federation(seed).devices.items()}
        whole = model().fit(*(np.concatenate([getattr(of.train, part) for of in sites.values()]) for part in "xy"))
        pooled.append({name: whole.score(of.test.x, of.test.y) for name, of in sites.items()})
        own.append(
            {name: model().fit(of.train.x, of.train.y).score(of.test.x, of.test.y) for name, of in sites.items()}
        )
    return found, pd.DataFrame(pooled).mean(), pd.DataFrame(own).mean()


def test_where_the_columns_tell_nothing_no_remedy_is_named():
    rng = np.random.default_rng(0)
    found, pooled, own = answer(rng.normal(size=(800, 5)), rng.random(800) < 0.4, np.arange(800) % 4)
    assert max(pooled.mean(), own.mean()) < 0.63 + 0.02  # always guessing is right on .6 of the rows
    assert found.advice.value == pytest.approx(pooled.mean(), abs=0.06)
    assert "see nothing of the label either: the columns tell little, or the rows are too few" in str(found)
    assert not re.search(r"=balanced|run\.weigh|learning rate|Tried", str(found))


def test_a_label_that_columns_tell_weakly_is_judged_by_probabilities():
    """Three rows in four have one label, whatever the columns say: right answers cannot show what is learnt."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 6))
    y = rng.random(4000) < 1 / (1 + np.exp(1.25 - 0.5 * x[:, 0] - 0.4 * x[:, 1] + 0.3 * x[:, 2]))
    found, pooled, own = answer(x, y, np.arange(4000) % 5)
    assert max(pooled.mean(), own.mean()) < max(y.mean(), 1 - y.mean()) + 0.02
    assert "try metric=roc_auc, as accuracy may hide what is told weakly" in str(found)
    by_area, *_ = answer(x, y, np.arange(4000) % 5, metric="roc_auc")
    assert "always guessing (" not in str(by_area)
    model = LogisticRegression().fit(x[:2000], y[:2000])
    assert by_area.advice.value == pytest.approx(roc_auc_score(y[2000:], model.predict_proba(x[2000:])[:, 1]), abs=0.05)


def test_sites_of_unlike_sizes_are_offered_the_answer_by_rows():
    """Three large sites gain from each other, and the small one has a law of its own."""
    rng, site = np.random.default_rng(1), np.repeat(np.arange(4), [500, 500, 500, 40])
    x, small = rng.normal(size=(1540, 150)), site == 3
    x[small, 0] *= 6
    y = np.where(small, x[:, 0] < 0, x[:, 1:] @ rng.normal(size=149) > 0)
    found, pooled, own = answer(x, y, site, least_test=0)
    assert ((pooled - own).drop("s3") > 0.05).all()
    assert pooled["s3"] < own["s3"]
    assert found.own.action == "cannot say"
    assert "If rows count, not devices, use fedavg: weigh=examples." in str(found)


def test_what_boosting_would_reach_is_left_on_the_table():
    x = np.random.default_rng(0).normal(size=(800, 5))
    found, pooled, own = answer(x, np.floor(2 * x[:, 0]) % 2, np.arange(800) % 4, GradientBoostingClassifier)
    assert "Left on the table: pooled" in str(found)
    assert found.advice.value + found.pooled.mean == pytest.approx(pooled.mean(), abs=0.03)
    assert own.mean() < pooled.mean()


def answer_of(folder: Path, rows: pd.DataFrame, *more: str) -> str:
    """Return what a run of two rows without class weights prints, in one line."""
    rows.to_csv(folder / "rare.csv", index=False)
    main(["init", str(folder / "own"), "--data", str(folder / "rare.csv"), "--label", "fault", "--device", "site"])
    typed = "seeds=[0,1] methods=[local_only,fedavg] training.class_weights=none run.threshold=half"
    command = [sys.executable, "-m", "fedcore", "run", *typed.split(), "run.new_device=shared", *more]
    return " ".join(subprocess.run(command, cwd=folder / "own", capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize("linear", [True, False])
def test_a_linear_net_is_named_where_a_run_with_it_gains(linear: bool, tmp_path: Path):
    """One row in ten fails, by a sum of forty columns, or by products of four."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(800, 40) if linear else (2400, 4))
    risk = x @ rng.normal(size=40) / 6.3 if linear else x[:, 0] * x[:, 1] + x[:, 2] * x[:, 3]
    risk += rng.normal(0, 0.3, len(x))
    rows = pd.DataFrame(x).add_prefix("c").assign(fault=np.where(risk > np.quantile(risk, 0.9), "yes", "no"))
    said = answer_of(tmp_path, rows.assign(site=[f"s{i % 4}" for i in range(len(x))]), "run.lr_factors=[]")
    assert ("Tried with one seed: fedavg with a linear net (net.widths=[]) gains +" in said) is linear
    half = len(x) // 2
    model = LogisticRegression(class_weight="balanced").fit(x[:half], rows["fault"][:half])
    assert (balanced_accuracy_score(rows["fault"][half:], model.predict(x[half:])) > 0.8) is linear


def test_class_weights_are_named_where_a_run_with_them_gains(tmp_path: Path):
    """One row in twenty fails; init sets the weights itself."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2400, 3))
    risk = x[:, 0] + x[:, 1] + rng.normal(0, 0.5, 2400)
    y = np.where(risk > np.quantile(risk, 0.95), "yes", "no")
    rows = pd.DataFrame(x, columns=["load", "heat", "wear"]).assign(fault=y, site=[f"s{i % 4}" for i in range(2400)])
    said = answer_of(tmp_path, rows)
    assert "fedavg misses many rows of a rare class; training.class_weights=balanced may change it" in said
    assert "Tried with one seed: fedavg with training.class_weights=balanced gains +" in said
    models = (LogisticRegression(class_weight=weights).fit(x[:1200], y[:1200]) for weights in (None, "balanced"))
    plain, weighed = (balanced_accuracy_score(y[1200:], model.predict(x[1200:])) for model in models)
    assert weighed > plain + 0.1
    assert re.search(r"rare-fault version \d \(local_only, seed 0, not shown to be better\): no champion yet", said)
