"""What `fedcore init` writes, and refuses; end_to_end/test_installed.py has a project made by an installed wheel."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from ruamel.yaml import YAML

from fedcore.cli import init
from fedcore.cli.main import main
from fedcore.config import nightly
from fedcore.config.files import read_mapping
from fedcore.data import load
from fedcore.partition import partition

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:_NoneStep")]  # DVC's own
CODES = np.arange(120)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["full"], "full: is not empty; give a new folder"),
        (["new", "--data", "none.csv", "--label", "y"], "--data = none.csv: no such file; give a .csv, .tsv or"),
        (["new", "--data", "t.csv"], "--label: must name the column to predict; t.csv has x, y"),
        (["new", "--data", "t.csv", "--device", "x"], "--label: must name the column to predict; t.csv has x, y"),
        (["new", "--data", "t.csv", "--label", "y", "--device", "y"], "--label and --device are both 'y': name diff"),
        (["new", "--data", "t.csv", "--label", "y", "--label", "y"], "--label and --label are both 'y': name diff"),
        (
            ["new", "--data", "two", "--label", "y", "--device", "x"],
            "--data = two is a folder, one file for each device: leave --device out, or give one file",
        ),
        (["new", "--data", "t.csv", "--label", "z"], "--label = 'z': t.csv has no such column; it has x, y"),
        (["new", "--data", "t.csv", "--label", "y", "--device", "z"], "--device = 'z': t.csv has no such column"),
        (["new", "--data", "t.xlsx", "--label", "y"], "--data = t.xlsx: '.xlsx' cannot be read, only .csv"),
        (["new", "--label", "y"], "--label = 'y': names a column of --data, which is not given"),
        (["new", "--data", "two", "--label", "y"], "--label = 'y': two/b.csv has no such column; it has x, z"),
        (["new", "--data", "two", "--label", "yy"], "--label = 'yy': two/a.csv has no such column; did you mean y? it"),
        (["new", "--data", "shapes", "--label", "y"], "--label = 'y': shapes has pictures, whose classes are its"),
        (["new", "--data", "t.parquet", "--label", "z"], "--label = 'z': t.parquet has no such column; it has x, y"),
        (["new", "--data", "odd.csv", "--label", "y"], "--data = odd.csv: columns may be separated in two ways"),
    ],
)
def test_what_no_project_can_be_made_of_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full" / "folder").mkdir(parents=True)
    (tmp_path / "t.csv").write_text("x,y\n1,2\n")
    (tmp_path / "t.xlsx").touch()
    (tmp_path / "odd.csv").write_text("x,y;z\n1,2;3\n")
    pd.DataFrame({"x": [1], "y": [2]}).to_parquet(tmp_path / "t.parquet")
    (tmp_path / "shapes" / "circle").mkdir(parents=True)
    (tmp_path / "shapes" / "circle" / "1.png").touch()
    (tmp_path / "two").mkdir()
    for name, columns in (("a", "x,y"), ("b", "x,z")):
        (tmp_path / "two" / f"{name}.csv").write_text(f"{columns}\n1,2\n")
    with pytest.raises(SystemExit) as leaving:
        main(["init", *words])
    assert leaving.value.code == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_new_project_keeps_what_commas_in_numbers_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("u;y\n" + "".join(f"{i},{i:03};{'pq'[i % 2]}\n" for i in range(1, 60)))
    with pytest.raises(SystemExit):
        main(["init", "own", "--data", "t.csv", "--label", "y"])
    assert "set --decimal comma or --decimal point (fedcore docs files)" in capsys.readouterr().err
    main(["init", "own", "--data", "t.csv", "--label", "y", "--decimal", "comma"])
    assert re.search(r"^  decimal: comma", (tmp_path / "own" / "params.yaml").read_text(), re.M)
    monkeypatch.chdir(tmp_path / "own")
    capsys.readouterr()
    main(["preview"])
    assert "read: columns separated by semicolons, decimal commas" in capsys.readouterr().out


@pytest.mark.parametrize("numbered", [True, False])
def test_a_second_preview_has_nothing_left_to_settle(
    numbered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The command that the first one shows is typed as it is, on a table of which each kind of finding is said."""
    monkeypatch.chdir(tmp_path)
    rng, n = np.random.default_rng(0), 600
    rows = pd.DataFrame(
        {"u": rng.normal(0, 1, n), "wide": rng.normal(0, 9000, n).round(), "s": rng.choice(["a", "b"], n)}
    )
    rows["y"] = np.r_[["rare"] * 18, ["one", "two"] * 291]
    rows["filled"], rows["site"] = np.where(rows["y"] == "rare", rng.random(n), 0), rng.choice(["A", "B", "C"], n)
    rows = pd.concat([rows, rows[18:150]]).assign(day="2024-01-31")
    if numbered:  # no rows are equal then
        rows["nr"], rows["at"] = range(len(rows)), np.sort(rng.random(len(rows)))
    rows = rows.astype({"u": object, "y": object, "site": object}).reset_index(drop=True)
    rows.loc[30, "u"], rows.loc[31, "u"], rows.loc[32, "y"], rows.loc[33, "site"] = "k.A.", None, None, None
    rows.loc[34, "site"] = "a"
    rows.to_csv("t.csv", index=False)
    main(["init", "own", "--data", "t.csv", "--label", "y", "--device", "site"])
    monkeypatch.chdir(tmp_path / "own")

    def settle(*words: str) -> tuple[str, list[str]]:
        capsys.readouterr()
        main(["preview", *words])
        text = capsys.readouterr().out
        return " ".join(text.split()), [line for line in text.splitlines() if "fedcore preview --save" in line]

    text, (line,) = settle("--save", "federation.scale=none", "federation.hold_out=random", "data.ignore=[s]")
    decide, _, command = line.partition("fedcore preview ")
    assert decide == f"Decide on {'at, nr, ' * numbered}'filled' (above). To settle the rest: "
    keys = sorted(word.partition("=")[0] for word in shlex.split(command)[1:])
    assert keys == [
        "data.drop_unlabelled", "data.drop_without_device", "data.ignore", "data.join_names", "data.missing",
        "data.missing_values", *["federation.hold_out"] * (not numbered), "federation.scale", "run.metric",
    ]  # fmt: skip
    assert "data.ignore=[s, day]" in shlex.split(command)
    for column in ("filled", *["at", "nr"] * numbered):
        assert f"'data.ignore=[s, day, {column}]'" in text
    text, left = settle(*shlex.split(command))
    assert left == []
    assert settle()[1] == []


