"""Going on from a state, metrics of one's own and scores on training examples."""

from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import pandas as pd
import pytest
import torch
from federations import bits
from simulated_device import KIND, SimulatedDevice
from sklearn.metrics import r2_score, roc_auc_score
from torch.nn import functional as F
from torch.nn.functional import cross_entropy

import fedcore as fc
from fedcore.api import runs as place
from fedcore.api.runs import require_metrics
from fedcore.core import together as vectorised
from fedcore.core.evaluation import evaluate

QUICK = {"epochs": 1, "shared_init": True}


@pytest.fixture(scope="module")
def fed() -> Any:
    return fc.federate(fc.load("digits"), fc.iid(), devices=3, net=fc.mlp(6), examples=300)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scaffold", "fedrep"])
def test_a_run_that_goes_on_is_one_that_never_stopped(fed: Any, name: str):
    def of(rounds: int) -> Any:
        return getattr(fc, name)(rounds=rounds, training=QUICK)

    whole = fc.run(of(4), fed, 1, progress=False)
    first = fc.run(of(2), fed, 1, progress=False)
    rest = fc.run(of(4), fed, 1, progress=False, state=first.state)
    sums = [pd.concat(legs).query("split == 'traffic'").groupby("metric")["value"].sum().to_dict()
            for legs in ([whole.table], [first.table, rest.table])]  # fmt: skip
    assert sums[0] == sums[1], "a message that devices have counts once"
    again = (replace(rest.rounds[0], down=whole.rounds[2].down), *rest.rounds[1:])
    assert [bits(one) for one in again] == [bits(one) for one in whole.rounds[2:]]
    after = whole.table[whole.table["round"] > 2].query("split not in ('data', 'alignment', 'traffic')")
    found = rest.table.query("split not in ('data', 'alignment', 'traffic')")
    assert sorted(map(str, found.to_numpy())) == sorted(map(str, after.to_numpy()))


@pytest.mark.slow
def test_a_state_that_cannot_go_on_is_refused(fed: Any):
    done = fc.run(fc.fedavg(rounds=2, training=QUICK), fed, progress=False).state
    with pytest.raises(fc.InputError, match=r"run.state: no round is left after it; the method has 2"):
        fc.run(fc.fedavg(rounds=2), fed, state=done)
    for unlike in (fc.fedper(rounds=3), fc.scaffold(rounds=3)):
        with pytest.raises(fc.InputError, match=r"run.state: belongs to another method"):
            fc.run(unlike, fed, state=done)
    one = fc.run(fc.code_ot(rounds=1, training=QUICK), fed, progress=False).state
    assert fc.run(fc.code_ot(rounds=2, training=QUICK), fed, state=one, progress=False).table["round"].max() == 1
    one = fc.run(fc.st_lf(pretrain=1, pretrain_epochs=1, training=QUICK), fed, progress=False).state
    with pytest.raises(fc.InputError, match=r"run.state: belongs to another method"):
        fc.run(fc.st_lf(pretrain=3, pretrain_epochs=1, training=QUICK), fed, state=one)
    with pytest.raises(fc.InputError, match=r"run.state: belongs to seed 0, not 1"):
        fc.run(fc.fedavg(rounds=3, training=QUICK), fed, 1, state=done)
    other = fc.federate(fc.load("digits"), fc.iid(), devices=2, net=fc.mlp(6), examples=300)
    with pytest.raises(fc.InputError, match=r"run.state: belongs to other devices"):
        fc.run(fc.fedavg(rounds=3), other, state=done)
    other = fc.federate(fc.load("digits"), fc.iid(), devices=3, net=fc.mlp(7), examples=300)
    with pytest.raises(fc.InputError, match=r"run.state: belongs to another net; tensor fc1.weight of device-00 has"):
        fc.run(fc.fedavg(rounds=3), other, state=done)
    other = fc.federate(fc.load("digits"), fc.iid(), devices=3, net=fc.mlp(6), examples=300, test=0.3)
    for state, where in ((done, other), (replace(done, rows=""), fed)):
        with pytest.raises(fc.InputError, match=r"run.state: its devices trained on other rows than the federation's"):
            fc.run(fc.fedavg(rounds=3), where, state=state)
    with pytest.raises(fc.InputError, match=r"run.state is a str: must be the state of an earlier result"):
        fc.run(fc.fedavg(rounds=3), fed, state="done")  # type: ignore[arg-type]


