"""Champions on data that grow: a month of nights whose right promotions are known, and what cannot be compared."""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn.functional import cross_entropy

import fedcore as fc
from fedcore import Data, Dataset, InputError, Model, load, nets
from fedcore.api.serving import ServedModels
from fedcore.core.metrics import METRICS, recorded
from fedcore.core.training import predict
from fedcore.data.dataset import schema_of
from fedcore.data.inputs import side_by_side
from fedcore.data.pixels import scale
from fedcore.data.prepare import fit_schema, standardise_channels
from fedcore.data.schema import Column, Schema
from fedcore.data.tables import table
from fedcore.partition import Partition, partition, training
from fedcore.partition.stable import Keys, row_keys
from fedcore.pipeline.cache.store import Ref, Store
from fedcore.pipeline.files import HELD, TRAINED
from fedcore.pipeline.record import challenge, models, seals
from fedcore.pipeline.record.challenge import Before, both_keys, judge, lay_out, require_same, split_keys, unseen
from fedcore.pipeline.record.result import Rule
from fedcore.results.criterion import Criterion
from fedcore.types.federation import Scoring

CRITERION = Criterion(min_effect=0.01, least_test=20)
COLUMNS = (Column("load", "number"), Column("heat", "number"), Column("sensor", "text", ("old", "new")))
SCHEMA = Schema((4,), "float32", ("fault", "ok"), COLUMNS, "state", "site")
FIRST, DAILY, SHIFT, JOINS, NIGHTS = 600, 60, 10, 20, 30
"""Rows of the first night and of each further one; the nights of the new sensors and of the fourth site; all nights."""