def test_it_says_how_much_a_run_is_and_what_to_choose_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("x;y\n1;2\n;3\n")
    main(["init", "own", "--data", "t.csv", "--label", "y"])
    said = capsys.readouterr().out
    first = "Settle this first: fedcore preview --save KEY=VALUE. Settle what the preview asks, too. Then try"
    assert f"{first} five methods: {init.LOOK}" in said
    assert "data.missing=common_median (the usual choice), median or drop: fedcore docs missing\n" in said
    assert "cd own && fedcore preview" in said
    assert not re.search(r"ignore: \[| is empty in ", said)
    assert re.search(r"^  missing: refuse +# cells are empty", (tmp_path / "own" / "params.yaml").read_text(), re.M)
    (tmp_path / "full.csv").write_text("x,y,s\n" + "1,2,a\n" * 40 + "high,2,a\nlow,2,a\n1,,\n")
    main(["init", "other", "--data", "full.csv", "--label", "y", "--device", "s"])
    assert "data.missing=" not in (said := capsys.readouterr().out)
    for name, drops in (("y", "drop_unlabelled"), ("s", "drop_without_device")):
        assert f"{name!r} is empty in 1 row: fill it in, or data.{drops}=true" in said
    assert "full.csv, line 42, row 41, column 'x': 'high' among numbers (2 such cells); correct the file, or" in said
    assert '\'data.missing_values=["", "high", "low"]\'\n' in said
    (tmp_path / "small.csv").write_text("x,y,s\n" + "1,2,lyon\n2,1,b\n" * 20 + "3,2,Lyon\n" * 7)
    main(["init", "third", "--data", "small.csv", "--label", "y", "--device", "s"])
    small = (
        "federation.min_size = 10: 'Lyon' has 7 examples; 'Lyon', 'lyon' look alike: data.join_names=true; keep them: "
    )
    assert f"{small}federation.min_size=7, or leave them out: federation.drop_small=true\n" in capsys.readouterr().out