def test_a_run_that_a_last_stage_has_ended_says_that_it_is_over(fed: Any):
    done = fc.run(fc.fedbabu(rounds=1, training=QUICK), fed, progress=False).state
    with pytest.raises(fc.InputError, match=r"stage 2, the last, has run its 1, and only more of its own can follow$"):
        fc.run(fc.fedbabu(rounds=2, training=QUICK), fed, progress=False, state=done)


@pytest.mark.parametrize("workers", [None, pytest.param(1, marks=pytest.mark.slow)])
def test_ones_own_metric_is_in_the_table(fed: Any, workers: int | None):
    """Of the devices' own test rows it is the value by hand."""
    metrics = {"top2": lambda p, y: (p.topk(2).indices == y[:, None]).any(1).float().mean()}
    found = fc.run(fc.fedavg(rounds=2, training=QUICK), fed, metrics=metrics, workers=workers, progress=False)
    last = found.table.query("metric == 'top2' and split == 'test' and round == 2").set_index("device")["value"]
    for name, device in fed.federation(0).devices.items():
        order = torch.tensor(found.models[name].probabilities(device.data.test.x)).argsort(1, descending=True)
        hits = [int(y) in row[:2] for y, row in zip(device.data.test.y, order.tolist(), strict=True)]
        assert last[name] == pytest.approx(sum(hits) / len(hits))


def test_training_examples_are_scored_if_asked_for(fed: Any):
    found = fc.run(fc.local_only(training=QUICK), fed, score_training=True, progress=False)
    last = found.table.query("split == 'train' and metric == 'loss'").set_index("device")["value"]
    for name, device in fed.federation(0).devices.items():
        assert last[name] == evaluate(found.models[name].model, device.net, device.data.train)["loss"]
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():  # the caller's modes change no bit
        again = fc.run(fc.local_only(training=QUICK), fed, progress=False)
    assert "train" not in set(again.table["split"])
    assert bits(again.state) == bits(found.state)


@pytest.mark.parametrize(("metrics", "says"), [
    ({"accuracy": len}, "'accuracy' is the name of a metric"), ({"score": len}, "'score' is the name of a metric"),
    *(({name: len}, f"{name!r} is the name of a metric") for name in ("bytes_up", "macs", "examples", "classes")),
    ({"mine": 3}, "'mine' must be a name with a function"),
    ({"m": r2_score}, r"'m' takes y_true y_pred, must take .*, then labels; write lambda p, y: r2_score\(y, p\)"),
    ({"m": partial(roc_auc_score, average=None)}, r"'m' takes y_true y_score, must take .* f\(y, p\)"),
    *(({"m": f}, "lambda p, y: f\\(y, p\\)") for f in (lambda y, p: 0, lambda labels, outputs: 0)),
    *(({"m": f}, "lambda p, y: f\\(y, p\\)") for f in (lambda gt, pred: 0, lambda y_test, forecast: 0)),
    *(({"m": f}, "'m' must take predictions, then labels; write {'m': lambda p, y: ...}$") for f in (lambda p: 0, abs)),
    ([len], "must be functions by name"),
    ({"mine": lambda p, y: "much"}, "metrics.mine: must return a number, returned str"),
    ({"mine": lambda p, y: torch.tensor(1 + 2j)}, "metrics.mine: must return a number, returned Tensor"),
    ({"mine": lambda p, y: p.argmax(1) == y}, r"must return a number, .* of shape \(\d+,\); take its mean"),
    ({"mine": lambda p, y: 10**400}, "metrics.mine: must return a number, returned int, too large for float64"),
])  # fmt: skip
def test_what_is_no_metric_is_refused(fed: Any, metrics: Any, says: str):
    with pytest.raises(fc.InputError, match=says):
        fc.run(fc.local_only(training=QUICK), fed, metrics=metrics, progress=False)