def draw(count: int, night: int, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of a night: the sign of load decides; that of new sensors, from night SHIFT on, is turned around."""
    load, heat = rng.normal(size=(2, count))
    new = np.full(count, night >= SHIFT)
    ok = (np.where(new, -load, load) + 0.3 * rng.normal(size=count)) > 0
    x = np.stack([load, heat, ~new, new], axis=1)
    return torch.from_numpy(x).float(), torch.from_numpy(ok.astype(np.int64))


@cache
def month() -> tuple[torch.Tensor, torch.Tensor, tuple[str, ...], np.ndarray]:
    """All rows of a month: x, y, site and night."""
    rng, parts, sites, nights = np.random.default_rng(0), [], [], []
    for night in range(NIGHTS):
        count = DAILY if night else FIRST
        parts.append(draw(count, night, rng))
        known = "abcd" if night >= JOINS else "abc"
        sites += [known[i % len(known)] for i in range(count)]
        nights += [night] * count
    x, y = (torch.cat(part) for part in zip(*parts, strict=True))
    return x, y, tuple(sites), np.array(nights)


def rows_of(night: int) -> Dataset:
    """The rows of a night and of all before."""
    x, y, sites, nights = month()
    count = int((nights <= night).sum())
    return Dataset(Data(x[:count], y[:count]), None, SCHEMA.classes, sites[:count], schema=SCHEMA)


@dataclass(frozen=True)
class Night:
    """What a night's study leaves in the record."""

    night: int
    data: Dataset
    made: Partition
    served: ServedModels
    trained: Keys
    held: Keys


def study(night: int, hold_out: str = "stable") -> Night:
    """Train one model for all sites on the night's training rows."""
    data = rows_of(night)
    made = partition(data, name="by_device", shared_test=0.05, seed=0, hold_out=hold_out)
    net = nets.net("mlp", shape=(4,), classes=2, widths=[8])
    rows = torch.from_numpy(np.concatenate([own["train"] for own in made.devices.values()]))
    params = nets.init(net, torch.Generator().manual_seed(0))
    params = {name: tensor.clone().requires_grad_() for name, tensor in params.items()}
    descent = torch.optim.Adam(params.values(), 0.05)
    for _ in range(60):
        descent.zero_grad()
        cross_entropy(
            torch.func.functional_call(net.build(), params, (data.train.x[rows],)), data.train.y[rows]
        ).backward()
        descent.step()
    model = Model(({name: tensor.detach() for name, tensor in params.items()},))
    schema = fit_schema(data, training(made), "none")
    served = ServedModels(schema, ((model, net),), dict.fromkeys(made.names, 0))
    return Night(night, data, made, served, *split_keys(data, made))


def truth(one: Night, other: Night) -> float:
    """The true gain of a night's model on another's: on a large draw of the later night's mixture of rows."""
    rng = np.random.default_rng(1)
    share = float((month()[3][: len(one.data.train)] >= SHIFT).mean())
    scores = []
    for night, weight in ((0, 1 - share), (SHIFT, share)):
        x, y = draw(20_000, night, rng)
        model, net = one.served.models[0]
        rival, _ = other.served.models[0]
        right = [(predict(m.members[0], net, x, 4096).argmax(1) == y).float().mean() for m in (model, rival)]
        scores.append(weight * float(right[0] - right[1]))
    return sum(scores)


@pytest.mark.slow
def test_a_month_has_the_right_promotions():
    """None in quiet nights; new sensors are learnt within three nights; no row that is scored has trained either."""
    champion, promoted, gains = study(0), [], {}
    for night in range(1, NIGHTS):
        candidate = study(night)
        keys = both_keys(candidate.data)
        scored = np.concatenate([*unseen(candidate.data, candidate.made, keys, champion.trained).values()])
        assert len(scored) > 0.9 * sum(len(own["test"]) for own in candidate.made.devices.values())
        assert not set(keys[:, scored].ravel().tolist()) & {*champion.trained.tolist(), *candidate.trained.tolist()}
        gains[night] = truth(candidate, champion)
        better, why = judge(
            candidate.data, candidate.made, champion.trained, candidate.served, champion.served, CRITERION
        )
        if better == "yes":
            assert gains[night] > 0, (night, why)
            promoted.append(night)
            champion = candidate
    assert promoted, gains
    assert SHIFT <= promoted[0] <= SHIFT + 3
    assert all(abs(gains[night]) < 0.02 for night in range(1, SHIFT))
    missed = [night for night, gain in gains.items() if gain > 0.03 and night not in promoted]
    assert len(missed) <= 2


@pytest.mark.slow
def test_recent_rows_decide_where_there_are_enough_and_say_so():
    """After new sensors these alone tell that the candidate is better; all rows and too few of them do not."""
    champion, last, now = study(0), study(SHIFT - 1), study(SHIFT + 2)
    models = champion.trained, now.served, champion.served, replace(CRITERION, min_effect=0.2), Scoring()
    keys = np.concatenate([last.trained, last.held])
    late = int((~np.isin(row_keys(now.data), keys)).sum())
    assert late == 3 * DAILY
    assert judge(now.data, now.made, *models)[0] == "no"
    better, why = judge(now.data, now.made, *models, Before(keys, "since then"))
    assert (better, "since then (these decide); on all: " in why) == ("yes", True)
    better, why = judge(now.data, now.made, *models, Before(keys, "since then", late))
    assert (better, "since then (too few, all rows decide); on all: " in why) == ("no", True)


@pytest.mark.slow
def test_rows_of_the_champion_do_not_count_whatever_they_are_today():
    """A random division makes test rows of yesterday's training rows."""
    before, now = study(0, "random"), study(1, "random")
    keys, tests = both_keys(now.data), np.concatenate([own["test"] for own in now.made.devices.values()])
    assert np.isin(keys[:, tests], before.trained).any()
    scored = np.concatenate([*unseen(now.data, now.made, keys, before.trained).values()])
    assert not np.isin(keys[:, scored], before.trained).any()


@pytest.mark.slow
def test_no_row_that_trained_the_champion_counts_under_another_key(tmp_path: Path):
    """Earlier versions read 01 as a number, until one cell of its column was a text: all keys are others then."""
    values = np.random.default_rng(0).normal(size=60).round(3)
    rows = [f"{i // 2:04d},{'0' * (i % 2)}1,{('0.50', '1e1', '2')[i % 3]},{values[i]},{'uv'[i % 2]}" for i in range(60)]
    for named_rows in ({"ignore": ["id"]}, {"id": "id"}):
        nights = []
        for cells in (rows, [*rows, *["A7,n,w,0,u"] * 20]):
            (tmp_path / "t.csv").write_text("\n".join(["id,site,kind,x,y", *cells]) + "\n")
            data = table(tmp_path / "t.csv", "y", device="site", categorical=["kind"], **named_rows)
            nights.append((data, partition(data, name="by_device", seed=0, hold_out="stable")))
        (data, made), (now, made_now) = nights
        assert not np.array_equal(row_keys(data), row_keys(now)[:60])
        trained = split_keys(data, made)[0]
        fresh = np.concatenate([*unseen(now, made_now, both_keys(now), trained).values()])
        assert len(fresh)
        assert not {*fresh.tolist()} & {*challenge.trains(made).tolist()}


@pytest.mark.slow
def test_data_with_hardly_a_row_of_the_champions_are_said_to_be_others():
    """As where words are numbered anew, or all rows are replaced: 200 of its rows, of which one is there, or three."""
    before, now = study(0), study(1)
    others = np.arange(200, dtype=before.trained.dtype)
    for there, said in ((200, False), (3, False), (1, True)):
        trained = np.concatenate([before.trained[:there], others[there:]])
        why = judge(now.data, now.made, trained, now.served, before.served, CRITERION)[1]
        assert ("hardly a row that trained the champion is in these data" in why) == said


@pytest.mark.slow
def test_a_site_that_the_champion_has_no_model_for_is_left_out_by_name():
    before, now = study(0), study(JOINS)
    assert "left out" not in judge(now.data, now.made, before.trained, now.served, before.served, CRITERION)[1]
    own = replace(before.served, models=before.served.models * 2, devices={"a": 0, "b": 1, "c": 0})
    said = judge(now.data, now.made, before.trained, now.served, own, CRITERION)[1]
    assert said.endswith("; left out, as one of the two has no model for it: d")


@pytest.mark.slow
def test_a_champion_decides_by_the_costs_that_it_is_served_with():
    """Of one model twice: with today's costs the gain is 0, without any the candidate is better, at these costs."""
    before, now = study(0), study(1)
    costs = ((0.0, 1.0), (20.0, 0.0))
    criterion, scoring = replace(CRITERION, metric=METRICS["cost"]), Scoring("cost", costs=costs)
    candidate = replace(now.served, costs=costs)
    said = {}
    for own in (costs, None):
        champion = replace(now.served, costs=own)
        said[own] = judge(now.data, now.made, before.trained, candidate, champion, criterion, scoring)
    assert said[costs][1].startswith("+0 (+0 to +0) per 1,000 rows of cost")
    assert "predicts by" not in said[costs][1]
    assert float(said[None][1].split(" ")[0]) < -1
    assert said[None][1].endswith("; the candidate predicts by these costs, the champion without")


@pytest.mark.slow
def test_rows_of_no_device_are_not_judged_by_one_devices_model():
    """Whichever of the two has a model for each device; with one model for all it is judged by that."""
    before, now = study(0), study(0)
    data = replace(now.data, device=None, schema=replace(SCHEMA, device=None))
    nobody = partition(data, name="iid", devices=3, test=0.0, shared_test=0.3, seed=0, hold_out="stable")
    own = replace(now.served, models=now.served.models * 2, devices=dict.fromkeys(now.served.devices, 1))
    for candidate, champion in ((own, before.served), (before.served, own)):
        with pytest.raises(InputError, match="one of the two has no model for it: rows of no device"):
            judge(data, nobody, before.trained, candidate, champion, CRITERION)
    judge(data, nobody, before.trained, now.served, before.served, CRITERION)


def test_pictures_are_laid_out_as_the_champions_were():
    """Standardised by its means and deviations or not at all, whatever today's are."""
    draws = torch.Generator().manual_seed(0)
    x = torch.randint(256, (40, 3, 2, 2), generator=draws, dtype=torch.uint8)
    schema = Schema((3, 2, 2), "uint8", ("a", "b"))
    plain = Dataset(Data(x, torch.arange(40) % 2), None, ("a", "b"), schema=schema)
    today = scale(plain, "standard")
    earlier = schema_of(scale(replace(plain, train=Data(x[:9], plain.train.y[:9])), "standard"))
    assert earlier.channels != schema_of(today).channels
    by_hand = standardise_channels(x.float() / 255, earlier.channels)
    for data in (plain, today):
        torch.testing.assert_close(lay_out(data, earlier), by_hand)
        torch.testing.assert_close(Data(lay_out(data, schema), plain.train.y).inputs(), x.float() / 255)
    assert lay_out(today, schema_of(today)) is today.train.x


def test_fractions_of_today_stay_though_the_champion_learnt_whole_numbers():
    x = torch.tensor([[0.5], [2.0]], dtype=torch.float64)
    data = Dataset(Data(x, torch.tensor([0, 1])), None, ("a", "b"))
    assert lay_out(data, Schema((1,), "int64", ("a", "b"))).tolist() == [[0.5], [2.0]]


@pytest.mark.slow
def test_a_category_or_a_row_order_of_today_changes_no_answer():
    """The champion reads inputs by their names, wherever they stand today."""
    before, now = study(0), study(1)
    said = judge(now.data, now.made, before.trained, now.served, before.served, CRITERION)
    turned = (Column("sensor", "text", ("old", "new")), *COLUMNS[1::-1])
    order = [2, 3, 1, 0]
    schema = replace(now.served.schema, columns=turned)
    data = replace(
        now.data, train=Data(now.data.train.x[:, order], now.data.train.y), schema=replace(SCHEMA, columns=turned)
    )
    model, net = now.served.models[0]
    first = next(name for name, tensor in model.members[0].items() if tensor.ndim == 2 and tensor.shape[1] == 4)
    params = {**model.members[0], first: model.members[0][first][:, order]}
    served = replace(now.served, schema=schema, models=((Model((params,)), net),))
    assert judge(data, now.made, before.trained, served, before.served, CRITERION) == said


def test_a_number_and_a_category_whose_inputs_have_one_name_stay_apart():
    columns = (Column("kind", "text", ("x", "y")), Column("kind=x", "number"))
    x = torch.tensor([[1.0, 0.0, 7.0], [0.0, 1.0, 8.0]])
    schema = replace(SCHEMA, columns=columns)
    data = Dataset(Data(x, torch.tensor([0, 1])), None, SCHEMA.classes, schema=schema)
    assert torch.equal(challenge.lay_out(data, schema), x)
    assert torch.equal(challenge.lay_out(data, replace(schema, columns=columns[::-1])), x[:, [2, 0, 1]])


@pytest.mark.slow
def test_a_challenge_counts_the_rows_that_its_gain_is_of():
    before, now = study(0), study(JOINS)
    fresh = unseen(now.data, now.made, both_keys(now.data), before.trained)
    sizes = sorted(map(len, fresh.values()))
    assert sizes[0] < sizes[-1]
    for least in (1, sizes[0] + 1, sizes[-1]):
        of = [size for size in sizes if size >= least]
        criterion = replace(CRITERION, least_test=least)
        said = judge(now.data, now.made, before.trained, now.served, before.served, criterion)[1]
        assert f" on {sum(of):,} rows of {len(of)} device{'s' * (len(of) > 1)}, new" in said


NEW = "column 'speed' is new, which divides all rows anew (set data.id)"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_the_record_and_the_store_hold_what_a_challenge_needs(client: Any, tmp_path: Path):
    store = Store(tmp_path / "blobs")
    rule = Rule(store, CRITERION)
    client.create_registered_model("fedcore-month")
    experiment = client.get_experiment_by_name("fedcore").experiment_id

    def register(one: Night, files: bool = True) -> Any:
        run, folder = client.create_run(experiment), tmp_path / str(len([*tmp_path.iterdir()]))
        net = {"name": "mlp", "widths": [8]}
        models.write(folder / "model" / "data" / models.FOLDER, one.served.schema, [net],
                     [(one.served.models[0][0], 0)], one.served.devices)  # fmt: skip
        if files:
            np.save(folder / TRAINED, one.trained)
            np.save(folder / HELD, one.held)
        client.log_artifacts(run.info.run_id, str(folder))
        seals.seal("fedcore-month", f"{run.info.artifact_uri}/model")
        tags = {challenge.DATA: store.put(one.data).digest, challenge.PARTITION: store.put(one.made).digest}
        return client.create_model_version(
            "fedcore-month", f"{run.info.artifact_uri}/model", run.info.run_id, tags=tags
        )

    nights = study(0), study(SHIFT)
    before, now, silent = *map(register, nights), register(nights[0], files=False)
    (old, new), said = nights, challenge.compare(now, before, rule, CRITERION, {})
    assert said == judge(new.data, new.made, old.trained, new.served, old.served, CRITERION)
    assert said[0] == "yes"
    auto, quiet = replace(rule, recent="auto"), (CRITERION, {}, None)
    assert challenge.compare(now, before, auto, *quiet) == said
    for recent, drifted in ((auto, before.run_id), (auto, "pruned"), (replace(rule, recent=5), None)):
        late = challenge.compare(now, before, recent, CRITERION, {}, drifted)
        assert late[1].endswith(f"(these decide); on all: {said[1]}")
        assert ("since drift was seen" in late[1]) == (drifted == before.run_id)
    assert "which rows trained it" in challenge.compare(now, silent, rule, CRITERION, {})[1]
    silent.tags["fedcore.simulated"] = "false"
    assert challenge.compare(now, silent, rule, CRITERION, {})[1].endswith(" trained on rows of real devices")
    before.tags[challenge.HOLD_OUT] = "stable_each"
    assert challenge.compare(now, before, rule, CRITERION, {})[1].endswith("rows were held out otherwise")
    store.drop(Ref(now.tags[challenge.DATA], 0))
    lost = challenge.compare(now, before, rule, CRITERION, {})
    assert lost == ("not comparable", "its data are no longer in the cache; run its study again")


@pytest.mark.parametrize(
    ("columns", "ids", "said"),
    [
        (COLUMNS[:2], False, "column 'sensor', which the champion needs: not there today"),
        ((*COLUMNS, Column("speed", "number")), False, NEW),
        ((*COLUMNS, Column("speed", "number")), True, ""),
        ((COLUMNS[0], Column("heat", "text", ("a",)), COLUMNS[2]), False,
         "column 'heat' holds a text today, for the champion it is a number"),
    ],
)  # fmt: skip
def test_another_schema_is_refused_by_column(columns: tuple[Column, ...], ids: bool, said: str):
    data = rows_of(0)
    names = tuple(map(str, range(len(data.train)))) if ids else None
    other = replace(data, schema=replace(SCHEMA, columns=columns), ids=names)
    if not said:
        require_same(other, SCHEMA)
        return
    with pytest.raises(InputError) as refused:
        require_same(other, SCHEMA)
    assert str(refused.value) == said


def test_inputs_in_another_order_are_refused():
    """Nor of another shape or type, where a row has as many numbers; a champion of before did not keep its bytes."""
    x = {"age": np.ones(2), "words": np.ones((2, 2, 3), np.int64), "picture": np.ones((2, 4), np.uint8)}
    champion = schema_of(fc.from_arrays(x, [*"ab"]))
    before = tuple(replace(of, pixels=None) for of in champion.several)
    for schema in (champion, replace(champion, several=before)):
        require_same(fc.from_arrays(x, [*"ab"]), schema)
    for wrong, now in (
        ("words", {name: x[name] for name in ("words", "age", "picture")}),
        ("words", x | {"words": np.ones((2, 3, 2), np.int64)}), ("words", x | {"words": np.ones((2, 2, 3))}),
        ("picture", x | {"picture": np.ones((2, 4))}), ("age", side_by_side(x)),
    ):  # fmt: skip
        with pytest.raises(
            InputError, match=f"^input '{wrong}': .* the champion, whose inputs are age, words, picture"
        ):
            require_same(fc.from_arrays(now, [*"ab"]), champion)


def test_another_class_is_refused_by_name():
    data = rows_of(0)
    with pytest.raises(InputError, match=r"^column 'state': class 'worn' is new$"):
        require_same(replace(data, classes=("fault", "ok", "worn")), SCHEMA)
    with pytest.raises(InputError, match=r"^column 'state': class 'ok' is no longer there$"):
        require_same(replace(data, classes=("fault",)), SCHEMA)


def test_names_that_are_read_otherwise_are_refused():
    """A champion of a version that took 01 for a number is not judged on rows of 01, unless names are joined."""
    data = rows_of(0)
    with pytest.raises(InputError, match=r"column 'site': .* data.join_names=true reads them as the champion does"):
        require_same(replace(data, earlier=(("site", ("1",) * len(data.train)),)), SCHEMA)
    joined = replace(SCHEMA, spelling="joined")
    require_same(replace(data, schema=joined), SCHEMA)
    with pytest.raises(InputError, match=r"data.join_names = True: the champion's names were read otherwise"):
        require_same(replace(data, schema=joined), replace(SCHEMA, spelling="written"))


def test_a_reason_says_by_what_rows_are_new():
    """Without ids an old row is another one under another label or device."""
    now = study(0)
    words = judge(now.data, now.made, now.trained, now.served, now.served, CRITERION)[1]
    assert "of 3 devices, new to both models (one seed each) by values, label and device; " in words
    named = replace(now.data, ids=tuple(map(str, range(FIRST))))
    words = judge(named, now.made, split_keys(named, now.made)[0], now.served, now.served, CRITERION)[1]
    assert "of 3 devices, new to both models (one seed each) by data.id; " in words


def test_whole_numbers_that_had_decimal_commas_are_refused(tmp_path: Path):
    """A champion of a version that read 1,0 and 1 as two names is not judged on rows where they are one."""
    rows = "site;part;u;y\n" + "".join(f"s{i % 2};{i},0;{i},5;{i // 2 % 2}\n" for i in range(40))
    (tmp_path / "t.csv").write_text(rows)
    data = table(tmp_path / "t.csv", "y", "site", categories=99, categorical=["part"])
    assert data.schema is not None
    u, part = sorted(data.schema.columns, key=lambda column: column.kind)
    before = replace(part, categories=tuple(f"{name},0" for name in part.categories))
    require_same(data, data.schema)
    with pytest.raises(InputError, match=r"^name '0,0', which the champion knows, is read as '0' today$"):
        require_same(data, replace(data.schema, columns=(before, u)))
    now = study(0)
    today, before = (replace(now.data, ids=tuple(f"{i}{end}" for i in range(FIRST))) for end in ("", ",0"))
    both = now.served, now.served
    judge(today, now.made, split_keys(today, now.made)[0], *both, CRITERION)
    with pytest.raises(InputError, match=r"^data.id: an id such as 7,0 is 7 today, which gives rows other keys$"):
        judge(today, now.made, split_keys(before, now.made)[0], *both, CRITERION)


def test_a_champion_that_read_commas_otherwise_is_not_compared():
    comma, point = (replace(SCHEMA, decimal=mark) for mark in ("comma", "point"))
    require_same(replace(rows_of(0), schema=comma), SCHEMA)
    with pytest.raises(InputError, match=r"^data.decimal = point: the champion's numbers were read otherwise$"):
        require_same(replace(rows_of(0), schema=point), comma)


def test_rows_with_other_keys_are_refused():
    """An id set today names rows otherwise than the champion's keys do; a champion of before has not kept its own."""
    data = rows_of(0)
    require_same(replace(data, schema=replace(SCHEMA, id="patient")), SCHEMA)
    for name, today, then in (("id", "patient", ""), ("id", "", "patient"), ("missing_values", ("?",), ("", "?"))):
        now, before = (replace(SCHEMA, **{name: value}) for value in (today, then))
        require_same(replace(data, schema=now), now)
        with pytest.raises(InputError, match=f"^data.{name} = .*, which gives rows other keys$"):
            require_same(replace(data, schema=now), before)


def test_labels_in_another_order_are_refused():
    data = rows_of(0)
    with pytest.raises(InputError, match=r"^the labels are ok, fault today, for the champion fault, ok$"):
        require_same(replace(data, classes=("ok", "fault")), SCHEMA)


@pytest.mark.slow
def test_numbers_far_from_zero_are_worth_as_much_as_standardised_ones(tmp_path: Path):
    """In a run, a prediction and a promotion: seconds since 1970, metres of a map and pressures, whose label is known.

    float32 keeps multiples of 128, of 1/2 and of 1/128 of them.
    """
    rng = np.random.default_rng(0)
    z = rng.normal(size=(600, 3))
    far = z * [300.0, 1.5, 0.02] + [1.7e9, 5.4e6, 101_325.0]
    state = np.where(z @ [1.0, -1.0, 0.7] + 0.2 * rng.normal(size=600) > 0, "up", "down")
    found = {}
    for name, numbers in {"far": far, "near": (far - far.mean(0)) / far.std(0)}.items():
        rows = pd.DataFrame(numbers, columns=["time", "north", "pressure"])
        rows.assign(site=np.tile(["a", "b"], 300), state=state).to_csv(tmp_path / "rows.csv", index=False)
        data = load("table", path=tmp_path / "rows.csv", label="state", device="site")
        fed = fc.federate(data, fc.by_device(), net=fc.mlp(8), scale="common")
        run = fc.run(fc.fedavg(rounds=5, training={"lr": 0.1}), fed, 0, progress=False)
        served = ServedModels(fed.schema(0), ((run.models["a"].model, fed.nets[0]),), {"a": 0, "b": 0})
        tests = np.concatenate([own["test"] for own in fed.partition(0).devices.values()])
        answers = challenge.predict(served, "a", Data(data.train.x, data.train.y)).argmax(1).numpy()
        predicted = served.predict(pd.read_csv(tmp_path / "rows.csv").iloc[tests])["label"].to_numpy()
        scores = run.table.query("metric == 'accuracy' and split == 'test' and round == 5")["value"]
        found[name] = scores.mean(), (predicted == state[tests]).mean(), (answers == data.train.y.numpy())[tests].mean()
    assert found["far"] == pytest.approx(found["near"], abs=0.005)
    assert min(found["near"]) > 0.9


def test_a_metric_that_is_gone_makes_versions_not_comparable_in_a_line(tmp_path: Path):
    version: Any = SimpleNamespace(tags={challenge.DATA: "a", challenge.PARTITION: "b"})
    criterion = Criterion(recorded("matthews"))
    verdict = challenge.compare(version, version, Rule(Store(tmp_path), criterion), criterion, {})
    assert verdict == (challenge.INCOMPARABLE, "run.metric = 'matthews': this fedcore has no such metric")