def test_a_folder_of_pictures_makes_a_project_of_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for name in ("north/circle/1.png", "north/square/1.png"):
        (tmp_path / "shapes" / name).parent.mkdir(parents=True)
        (tmp_path / "shapes" / name).touch()
    main(["init", "own", "--data", "shapes"])
    params = YAML(typ="safe").load(tmp_path / "own" / "params.yaml")
    assert (params["data"]["name"], params["data"]["path"]) == ("image_folder", "data/shapes")
    assert params["run"]["seeds"] == [*range(10)]


def test_it_says_which_columns_are_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("seen;x;at;day;y\n2026-01-01 10:00:03;1.5;23:10;1/2/2026;a\n;;;;b\n")
    main(["init", "own", "--data", "t.csv", "--label", "y"])
    assert "dates and times cannot be used: 'data.ignore=[seen, at, day]'\n" in capsys.readouterr().out
    pd.DataFrame({"at": pd.to_datetime(["2026-01-01"] * 2), "x": ["A", "B"], "y": [0, 0]}).to_parquet("t.parquet")
    main(["init", "other", "--data", "t.parquet", "--label", "y"])
    drawn = "no --device: 2 devices are drawn at random; does 'x' say whose rows they are? Then in a new folder, "
    drawn += "--device 'x'\nparams.yaml: federation.devices = 2, since 2 rows are few for 16"
    assert f"{drawn}\ndates and times cannot be used: 'data.ignore=[at]'" in capsys.readouterr().out


@pytest.mark.parametrize(("rows", "devices"), [(40, 2), (400, 5), (960, 12), (1280, 16)])
def test_as_many_devices_are_drawn_as_the_rows_allow(tmp_path: Path, rows: int, devices: int, capsys: Any):
    cells = "".join(f"{i / 7},{i % 5},{i // 2 % 2}\n" for i in range(rows))
    (tmp_path / "t.csv").write_text(f"x,z,y\n{cells}")
    main(["init", str(tmp_path / "my sites"), "--data", str(tmp_path / "t.csv"), "--label", "y"])
    text = (tmp_path / "my sites" / "params.yaml").read_text()
    told = f"params.yaml: federation.devices = {devices}, since {rows:,} rows are few for 16\n"
    assert (f"  devices: {devices}" in text, "rows are few for 16" in text) == (True, devices < 16)
    said = capsys.readouterr().out
    assert (told in said) == (devices < 16)
    assert f"next: cd '{tmp_path}/my sites' && fedcore preview\nno --device: {devices} devices are drawn" in said
    data = load("table", path=str(tmp_path / "t.csv"), label="y")
    for seed in range(3):
        assert len(partition(data, name="auto", seed=seed, devices=devices, hold_out="stable").devices) == devices


def test_settings_typed_with_save_are_written_into_params_yaml(tmp_path: Path, monkeypatch, capsys):
    main(["init", str(tmp_path / "own")])
    monkeypatch.chdir(tmp_path / "own")
    path = Path("params.yaml")
    comments = path.read_text().count("#")
    path.write_text(path.read_text() + "\nfedavg:\n  rounds: 9\n  fraction: 0.5\n")
    seeds = read_mapping(path, "sections")["run"]["seeds"]
    typed = ["seeds=[7]", "methods=[fedavg]", "methods.rounds=3", "training.lr=0.5", "run.positive='01'"]
    with pytest.raises(SystemExit):
        main(["preview", "--save", *typed, "federation.min_size=1000"])
    assert path.read_text().count("lr: 0.5") == 0  # refused
    main(["preview", "--save", *typed])
    said = "params.yaml: has methods.rounds, training.lr, run.positive now; not saved: seeds, methods\n"
    assert said in capsys.readouterr().out
    params = read_mapping(path, "sections")
    assert (params["data"]["name"], params["federation"]["devices"], params["training"]["lr"]) == ("digits", 16, 0.5)
    assert (params["run"]["seeds"], params["run"]["positive"]) == (seeds, "01")
    assert (params["methods"], params["fedavg"]) == ({"rounds": 3}, {"fraction": 0.5})
    assert path.read_text().count("#") == comments