@pytest.mark.parametrize("mine", [
    lambda p, y: r2_score(y, p), lambda preds, target: 0, lambda predicted_labels, scores: 0, lambda y_pred, y_true: 0,
    lambda *of: 0, F.l1_loss, max,
])  # fmt: skip
def test_metrics_that_take_predictions_first_are_accepted(mine: Any):
    require_metrics({"mine": mine}, "run")


class Halved(torch.nn.Linear):
    """Its last bias is not the logits of an example of zeros, which the control that guesses sets."""

    def __init__(self) -> None:
        super().__init__(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.flatten(1)) / 2


@pytest.mark.slow
def test_a_guess_not_asked_for_ends_no_comparison_and_rows_have_own_metric():
    divided = fc.federate(fc.load("digits"), fc.iid(), devices=2, net=fc.net(Halved), examples=100)
    rows = [fc.local_only(training=QUICK), fc.fedavg(training=QUICK)]
    found = fc.compare(rows, divided, metrics={"one": lambda p, y: 1}, score_training=True)
    table = found.table.query("metric == 'one'")
    assert {*table["method"]} == {*found.table["method"]} == {"local_only", "fedavg"}
    assert {*table["split"]} == {"train", "val", "test", "shared"}
    assert "does not end in the bias of its output" in found.left_out["majority"]
    with pytest.raises(fc.InputError, match=r"majority: this net does not end in the bias"):
        fc.compare([*rows, fc.method("majority")], divided)


class Cast(Halved):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x).float()


@pytest.mark.slow
def test_a_net_that_casts_its_weights_casts_them_anew_at_each_step():
    divided = fc.federate(fc.load("digits"), fc.iid(), devices=2, net=fc.net(Cast), examples=100)
    here, there = (fc.run(fc.local_only(training=QUICK), divided, workers=workers) for workers in (None, 1))
    assert bits(here.state) == bits(there.state)


@pytest.mark.slow
def test_devices_train_on_the_accelerator_to_the_same_bits(monkeypatch: pytest.MonkeyPatch):
    fed = fc.federate(fc.load("digits"), fc.iid(), devices=2, net=fc.mlp(4), examples=100)
    config = fc.fedavg(rounds=2, training={"epochs": 1})
    plain = fc.run(config, fed, progress=False)
    monkeypatch.setattr(torch.cuda, "manual_seed", lambda seed: None)
    monkeypatch.setattr(place, "find_accelerator", lambda wanted: KIND)
    monkeypatch.setattr("fedcore.core.together.WORTH_IT", 1)
    monkeypatch.setattr(vectorised.Together, "map", on_it(vectorised.Together.map, done := []))
    moved = fc.run(config, fed, progress=False, accelerator="auto")
    assert sum(done) > 0
    assert [bits(one) for one in plain.rounds] == [bits(one) for one in moved.rounds]


def on_it(run: Any, done: list[int]) -> Any:
    def map_calls(self: vectorised.Together, fn: Any, calls: Any) -> Any:
        with SimulatedDevice() as elsewhere:
            found = run(self, fn, calls)
        done.append(elsewhere.count)
        return found

    return map_calls


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
@pytest.mark.parametrize(("settings", "says"), [
    ({"accelerator": "cuda"}, "there is none here"), ({"accelerator": "gpu"}, "'none', 'auto' or 'cuda'"),
    ({"together": 0}, "must be at least 1"), ({"together": 4, "workers": 1}, "leave workers"),
])  # fmt: skip
def test_an_accelerator_that_is_not_there_and_a_wrong_together_are_refused(fed: Any, settings: Any, says: str):
    with pytest.raises(fc.InputError, match=says):
        fc.compare([fc.local_only()], fed, seeds=[0], **settings)