def test_a_setting_saved_and_used_is_said_to_be_unused_later_only(tmp_path: Path, monkeypatch, capsys):
    """Of a whole study, with other edits said once, before the run."""
    rows = "".join(f"{i / 7},{i % 4},{i // 4 % 2}\n" for i in range(320))
    (tmp_path / "t.csv").write_text(f"x,site,y\n{rows}")
    main(["init", str(tmp_path / "own"), f"--data={tmp_path / 't.csv'}", "--label=y", "--device=site"])
    monkeypatch.chdir(tmp_path / "own")
    path = Path("params.yaml")
    path.write_text(path.read_text().replace("every: 1 ", "every: 5 "))
    capsys.readouterr()
    main(["preview", "--save", "method=local_only", "training.epochs=7"])
    shown = capsys.readouterr()
    ends = "type it again after the command, or change studies/\n"
    later = "params.yaml: training.epochs = 7: not used in later runs, since study my_data sets 2 for fedavg and "
    (line,) = re.findall(r"params.yaml: training.*\n", shown.out)
    assert line.startswith(later)
    assert line.endswith(ends)
    assert "run.every" not in shown.out
    assert "training.epochs" not in shown.err
    assert "run.every = 5: not used, since" in shown.err


def test_the_units_of_a_schedule_are_those_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    main(["init", "plain"])
    assert not (tmp_path / "plain" / "nightly.yaml").exists()
    main(["init", "own", "--nightly"])
    assert nightly.read(tmp_path / "own").retries == 2
    ops = tmp_path / "own" / "ops"
    service = (ops / "fedcore.service").read_text()
    assert f"WorkingDirectory={tmp_path / 'own'}\n" in service
    assert "FOLDER" not in service + (ops / "fedcore.timer").read_text()
    assert "promote=true" in (ops / "Containerfile").read_text()
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: the units are not verified")
    units = [str(ops / name) for name in ("fedcore.service", "fedcore.timer")]
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_large_data_stay_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(init, "LARGE", 3)
    (tmp_path / "t.csv").write_text("x,y\n1,2\n")
    main(["init", "far", "--data", "t.csv", "--label", "y"])
    params = YAML(typ="safe").load(tmp_path / "far" / "params.yaml")
    assert params["data"]["path"] == str(tmp_path / "t.csv")
    assert [*(tmp_path / "far" / "data").iterdir()] == []


@pytest.mark.parametrize(("rows", "seeds", "batch"), [(100, 10, 16), (20_000, 5, 16), (60_000, 3, 64)])
def test_seeds_and_batch_are_by_the_number_of_rows(tmp_path: Path, rows: int, seeds: int, batch: int):
    (tmp_path / "made.csv").write_text("a,site,fault\n" + "1,x,yes\n" * rows)
    main(["init", str(tmp_path / "own"), "--data", str(tmp_path / "made.csv"), "--label", "fault"])
    params = YAML(typ="safe").load(tmp_path / "own" / "params.yaml")
    assert (params["run"]["seeds"], params["training"]["batch"]) == ([*range(seeds)], batch)


def test_no_scale_is_set_that_rounds_numbers_where_another_keeps_them():
    """Devices' levels of `time` lie 1e9 apart, over 300 times what float32 keeps beside a deviation within a device."""
    draw, far = np.random.default_rng(0).normal(size=(2, 120)), np.repeat([0.0, 1e9, 2e9], 40)
    rows = pd.DataFrame({"time": draw[0] + far, "load": draw[1], "who": far.astype(str), "y": [*"pq"] * 60})
    for device, scale in (("who", "device"), (None, "common")):
        found = init.suggest([rows if device else rows.drop(columns="who")], "y", device)
        assert next(value for key, value, _ in found if key == "federation.scale") == scale


def test_devices_that_differ_in_offset_alone_are_scaled_each_by_its_own():
    """Spans are alike. Shares of labels, one column of three, a number as label and files of a split ask for none."""
    draw, owner = np.random.default_rng(0).normal(size=(4, 300)), np.repeat([0, 1, 2], 100)
    y = np.where(draw[3] > 1 - owner, "p", "q")
    apart = pd.DataFrame({"a": draw[0] + 4 * owner, "b": draw[1] - 5 * owner, "c": draw[2], "who": owner.astype(str)})
    alike = apart.assign(a=draw[0] + 6 * (y == "p"), b=draw[1] + 6 * (y == "p"))
    one = apart.assign(b=draw[1])
    for rows, label, scaled in ((apart, y, True), (alike, y, False), (one, y, False), (apart, draw[3], False)):
        found = [change for change in init.suggest([rows.assign(y=label)], "y", "who") if "scale" in change[0]]
        assert found == [("federation.scale", "device", "devices differ within a class")] * scaled
    parts = [part.drop(columns="who") for _, part in apart.assign(y=y).groupby("who")]
    assert [len(init.suggest(files, "y", None)) for files in (parts[:2], parts)] == [0, 1]


@pytest.mark.parametrize(("each", "least"), [(2, 0), (9, 0), (12, 20)])
def test_few_rows_of_a_device_tell_no_offset(each: int, least: int):
    """Of noise half of the variance lies between devices of two rows; of real offsets few rows are not enough."""
    for offset, expected in ((0.0, 0), (9.0, least)):
        found = 0
        for seed in range(20):
            draw, owner = np.random.default_rng(seed).normal(size=(2, 40 * each)), np.repeat(np.arange(40), each)
            rows = pd.DataFrame({"a": draw[0] + offset * (owner % 5), "who": owner.astype(str)})
            found += "scale" in str(init.suggest([rows.assign(y=np.where(draw[1] > 0, "p", "q"))], "y", "who"))
        assert found == expected


@pytest.mark.parametrize("label", ["class", "number"])
def test_sensors_that_differ_in_offset_are_scaled_each_by_its_own(label: str):
    """Levels that carry the label do not count: where they do, one scale for all."""
    draw, owner = np.random.default_rng(0).normal(size=(3, 120)), np.repeat([0, 1, 2], 40)
    y = draw[2] if label == "number" else np.where(draw[2] > 0, "p", "q")
    apart = pd.DataFrame({"heat": draw[0] + 9 * owner, "load": 500 * (draw[1] - 9 * owner), "who": owner.astype(str)})
    alike = apart.assign(heat=draw[0], load=500 * draw[1])
    levels = apart.assign(y=np.array([*"abc"])[owner])  # a class on each device
    for rows, scale in ((apart.assign(y=y), "device"), (alike.assign(y=y), "common"), (levels, "common")):
        ((value, why),) = [(value, why) for key, value, why in init.suggest([rows], "y", "who") if "scale" in key]
        assert (value, "devices differ within a class" in why) == (scale, scale == "device")
    parts = [part.drop(columns="who") for _, part in apart.assign(y=y).groupby("who")][:2]  # may be train and val
    assert ("federation.scale", "common") in [(key, value) for key, value, _ in init.suggest(parts, "y", None)]