@pytest.mark.slow
def test_devices_train_together_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(place, "find_accelerator", lambda wanted: "cpu")
    monkeypatch.setattr("fedcore.core.together.WORTH_IT", 1)
    run, groups = vectorised.run_on_together, []
    monkeypatch.setattr(vectorised, "run_on_together", lambda *args: groups.append(len(args) - 2) or run(*args))
    fed = fc.federate(fc.load("digits"), fc.iid(), devices=3, net=fc.mlp(4), examples=100)
    config = fc.fedavg(rounds=2, training={"epochs": 1})
    plain = fc.run(config, fed, progress=False).rounds[-1].state.messages["device-00"].params
    last = fc.run(config, fed, progress=False, accelerator="auto", together=2).rounds[-1].state
    together = last.messages["device-00"].params
    assert set(groups) == {1, 2}  # whether their last digits differ depends on the processor
    assert all(torch.allclose(plain[name], together[name], atol=1e-5) for name in plain)


@pytest.fixture(scope="module")
def fed_tuning() -> Any:
    return fc.federate(fc.load("digits"), fc.iid(), devices=3, net=fc.mlp(12), examples=600)


@dataclass
class Smoothing:
    share: float = 0.0

    def __call__(self, batch: Any) -> Any:
        return cross_entropy(batch.logits, batch.y, label_smoothing=self.share) * (1 - self.share)


def smoothed(batch: Any, by: Smoothing = Smoothing()) -> Any:  # noqa: B008
    return by(batch)


def test_an_object_among_settings_stays_one():
    loss = Smoothing(0.5)
    assert fc.fedavg(training={"loss": loss}).training.loss is loss
    assert fc.fedavg(training=fc.fedavg(training={"loss": loss}).training).training.loss is loss
    assert fc.net(sized, sizes=Smoothing(0.5)).settings == {"share": 0.5}


def sized(classes: int, sizes: Smoothing) -> Any:
    raise NotImplementedError


class Head(torch.nn.Linear):
    """A net whose parameters have names of fedcore's own settings."""

    def __init__(self, shape: Any, classes: int, frozen: bool = True, rank: int = 4, weights: Any = 0, which: int = 1):
        super().__init__(shape[0], classes)
        assert (frozen, rank, weights) == (True, 4, 0)
        self.which = which


@pytest.mark.parametrize("setting", [{"frozen": False}, {"rank": 0}, {"weights": None}])
def test_a_nets_parameter_by_the_name_of_fedcores_setting_is_refused(setting: dict[str, Any]):
    with pytest.raises(fc.InputError, match=rf"^Head\.{next(iter(setting))} = .*the name of a setting of fedcore's"):
        fc.net(Head, **setting)
    assert fc.net(Head, which=3).settings["which"] == 3


def untrained(*, rounds: int = 1, label: float = 0.0, which: str = "x", name: str = "y") -> fc.Method:
    assert (label, which, name) == (0.0, "z", "z")
    return fc.Method(partial(fc.initial_messages, shared_init=True), (), fc.received_model)


def sized_otherwise(*, sizes: int = 1) -> fc.Method:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (
            lambda: fc.method(untrained, training={"epochs": 50}),
            "untrained.training.epochs = 50: untrained takes no tra",
        ),
        (lambda: fc.analytic(training=fc.Training(lr=0.5)), "analytic.training.lr = 0.5: analytic takes no training"),
        (lambda: fc.analytic(training={"clip": 0.5}), "analytic.training.clip = 0.5: analytic takes no training"),
        (
            lambda: fc.method(untrained, label="0.3"),
            "untrained.label = '0.3': must be a text, the name in tables; call",
        ),
        (lambda: fc.fedavg(label=0.3), "fedavg.label = 0.3: must be a text, the name in tables"),
        (lambda: fc.method(sized_otherwise), "sized_otherwise.sizes: is a name of fedcore's own; call this setting of"),
    ],
)
def test_a_setting_that_a_builder_would_not_see_is_refused(ask: Any, says: str):
    with pytest.raises(fc.InputError, match=f"^{says}"):
        ask()
    assert fc.pooled(training={"class_weights": "balanced", "epochs": fc.Training().epochs}).label == "pooled"
    assert fc.method(untrained, which="z", name="z").build({}).deploy is fc.received_model


@pytest.mark.slow
def test_the_best_combination_on_validation_data_is_chosen(fed_tuning: Any):
    """Against a run for each combination, whose validation scores are averaged by hand."""
    grid, training = {"lr": [1e-5, 0.01], "rounds": [1, 3]}, {"epochs": 1, "loss": partial(smoothed, by=Smoothing(0.9))}
    found = fc.tune(fc.fedavg(training=training), fed_tuning, seed=1, progress=False, **grid)
    expected = {}
    for lr, rounds in product(*grid.values()):
        result = fc.run(fc.fedavg(rounds=rounds, training=training | {"lr": lr}), fed_tuning, 1, progress=False)
        last = result.table[result.table["round"] == rounds]
        expected[lr, rounds] = last[(last["split"] == "val") & (last["metric"] == "accuracy")]["value"].mean()
    assert {(row.lr, row.rounds): row.value for row in found.table.itertuples()} == pytest.approx(expected)
    chosen = found.config.training.lr, found.config.settings["rounds"]
    assert chosen == max(expected, key=lambda point: expected[point])


@pytest.mark.slow
def test_a_combination_that_diverges_is_not_chosen_and_recall_may_decide(fed_tuning: Any):
    tried = fc.tune(fc.fedavg(training={"epochs": 1, "optimiser": "sgd"}), fed_tuning, lr=[1e30, 0.1], progress=False)
    assert tried.config.training.lr == 0.1
    assert tried.table["value"].isna().tolist() == [True, False]
    tried = fc.tune(fc.fedavg(), fed_tuning, epochs=[1], metric="recall", positive="3", progress=False)
    assert tried.table["value"].between(0, 1).all()


@pytest.mark.parametrize(("grid", "says"), [
    ({}, "tune: needs values to try"), ({"lr": []}, "tune.lr = []: must have values"),
    ({"speed": [1]}, "tune.speed: fedavg has no such setting"), ({"lr": [-1]}, "fedavg.training.lr = -1"),
    ({"lr": [0.1], "metric": "recall"}, "tune.metric = 'recall': needs tune.positive"),
])  # fmt: skip
def test_what_cannot_be_tried_is_refused_by_name(fed_tuning: Any, grid: dict[str, Any], says: str):
    with pytest.raises(fc.InputError, match=says.replace("[", r"\[")):
        fc.tune(fc.fedavg(), fed_tuning, **grid)


def test_a_methods_own_setting_is_tried_before_its_trainings():
    for own in (fc.analytic(features=8, epsilon=1.0), fc.gaussian_distillation()):
        name = "clip" if own.label == "analytic" else "epochs"
        tried = place.changed(own, {name: 3})
        assert (tried.settings[name], tried.training) == (3, own.training)
    assert place.changed(fc.pooled(), {"class_weights": "balanced"}).training.class_weights == "balanced"
    for name, method in {"lr": fc.analytic(), "epochs": fc.majority(), "class_weights": fc.analytic_local()}.items():
        with pytest.raises(fc.InputError, match=rf"^tune.{name}: {method.label} has no such setting, and takes no tr"):
            place.changed(method, {name: 1})