def test_settings_follow_the_training_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """One row in 20 fails; heat spans 50 times what load does, `alarm` is 1 in failed rows alone, `odd` by chance."""
    rows = pd.DataFrame({"load": [i % 7 / 7 for i in range(200)], "heat": [i % 50 for i in range(200)]})
    rows["fault"] = ["yes" if i % 20 == 0 else "no" for i in range(200)]
    rows["alarm"] = (rows["fault"] == "yes") & (rows.index > 20)
    rows["odd"] = rows.index == 40
    (tmp_path / "own").mkdir()
    rows.to_csv(tmp_path / "own" / "train.csv", index=False)
    rows.assign(heat=1e9).to_csv(tmp_path / "own" / "test.csv", index=False)
    main(["init", str(tmp_path / "new"), "--data", str(tmp_path / "own"), "--label", "fault"])
    text = (tmp_path / "new" / "params.yaml").read_text()
    params = YAML(typ="safe").load(text)
    assert (params["federation"]["scale"], params["training"]["class_weights"]) == ("common", "balanced")
    assert params["run"]["threshold"] == "half"  # class weights have moved the balance
    assert params["run"]["metric"] == "balanced_accuracy"  # auto would change where the share of "no" falls below .8
    assert params["data"]["ignore"] == ["alarm"]
    assert re.search(
        r"^  class_weights: balanced +# 'yes' has 5\.0% of the rows; methods with a loss of their own do", text, re.M
    )
    assert re.search(r"^  scale: common +# 'load' spans 0.8571, 'heat' 49$", text, re.M)
    said = capsys.readouterr().out
    assert "params.yaml: training.class_weights = balanced, since 'yes' has 5.0% of the rows" in said
    assert "methods with a loss of their own do not run with it, analytic ones ignore it" in said
    assert "balanced_accuracy, since one class has over 80% of the rows; below that, auto would become accuracy" in said
    even = tmp_path / "even.csv"
    rows.assign(fault=[*["yes", "no"] * 100], heat=0.0).to_csv(even, index=False)
    main(["init", str(tmp_path / "other"), "--data", str(even), "--label", "fault", "--device", "odd"])
    params = YAML(typ="safe").load(tmp_path / "other" / "params.yaml")
    assert (params["federation"]["scale"], params["run"]["threshold"]) == ("none", "half")
    assert params["run"]["metric"] is None
    assert "another value in each row" not in (said := capsys.readouterr().out)
    assert "params.yaml: run.weigh = devices, since devices have 1 to 199 rows; examples, if rows matter" in said
    rows.assign(row=rows.index, name=rows.index.astype(str) + "x").to_csv(even, index=False)
    main(["init", str(tmp_path / "ids"), "--data", str(even), "--label", "row", "--device", "name"])
    said = capsys.readouterr().out
    assert said.count("another value in each row, as an identifier has") == 2
    assert "--label = 'row': " in said
    assert "--device = 'name': " in said
    rows.assign(name=rows.index // 1.5).to_csv(even, index=False)
    main(["init", str(tmp_path / "most"), "--data", str(even), "--label", "fault", "--device", "name"])
    assert "--device = 'name': another value in most rows" in capsys.readouterr().out
    assert "ignore" not in params["data"]


@pytest.mark.parametrize(
    ("column", "repeats"),
    [(CODES % 4, True), (CODES % 4, False), (CODES / 7, False), (7 * CODES, False), (997 * CODES, False)],
)
def test_rows_of_few_answers_are_held_out_each_by_itself(tmp_path: Path, column: np.ndarray, repeats: bool):
    """Few ages, and a code of each row; where all ages differ, no row's columns are another's."""
    rows = pd.DataFrame({"age": column, "site": [*"ab"] * 60, "code": CODES})
    few = rows["age"].nunique() == 4
    if not few and rows["age"][1] != 7:
        rows["kind"] = [*"xy"] * 60  # alone it would have both answers
    rows["vote"] = rows["age"].map(str) if few and not repeats else ["yes" if i % 7 < 3 else "no" for i in range(120)]
    rows.to_csv(tmp_path / "made.csv", index=False)
    main(["init", str(tmp_path / "own"), "--data", str(tmp_path / "made.csv"), "--label", "vote", "--device", "site"])
    text = (tmp_path / "own" / "params.yaml").read_text()
    way = YAML(typ="safe").load(text)["federation"]["hold_out"]
    assert way == ("stable_each" if repeats else "stable")
    assert ("100% of rows have the columns of another label" in text) == repeats


@pytest.mark.parametrize("empty", [False, True])
def test_a_number_beside_texts_alone_is_scaled(tmp_path: Path, empty: bool):
    rows = pd.DataFrame({"degree": ["no", "yes"] * 20, "income": range(40), "y": ["a", "b", "c", "d"] * 10})
    rows.assign(degree=rows["degree"].replace("no", "" if empty else "no")).to_csv(tmp_path / "t.csv", index=False)
    main(["init", str(tmp_path / "own"), "--data", str(tmp_path / "t.csv"), "--label", "y"])
    text = (tmp_path / "own" / "params.yaml").read_text()
    assert re.search(r"^  scale: common +# 'degree' spans 1, 'income' 39$", text, re.M)
    rows.assign(income=rows["income"] % 10, note=rows.index.astype(str) + "x").to_csv(tmp_path / "t.csv", index=False)
    main(["init", str(tmp_path / "no"), "--data", str(tmp_path / "t.csv"), "--label", "y"])
    assert YAML(typ="safe").load(tmp_path / "no" / "params.yaml")["federation"]["scale"] == "none"


def test_columns_that_tell_the_label_alone_are_asked_about(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """In the rows to train on; where one class is rare, columns that are left out already are not named again."""
    fault = [i % 4 == 0 for i in range(200)]
    rows = pd.DataFrame({"minutes": [7.5 * (i % 9 + 1) * told for i, told in enumerate(fault)], "row": range(200)})
    rows["alarm"], rows["fault"] = [["off", "E17"][told] for told in fault], [["no", "yes"][told] for told in fault]
    (tmp_path / "own").mkdir()
    rows.to_csv(tmp_path / "own" / "train.csv", index=False)
    rows.assign(minutes=1, alarm="E17").to_csv(tmp_path / "own" / "test.csv", index=False)
    main(["init", str(tmp_path / "new"), "--data", str(tmp_path / "own"), "--label", "fault"])
    line = (
        "'minutes', 'alarm' each tell the label of all or some rows without other columns; if it is known only after "
    )
    assert f"{line}the label: 'data.ignore=[minutes, alarm]'\nSettle this first: " in capsys.readouterr().out
    assert "ignore" not in YAML(typ="safe").load(tmp_path / "new" / "params.yaml")["data"]
    rows[rows["fault"].eq("no") | (rows.index % 20 == 0)].to_csv(tmp_path / "own" / "train.csv", index=False)
    main(["init", str(tmp_path / "rare"), "--data", str(tmp_path / "own"), "--label", "fault"])
    said = capsys.readouterr().out
    assert "params.yaml: data.ignore = ['alarm'], since " in said
    assert "'minutes' tells the label of" in said
    assert "'data.ignore=[alarm, minutes]'\n" in said
    rows = rows[rows["fault"].eq("no") | (rows.index % 20 == 0)].assign(day="2024-01-31")
    rows.to_csv(tmp_path / "own" / "train.csv", index=False)
    (tmp_path / "own" / "test.csv").unlink()
    main(["init", str(tmp_path / "dated"), "--data", str(tmp_path / "own" / "train.csv"), "--label", "fault"])
    assert "dates and times cannot be used: 'data.ignore=[alarm, day]'\n" in capsys.readouterr().out
    rows = [f"{i * 37 % 90},5;{i * 37 % 90},1;ab\n" for i in range(90)]  # a number, and what tells it
    (tmp_path / "german.csv").write_text("cost;total;kind\n" + "".join(rows))
    main(["init", str(tmp_path / "number"), "--data", str(tmp_path / "german.csv"), "--label", "cost"])
    assert "'total' tells the label of" in capsys.readouterr().out


def test_a_columns_name_may_hold_a_comma(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text('"load, kN",y\n1,2\n')
    main(["init", "quoted", "--data", "t.csv", "--label", "load, kN"])
    assert YAML(typ="safe").load(tmp_path / "quoted" / "params.yaml")["data"]["label"] == "load, kN"


@pytest.mark.parametrize(("mark", "told"), [(".5", False), (",5", False), ("", True), ("000", False)])
def test_a_number_as_label_is_no_identifier_in_a_folder_too(tmp_path, capsys, mark, told):
    (tmp_path / "d").mkdir()
    for k in (0, 30):
        (tmp_path / "d" / f"{k}.csv").write_text("x;y\n" + "".join(f"A;{i}{mark}\n" for i in range(k, k + 30)))
    main(["init", str(tmp_path / "own"), "--data", str(tmp_path / "d"), "--label", "y"])
    assert ("--label = 'y': another value in each row, as an" in capsys.readouterr().out) is told


@pytest.mark.parametrize(("label", "model"), [("c_num", "heart-c-num"), ("Güte (kN)", "heart-G-te-kN--[0-9a-f]{8}")])
def test_the_readme_names_the_model_as_the_registry_does(tmp_path: Path, label: str, model: str):
    (tmp_path / "heart.csv").write_text(f"x,{label}\n1,2\n")
    main(["init", str(tmp_path / "own"), "--data", str(tmp_path / "heart.csv"), "--label", label])
    assert re.search(f"fedcore promote {model} ", (tmp_path / "own" / "README.md").read_text())


def test_several_labels_are_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("x,leak,worn\n1,0,1\n2,1,0\n")
    main(["init", "own", "--data", "t.csv", "--label", "leak", "--label", "worn"])
    text = (tmp_path / "own" / "params.yaml").read_text()
    assert YAML(typ="safe").load(text)["data"]["label"] == ["leak", "worn"]
    assert "--label" not in capsys.readouterr().out
    (tmp_path / "u.csv").write_text("x,leak,worn\n1,0,True\n2,,no\n3,1,False\n")
    main(["init", "other", "--data", "u.csv", "--label", "leak", "--label", "worn"])
    said = capsys.readouterr().out
    assert "--label = 'worn': of several labels each must be 1 or 0, not 'no'; change the file\n" in said
    assert "--label = 'leak'" not in said
    assert "fedcore promote t-leak-worn" in (tmp_path / "own" / "README.md").read_text()
