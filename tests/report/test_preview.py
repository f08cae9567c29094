"""The preview of a user's data, before anything is computed."""

import io
import json
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from dataset_files import CASES, cases
from PIL import Image
from project_params import copied
from rich.console import Console

from fedcore.config.request import Job, first_own
from fedcore.config.settings import Setting
from fedcore.config.studies import grid_points
from fedcore.core.metrics import METRICS
from fedcore.data import load
from fedcore.errors import InputError
from fedcore.nets.custom import custom
from fedcore.partition import partition
from fedcore.report.preview import COUNTED, print_preview
from fedcore.report.preview import preview as print_any
from fedcore.results.criterion import Criterion


def preview(any_gaps: bool = False, width: int = 100, criterion: Any = COUNTED, **changes: Any) -> str:
    """Return the preview of study mine with settings of data; one of federation has the prefix federation__."""
    named = {key.replace("__", ".") if "__" in key else f"data.{key}": value for key, value in changes.items()}
    (setting,) = grid_points(copied(), "my_data", "small", named)
    console = Console(file=(out := io.StringIO()), width=width)
    shows = partial(print_any, setting, 0) if any_gaps else partial(print_preview, setting, *setting.read_data(0))
    shows(console=console, criterion=criterion)
    return out.getvalue()


def job(study: str, settings: list[Setting], seed: int) -> Job:
    return Job(study=study, title=study, size="small", seed=seed, settings=settings, extra_figures=(), optional=False)


@pytest.fixture
def plants(tmp_path: Path) -> Path:
    """Six sites, 12 numbers of unequal scale, a text column, 5 % missing cells, a label of strings."""
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.normal(0, 1, (300, 12)), columns=[f"s{i:02d}" for i in range(12)])
    rows["s03"] *= 1500
    rows["model"] = rng.choice(["A1", "B2", "C3"], 300)
    rows = rows.mask(rng.random(rows.shape) < 0.05)
    rows["unit"] = "C"
    rows["site"] = np.repeat([f"plant_{name}" for name in "ABCDEF"], 50)
    rows["fault"] = np.where(np.arange(300) % 4, "none", "leak")
    rows.to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


@pytest.mark.slow
def test_a_preview_is_of_the_first_setting_on_own_data_as_a_run_divides_it(plants: Path):
    words = {"data.name": "table", "data.path": str(plants), "data.label": "fault", "data.device": "site"}
    words |= {"data.missing": "median", "federation.partition": "by_device"}
    settings = [*grid_points(copied(), "my_data", "small", words)]
    assert first_own([job("code", [*grid_points(copied(), "code", "small", {})], 0)]) is None
    assert first_own([job("my_data", settings, 5)]) == (settings[0], 5)
    dataset, divided = settings[0].read_data(5)
    way = {"name" if key == "partition" else key: value for key, value in settings[0].federation.items()}
    again = partition(dataset, seed=5, **{key: value for key, value in way.items() if key != "scale"})
    assert np.array_equal(divided.indices, again.indices)
    assert np.array_equal(divided.sizes, again.sizes)
    assert divided.names == again.names
    other = grid_points(copied(), "my_data", "small", {**words, "federation.shared_test": 0.3})
    assert next(iter(other)).source == settings[0].source


@pytest.mark.slow
def test_a_preview_says_what_is_used_and_what_is_not(plants: Path):
    text = preview(name="table", path=str(plants), label="fault", device="site", missing="median")
    gaps = pd.read_csv(plants).drop(columns=["unit", "site", "fault"]).isna().sum()
    assert "300 examples, 13 of 14 columns, 15 inputs, 2 classes of fault, 6 devices, 60 shared" in text
    for name, count in gaps.items():
        assert f"{count} ({count / 300:.1%})" in next(line for line in text.splitlines() if line.startswith(f"{name} "))
    assert "left out: unit, the same value in every row: 'C'" in text
    own = sum(int(line.split()[4]) for line in text.splitlines() if line.startswith("plant_") and "," not in line)
    assert own < gaps.sum()
    said = f"missing: {gaps.sum()} cells ({own} on devices); an empty number becomes its device's median"
    assert said in " ".join(text.split())
    assert re.search(r" train +train *\ndevice +train .* missing +leak, % +none, % *\n", text)
    assert "scales: spans " in text
    assert "federation.scale=common is suggested; size=scales tries both" in " ".join(text.split())
    assert "each device sends 104 bytes and receives 96" in text  # the medians of its 12 numbers, and a count
    lines = [line.split() for line in text.splitlines() if line.startswith("plant_") and "," not in line]
    assert len(lines) == 6
    assert all(int(leak) + int(none) == 100 for *_, leak, none in lines)
    assert len(text.splitlines()) <= 40


@pytest.mark.slow
def test_gaps_are_shown_before_they_are_refused(plants: Path):
    given = {"name": "table", "path": str(plants), "label": "fault", "device": "site"}
    shown = " ".join(preview(any_gaps=True, **given).split())
    assert "a run needs data.missing=common_median, median or drop (fedcore docs missing)" in shown
    pd.read_csv(plants).assign(date="2024-01-31", hour="10:00").to_csv(dated := plants.with_name("d.csv"), index=False)
    shown = " ".join(preview(any_gaps=True, **(of := given | {"path": str(dated)}), ignore=["unit"]).split())
    assert "column 'date' holds times ('2024-01-31'), which no net can use; leave it out with" in shown
    settled = (
        "To settle all of this: fedcore preview --save 'data.ignore=[unit, date, hour]' data.missing=common_median "
        "federation.scale=common"
    )
    assert shown.endswith(settled)
    pd.read_csv(dated).assign(nr=range(1, 301)).to_csv(dated, index=False)
    shown = " ".join(preview(any_gaps=True, **of, ignore=["unit"]).split())
    assert shown.endswith(settled.replace("To settle all of this", "Decide on nr (above). To settle the rest"))
    for now, more in ((False, {}), (True, {"features": ["date"]})):
        with pytest.raises(InputError, match="column 'date' holds times"):
            preview(any_gaps=now, **of, **more)
    with pytest.raises(InputError, match=r"missing \(\d+ in 13 columns\); set data.missing=common_median, median"):
        preview(**given)
    assert " with an empty cell" in preview(missing="drop", **given)


@pytest.mark.slow
def test_scaled_data_need_no_advice_on_scales(plants: Path):
    given = {"name": "table", "path": str(plants), "label": "fault", "device": "site", "missing": "median"}
    for scale in ("device", "common"):
        assert "scales" not in preview(federation__scale=scale, **given)
    text = " ".join(preview(federation__scale="common", **{**given, "missing": "common_median"}).split())
    assert "an empty number becomes the mean of the devices' medians" in text
    assert "before the first round each device sends 296 bytes and receives 288" in text


@pytest.mark.parametrize(("by_label", "by_site", "scale"), [(100, 0, "common"), (30, 200, "device"), (0, 0, None)])
@pytest.mark.slow
def test_a_scale_is_suggested_by_where_the_levels_come_from(
    tmp_path: Path, by_label: float, by_site: float, scale: str | None
):
    """Sites of different shares of the ill: a level that is theirs, or the label's; spans are alike without either."""
    rng, site = np.random.default_rng(0), np.repeat(np.arange(4), 100)
    ill = rng.random(400) < np.array([0.1, 0.3, 0.7, 0.9])[site]
    rows = pd.DataFrame({"site": site, "heat": rng.normal(0, 1, 400) + by_label * ill + by_site * site})
    rows["flow"] = rng.normal(0, 1, 400) + by_site * site
    rows["state"] = np.where(ill, "ill", "well")
    rows.to_csv(tmp_path / "t.csv", index=False)
    text = " ".join(preview(name="table", path=str(tmp_path / "t.csv"), label="state", device="site").split())
    assert ("scales: " in text) == (scale is not None)
    assert (f"federation.scale={scale} is suggested" in text) == (scale is not None)
    assert ("a new device is then scaled by its own rows, from 20 on" in text) == (scale == "device")


@pytest.mark.slow
def test_a_number_beside_texts_and_columns_that_tell_the_label_are_named(tmp_path: Path):
    rng, fault = np.random.default_rng(0), np.arange(300) % 4 == 0
    rows = pd.DataFrame({"income": rng.integers(0, 5000, 300), "owner": rng.choice(["no", "yes"], 300)})
    rows["minutes"], rows["state"] = np.where(fault, rng.integers(1, 9, 300), 0), np.where(fault, "fault", "ok")
    rows["site"], rows["amount"] = np.arange(300) // 4 % 3, rows["minutes"] + rng.random(300)
    rows.to_csv(tmp_path / "t.csv", index=False)
    given = {"name": "table", "path": str(tmp_path / "t.csv"), "device": "site", "width": 200}
    line = "'minutes' tells the label of all or some rows without other columns; if it is known only after the label: "
    assert f"{line}'data.ignore=[amount, minutes]'" in preview(**given, label="state", ignore=["amount"])
    rows.assign(nr=range(300)).to_csv(tmp_path / "nr.csv", index=False)
    numbered = preview(**given | {"path": str(tmp_path / "nr.csv")}, label="state", ignore=["amount"])
    assert f"{line}'data.ignore=[amount, minutes]'" in numbered
    assert "the label of all" not in preview(**given, label="state", ignore=["amount", "minutes"])
    assert "the label of all" not in preview(**given, label="amount")
    ignore = ["amount", "minutes"]
    assert "scales: spans 1 to 4,9" in preview(**given, label="state", ignore=ignore)
    assert "scales: " not in preview(**given, label="state", ignore=[*ignore, "owner"])
    rows.assign(mm=25.4 * rows["amount"]).to_csv(tmp_path / "t.csv", index=False)
    assert "'mm' tells the label of all or some rows" in preview(**given, label="amount")


def test_a_suggested_list_holds_what_is_set_already(tmp_path: Path):
    """Typed as it is shown, it takes nothing back: of columns that are names, or left out, and of missing cells."""
    rows = pd.DataFrame({"zip": [f"0{1200 + i}" for i in range(40)], "kind": ["7", None] * 20, "y": [0, 1] * 20})
    rows["plant"], rows["u"] = np.arange(40) % 3, np.arange(40) * 7 % 40 / 3
    rows["price"] = [f"1,{206 + i % 9}" for i in range(40)]
    rows["site"] = np.arange(40) // 2 % 2
    rows.to_csv(tmp_path / "t.csv", index=False)
    given = {"name": "table", "path": str(tmp_path / "t.csv"), "label": "y", "device": "site", "width": 300}
    text = preview(**given, categorical=["plant"])
    assert "may be names; 'data.categorical=[plant, zip]' keeps them so" in text
    assert "besides 20 empty cells; 'data.categorical=[plant, kind]' makes it an input" in text
    assert "write them as 1234.5, or set data.decimal=point if it is 1214" in text  # with commas u would be refused
    whole = {"u": rows["u"].index, "plant": rows["plant"]}
    rows = rows.assign(**whole, price=[f"1,{206 + i // 2}" for i in range(40)])
    rows.to_csv(tmp_path / "t.csv", index=False)
    assert "write them as 1234.5, or set data.decimal=comma or data.decimal=point" in preview(**given, categories=3)
    assert "price (20 texts): may say whose" not in preview(**given, categories=3)
    rows.assign(day="2024-01-31").to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(InputError, match=r"leave it out with 'data.ignore=\[plant, day\]'"):
        preview(**given, ignore=["plant"])
    rows["u"] = rows["u"].astype(object)
    rows.loc[3, "u"] = "k.A."
    rows.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(InputError, match=r"""'data.missing_values=\["", "-999", "k.A."\]'"""):
        preview(**given, missing_values=["-999"], missing="median")


def test_the_study_can_try_both_scales(plants: Path):
    words = {"data.name": "table", "data.path": str(plants), "data.label": "fault", "data.device": "site"}
    points = grid_points(copied(), "my_data", "scales", words)
    assert [point.federation["scale"] for point in points] == ["common", "device"]
    (small,) = grid_points(copied(), "my_data", "small", words)
    assert {**points[0].federation, "scale": "none"} == small.federation


@pytest.mark.slow
def test_a_wide_table_of_many_devices_fits_40_lines(tmp_path: Path):
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.normal(0, 1, (1200, 60)) * 10.0 ** rng.integers(-3, 4, 60)).add_prefix("column number ")
    rows = rows.mask(rng.random(rows.shape) < 0.01)
    for i in range(9):
        rows[f"text {i}"] = [f"{i}-{k}" for k in range(1200)]
    rows["row"] = range(1200)
    rows["who"] = np.arange(1200) % 40
    rows["y"] = np.arange(1200) // 40 % 12
    rows.to_parquet(tmp_path / "t.parquet")
    text = preview(name="table", path=str(tmp_path / "t.parquet"), label="y", device="who", missing="median")
    assert len(text.splitlines()) <= 40
    assert max(map(len, text.splitlines())) <= 100
    assert "... and 48 more columns" in text
    assert "... and 6 more columns left out" in text
    assert text.count("if it names the rows: 'data.id=text 0'") == 1
    assert "text 0: another text in each row" in text
    assert "left out of means" not in text  # of any device
    assert re.search(r"40 devices with 1[2-4] to 1[4-6] training examples each", text)
    assert "6 more, %" in text
    line = "row: a different whole number in each row; if it is an identifier: "
    assert f"{line}'data.ignore=[row]'" in " ".join(text.split())


@pytest.mark.slow
def test_pictures_have_a_preview_too(tmp_path: Path):
    rng = np.random.default_rng(0)
    for name in ("circle", "square"):
        (tmp_path / name).mkdir()
        for i in range(30):
            Image.fromarray(rng.integers(0, 255, (9, 9, 3), dtype=np.uint8)).save(tmp_path / name / f"{i}.png")
    text = preview(name="image_folder", path=str(tmp_path), size=8, federation__devices=3, federation__min_size=5)
    assert "60 examples, 3 x 8 x 8 numbers each, 2 classes, 3 devices, 12 shared test examples" in text.splitlines()
    assert sum(line.startswith("device-0") and len(line.split()) > 2 for line in text.splitlines()) == 3
    assert "fewer than 20 test rows with this seed, though all count: 3 of 3 devices" in text


def sites(tmp_path: Path, sizes: dict[str, int], **columns: Any) -> dict[str, str]:
    """Write a table with so many rows of each site; returns the settings that read it."""
    who = np.repeat([*sizes], [*sizes.values()])
    rows = pd.DataFrame({"u": np.arange(len(who)) / 7, "v": np.arange(len(who)) % 5, "who": who})
    rows["y"] = np.where(np.arange(len(who)) % 2, "p", "q")
    for name, change in columns.items():
        rows[name] = change(rows)
    rows.to_csv(tmp_path / "t.csv", index=False)
    return {"name": "table", "path": str(tmp_path / "t.csv"), "label": "y", "device": "who", "missing": "median"}


@pytest.mark.parametrize(("start", "coarse"), [(1.7e9, True), (0, False)])
@pytest.mark.slow
def test_times_that_float32_keeps_in_coarse_steps_are_pointed_out(tmp_path: Path, start: float, coarse: bool):
    rows = pd.DataFrame({"time": start + np.arange(0, 8000, 10.0), "y": np.tile(["a", "b"], 400)})
    rows.to_csv(tmp_path / "t.csv", index=False)
    text = " ".join(preview(name="table", path=str(tmp_path / "t.csv"), label="y").split())
    assert ("time: float32 keeps these numbers in steps of 128, over a span of " in text) == coarse
    assert np.float32(1.7e9 + 128) == np.nextafter(np.float32(1.7e9), np.float32(np.inf))


@pytest.mark.parametrize(
    ("scale", "where", "mend"),
    [
        ("none", "d and on 2 other devices", "federation.scale=device"),
        ("common", "c and on 3 other devices", "federation.scale=device, and leave 1e+10 on b and cells like it empty"),
        ("device", "b", "leave 1e+10 on b and cells like it empty"),
    ],
)
def test_numbers_that_a_far_level_or_cell_rounds_are_named_with_what_mends(
    tmp_path: Path, scale: str, where: str, mend: str
):
    """Levels of devices lie 1e9 apart, or one cell of device b is 1e10."""
    rows, draw = pd.DataFrame({"who": np.repeat([*"abcd"], 60)}), np.random.default_rng(0)
    rows["time"], rows["y"] = draw.normal(size=240), np.tile(["p", "q"], 120)
    level = np.repeat(np.arange(4), 60) * 1e9
    rows["time"] = rows["time"] + level if scale == "none" else rows["time"].where(rows.index != 70, 1e10)
    rows.to_csv(tmp_path / "t.csv", index=False)
    given = {"name": "table", "path": str(tmp_path / "t.csv"), "label": "y", "device": "who"}
    (line,) = (one for one in preview(**given, width=300, federation__scale=scale).splitlines() if "keeps" in one)
    assert line.startswith("time: float32 keeps these numbers in steps of ")
    assert line.rstrip().endswith(f"of half of them on {where}: {mend}")


@pytest.mark.parametrize(("every", "rare"), [(33, True), (10, False)])
@pytest.mark.slow
def test_a_rare_class_is_pointed_out_though_none_is_large(tmp_path: Path, every: int, rare: bool):
    """Of 240 rows eight are a thirtieth, and 24 a tenth; the two other classes share the rest."""
    given = sites(tmp_path, dict.fromkeys("abcd", 60), y=lambda rows: rows["y"].where(rows.index % every > 0, "r"))
    assert ("class r: only 3.3% of the rows, so accuracy hardly counts it" in preview(**given)) == rare
    assert "run.metric=balanced" not in preview(**given, run__metric="balanced_accuracy")


@pytest.mark.slow
def test_a_rare_class_is_named_as_it_is_typed(tmp_path: Path):
    given = sites(tmp_path, dict.fromkeys("abcd", 60), y=lambda rows: rows["y"].where(rows.index % 33 > 0, "True"))
    assert "or recall ('run.positive=\"True\"')" in preview(**given)


@pytest.mark.parametrize(("least", "said"), [(5, None), (20, "fewer than 20"), (24, "though all count: 2 of 2")])
@pytest.mark.slow
def test_devices_count_from_the_least_test_rows_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], least: int, said: str | None
):
    """Of 130 and 60 rows 20.8 and 9.6 are expected to test; the command tells the preview what run.least_test is."""
    from fedcore.cli import run

    given = sites(tmp_path, {"a": 130, "b": 60})
    monkeypatch.setattr(run, "enter_project", lambda: None)
    run.preview.callback((*(f"data.{key}={value}" for key, value in given.items()), f"run.least_test={least}"))
    text = " ".join(capsys.readouterr().out.split())
    assert ("test rows" in text.partition("shared test examples")[2]) == (said is not None)
    assert (said or "") in text


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({}, "the answer is by balanced accuracy"),
        ({"run__metric": "accuracy"}, "set run.metric=auto"),
        ({"run__metric": "f1", "run__positive": "q"}, "the answer is by F1. Other metrics: run.metric=recall"),
        ({"run__metric": "recall", "run__positive": "q"}, "the answer is by recall. Other metrics: run.costs"),
    ],
)
@pytest.mark.slow
def test_a_preview_names_the_metric_that_decides(tmp_path: Path, chosen: dict[str, Any], said: str):
    given = sites(tmp_path, dict.fromkeys("ab", 60), y=lambda rows: rows["y"].where(rows.index % 7 == 1, "p"))
    shown = preview(**given, **chosen, width=200)
    assert f"so accuracy says little: {said}" in shown
    assert re.search(r"class q: \d+ test rows? in all; 20 or more are needed", shown), "of some 9 rows"
    assert "no threshold" not in shown
    if chosen.get("run__positive"):
        shown = preview(**given, **chosen, run__threshold="validation", width=200)
        assert re.search(r"class q: \d+ validation rows? in all; below 20 no threshold is chosen", shown)


def test_a_preview_refuses_a_metric_of_other_labels_as_a_run_does(tmp_path: Path):
    rmse = Criterion(metric=METRICS["rmse"])
    with pytest.raises(InputError, match=r"run.metric = 'rmse': is for a number as label; these data have classes"):
        preview(any_gaps=True, **sites(tmp_path, dict.fromkeys("ab", 60)), criterion=rmse)


@pytest.mark.slow
def test_mistakes_that_have_no_cost_are_named(tmp_path: Path):
    given = sites(tmp_path, dict.fromkeys("ab", 60))
    assert "not listed" not in preview(**given, run__costs={"p": {"q": 5.0}, "q": {"p": 1.0}})
    shown = preview(**given, run__costs={"p": {"q": 5.0}})
    assert "run.costs: not listed, so it costs nothing: q taken for p" in shown


@pytest.mark.slow
def test_an_identifier_is_left_out_beside_what_is_already(tmp_path: Path):
    given = sites(tmp_path, dict.fromkeys("ab", 60), nr=lambda rows: rows.index * 7, day=lambda _: "2024-01-31")
    line = "nr: a different whole number in each row; if it is an identifier: 'data.ignore=[day, nr]'"  # u rises
    assert line in preview(**given, ignore=["day"], width=140)
    assert line in preview(any_gaps=True, **given, width=140)


@pytest.mark.slow
def test_a_blank_at_the_end_of_a_name_is_seen(tmp_path: Path):
    shown = preview(**sites(tmp_path, {"a": 130, "b ": 60, "b": 60}), width=140)
    assert "2 of 3 devices: b, 'b '" in shown
    assert any(line.startswith("'b '") for line in shown.splitlines())


@pytest.mark.slow
def test_missing_cells_are_counted_for_each_device(tmp_path: Path):
    given = sites(tmp_path, dict.fromkeys("abc", 40), u=lambda rows: rows["u"].mask(rows.index.isin(range(38, 45))))
    given |= {"federation__shared_test": 0}
    shown = preview(**given).splitlines()
    assert "a 2, b 5" in next(line for line in shown if line.startswith("u "))
    missing = next(line for line in shown if line.startswith("device ")).split().index("missing")
    assert [line.split()[missing] for line in shown if line[:2] in ("a ", "b ", "c ")] == ["2", "5", "0"]
    given |= sites(tmp_path, dict.fromkeys("abcd", 20), u=lambda rows: rows["u"].where(rows["who"] == "d"))
    text = preview(**given)
    assert "3 of 4, 3 wholly" in text
    assert "no value in a column: 3 of 4 devices: a (u), b (u), c (u)" in text
    gaps = {"u": lambda rows: rows["u"].mask(rows["v"] > 2), "t": lambda rows: np.where(rows["v"] > 2, "x", "")}
    shown = preview(**sites(tmp_path, dict.fromkeys("abcde", 40), **gaps)).splitlines()
    assert "5 of 5, 15 on no device" in next(line for line in shown if line.startswith("u "))
    shown = preview(**sites(tmp_path, dict.fromkeys("abcde", 40), **gaps, spindlerpm=gaps["u"]), width=80).splitlines()
    assert next(line for line in shown if line.startswith("spindlerpm ")).split()[2:6] == ["80", "(40.0%)", "5", "of"]
    assert next(line for line in shown if line.startswith("t ")).split()[2:] == ["-", "-", "x,", "empty"]


@pytest.mark.parametrize("gap", [False, True])
def test_a_text_that_only_test_rows_have_is_no_empty_cell(tmp_path: Path, gap: bool):
    rows = pd.DataFrame({"u": np.arange(120) / 7, "who": np.arange(120) % 2, "y": np.arange(120) // 3 % 2})
    rows["g"], rows["part"] = np.array([*"abc"])[np.arange(120) % 3], np.repeat(["train", "val", "test"], 40)
    rows.loc[100:, "g"] = "new"
    rows.loc[[3, 110][: 2 * gap], "g"] = None
    rows.to_csv(tmp_path / "t.csv", index=False)
    data = {"name": "table", "path": str(tmp_path / "t.csv"), "label": "y", "device": "who", "split": "part"}
    data["federation__scale"] = "device"
    text = preview(any_gaps=True, **data, width=200)
    assert ("missing: 2 cells; a run needs data.missing" in text) == gap
    assert ("--save data.missing=common_median" in text) == gap
    assert next(line for line in text.splitlines() if line.startswith("g ")).split()[2] == ("2" if gap else "-")
    assert gap or preview(**data, width=200) == text


@pytest.mark.slow
def test_all_devices_are_listed_or_counted_by_problem(tmp_path: Path):
    given = sites(tmp_path, {f"s{k:02d}": 40 for k in range(20)})
    assert sum(line[:2] in ("s0", "s1") and "," not in line for line in preview(**given).splitlines()) == 20
    of_means = "left out of means (run.least_test=0 counts all): 1 of 2 devices: b"
    shown = preview(**sites(tmp_path, {"a": 130, "b": 122}), width=140)  # 19.5 to expect; the table has 20
    assert f"fewer than 20 expected test rows (the table shows one seed), {of_means}" in shown
    shown = preview(**sites(tmp_path, {"a": 130, "b": 60}), width=140)
    assert f"fewer than 20 test rows, {of_means}" in shown
    given = sites(tmp_path, {"a": 1950, "b": 130, "c": 19})  # too few rows on c to count
    asked = r"each device counts alike, with \d\d to \d{3} training examples; if rows matter, .*: run.weigh=examples"
    assert re.search(asked, preview(**given, width=140))
    assert "run.weigh" not in preview(**given, criterion=type(COUNTED)(weigh="examples"))
    sizes = {f"s{k:02d}": 12 if k < 9 else 40 for k in range(30)}
    alone = sites(
        tmp_path, sizes, y=lambda rows: np.where(rows["who"] > "s27", "p", rows["y"]),
        v=lambda rows: rows["v"].mask(rows["who"] == "s15"),
    )  # fmt: skip
    text = preview(**alone)
    assert "more devices\n" not in text
    assert re.search(r"30 devices with [4-7] to ", text)
    few = r"fewer than 10 training examples: (8|9|10|11) of 30 devices: s00, s01, s02, s03, s04, s05 and "
    assert re.search(few, text)
    assert "one class only: 2 of 30 devices: s28, s29" in text
    assert "no value in a column: 1 of 30 devices: s15 (v)" in text
    heads = [line.split(":")[0] for line in text.splitlines() if ": s0" in line or ": s1" in line]
    assert heads[:2] == ["fewest", "median"]


@pytest.mark.slow
def test_rows_of_a_new_site_that_are_not_scored_are_counted(tmp_path: Path):
    """Half of c's patients train at a; without ids all its rows are scored."""
    given = sites(tmp_path, {"a": 40, "b": 40, "c": 20})
    rows = pd.read_csv(given["path"])
    part = np.where(rows["who"] == "c", "test", "train")
    rows.assign(part=part, pid=[f"p{i - 80 if 80 <= i < 90 else i}" for i in range(100)]).to_csv(
        given["path"], index=False
    )
    given = given | {"split": "part"}
    assert "new device: c: 20 rows, all marked test; it is scored, not trained on" in preview(**given, ignore=["pid"])
    shown = " ".join(preview(**given, id="pid", federation__hold_out="stable", width=200).split())
    assert "new device: c: 10 rows, all marked test" in shown
    assert "left out, as their data.id trains: 10 rows" in shown


def test_devices_without_validation_rows_are_named(tmp_path: Path):
    given = sites(tmp_path, {"a": 40, "b": 40, "tiny": 3})
    given |= {"federation__min_size": 1, "federation__shared_test": 0, "federation__val": 0.1}
    assert "no validation example of its own: 1 of 3 devices: tiny\n" in preview(**given)
    assert "no validation example" not in preview(**given, exclude=["tiny"])


@pytest.mark.slow
def test_columns_that_rise_with_the_rows_are_named(tmp_path: Path):
    """In all rows, or in those of each device, as seconds since 1970 do; not one that is constant on a device."""
    rng = np.random.default_rng(0)
    seconds = 1.7e9 + rng.exponential(60, 80).cumsum().round(1)
    own = np.concatenate([rng.exponential(1, 40).cumsum() for _ in "ab"])
    given = sites(tmp_path, {"a": 40, "b": 40})
    table = pd.read_csv(given["path"]).assign(at=seconds, own=own, level=np.repeat([1.5, 2.5], 40))
    table.to_csv(given["path"], index=False)
    line = "at, own: rising with the rows, as a time, so new rows lie beyond those of training; if it is a time:"
    shown = " ".join(preview(**given, ignore=["u"], width=200).split())
    assert f"{line} 'data.ignore=[u, at, own]'" in shown
    assert "rising with the rows" not in preview(**given, ignore=["u", "at", "own"])


@pytest.mark.slow
def test_columns_whose_level_is_a_devices_own_are_named(tmp_path: Path):
    """Though most are not; nor is one that is constant on each device, which that scale would empty."""
    draws, site = np.random.default_rng(0), np.repeat(["a", "b", "c"], 60)
    table = pd.DataFrame({name: draws.normal(size=180) for name in ("flat", "even", "level", "area")})
    table["level"] += np.repeat([0, 4, 8], 60)
    table["area"] = np.repeat([5, 40, 90], 60)
    table.assign(site=site, ill=draws.integers(0, 2, 180)).to_csv(path := tmp_path / "t.csv", index=False)
    given = {"name": "table", "path": str(path), "label": "ill", "device": "site"}
    line = "level: levels differ by device; federation.scale=device may help"
    assert line in preview(**given, federation__scale="common").splitlines()
    assert "levels differ" not in preview(**given, federation__scale="device")


@pytest.mark.slow
def test_words_among_numbers_are_settled_in_one_line(tmp_path: Path):
    """Those of all columns; not where one has a digit, as what is meant is a number."""
    table = pd.read_csv((given := sites(tmp_path, {"a": 40, "b": 40}))["path"], dtype=str)
    numbers = [name for name in table if name not in {given["label"], given["device"]}][:2]
    table.loc[[3, 5, 7], numbers[0]] = ["n/k", "broken", "n/k"]
    table.loc[2, numbers[1]] = "it's"
    table.to_csv(given["path"], index=False)
    shown = preview(any_gaps=True, **given, width=300)
    assert "row 4: 'n/k' is not a finite number; correct it, or count these as empty cells: 'data.mis" in shown
    assert """missing_values=["", n/k, broken, "it'"'"'s"]'""" in shown.splitlines()[-1]
    for row, word in ((9, "2 kPa"), (7, table[given["label"]].iloc[0])):  # a number is meant, or a class is lost
        table.loc[row, numbers[0]] = word
        table.to_csv(given["path"], index=False)
        with pytest.raises(InputError, match="row 4: 'n/k' is not a finite number; correct it, or count it as"):
            preview(any_gaps=True, **given)
        table.loc[row, numbers[0]] = "1"


@pytest.mark.slow
def test_dropped_devices_are_named(tmp_path: Path):
    given = sites(tmp_path, {"a": 40, "tiny": 3, "small": 6, "b": 40})
    with pytest.raises(InputError, match=r"'small' has 6 examples \(2 of 4 devices have fewer\); keep them: fed"):
        preview(**given)
    shown = preview(any_gaps=True, **given)
    assert "4 devices" in shown
    assert shown.endswith("Decide on u (above). To settle the rest: fedcore preview --save federation.min_size=3\n")
    text = preview(**given, federation__drop_small=True)
    assert "dropped, 2 devices below federation.min_size=10: small, tiny" in text
    assert "2 classes of y, 2 devices" in text
    assert "dropped, " not in preview(**given, exclude=["tiny", "small"])
    assert "left out by data.exclude: tiny, small" in preview(**given, exclude=["tiny", "small"])
    assert "identifier has" not in text
    numbered = sites(tmp_path, {"a": 40, "b": 40}, y=lambda rows: np.arange(80) + 7)
    assert "y, the label: a different whole number in each row, as an identifier has" in preview(**numbered)


@pytest.mark.parametrize("width", [60, 80, 100, 120])
@pytest.mark.slow
def test_long_names_can_be_told_apart_in_any_width(tmp_path: Path, width: int):
    beginning, end = "a name that goes on and on until it says", "and then goes on and on again"
    long = [f"{beginning} {word} {end}" for word in ("north", "south")]
    given = sites(
        tmp_path, dict.fromkeys(long, 40), grade=lambda rows: np.where(rows["v"] < 2, long[0], long[1]),
        y=lambda rows: np.where(rows["y"] == "p", *long), **{name: lambda rows: rows["u"] ** 2 for name in long},
    )  # fmt: skip
    shown = preview(width=width, **given).splitlines()
    assert max(map(len, shown)) <= width
    head = next(i for i, line in enumerate(shown) if line.startswith("column "))
    names = [line[: width // 4] for line in shown[head + 2 : head + 7]]
    assert len({*names}) == 5
    head = next(i for i, line in enumerate(shown) if line.startswith("device "))
    assert len({line[: width // 4] for line in shown[head + 2 : head + 4]}) == 2
    assert sum("%" in word for word in shown[head].split()) == 2
    assert "number" in "".join(shown)


@pytest.mark.slow
def test_what_the_files_are_is_said(tmp_path: Path):
    (tmp_path / "t.csv").write_text("u;grade;y\n" + "1,5;x;p\n2,5;-;q\n?;z;p\n3,5;x;q\n" * 12)
    text = preview(name="table", path=str(tmp_path / "t.csv"), label="y", missing="median", federation__devices=2)
    assert "read: columns separated by semicolons, decimal commas" in text
    assert "cells that count as missing: '?' 12 in u; '-' 12 in grade" in text


@pytest.mark.slow
def test_a_preview_of_a_very_narrow_window_is_cut_and_no_error(tmp_path: Path):
    given = sites(tmp_path, dict.fromkeys(("plant of the north", "plant of the south"), 40))
    assert max(map(len, preview(width=24, **given).splitlines())) <= 24


@pytest.mark.slow
def test_a_number_as_label_is_said_and_shown_for_each_device(plants: Path):
    rows = pd.read_csv(plants).assign(hours=np.arange(300) / 3)
    rows.to_csv(plants, index=False)
    text = preview(name="table", path=str(plants), label="hours", device="site", missing="median")
    assert "the number hours, 6 devices" in text
    assert "task: regression, hours is a number of 300 different values (data.task)" in text
    head = next(line for line in text.splitlines() if line.startswith("device"))
    assert head.split() == ["device", "train", "val", "test", "missing", "mean", "hours", "deviation"]
    first = next(line for line in text.splitlines() if line.startswith("plant_A")).split()
    assert 5 < float(first[-2]) < 12
    assert "class" not in text.replace("categories", "")
    asks = "task: classification, hours has 10 classes; data.task=regression learns the number"
    for classes, asked in ((10, True), (4, False)):
        rows.assign(hours=rows["hours"] // (100 / classes)).to_csv(plants, index=False)
        text = preview(name="table", path=str(plants), label="hours", device="site", missing="median")
        assert (asks in text, "task" in text) == (asked, asked)


@pytest.mark.slow
def test_a_class_with_the_name_of_a_size_has_its_share(tmp_path: Path):
    y = {"y": lambda rows: np.where(rows["v"] == 0, "n_train", "n_val")}
    text = preview(**sites(tmp_path, {"a": 100, "b": 100}, **y))
    assert re.search(r"^a +48 +16 +16 +21 +79 *$", text, re.M)


def test_of_many_classes_the_most_frequent_are_shown(tmp_path: Path):
    letters = [*"abcdefghij", *"\n " * 30, *"zzz" * 20]
    text = "".join(letters)
    users = {name: {"x": [text[k : k + 9] for k in range(80)], "y": [text[k + 9] for k in range(80)]} for name in "uv"}
    (tmp_path / "all_data").mkdir()
    (tmp_path / "all_data/a.json").write_text(json.dumps({"users": ["u", "v"], "user_data": users}))
    shown = preview(
        name="leaf", path=str(tmp_path), label=None, device=None, federation__partition="by_device", net__name="lstm"
    )
    head = next(line for line in shown.splitlines() if line.startswith("device"))
    assert {*re.split("  +", head)[4:7]} == {"z, %", "' ', %", "'\\n', %"}


@pytest.mark.slow
def test_shares_of_several_labels_are_shown_for_each_device(plants: Path):
    count = 300
    rows = pd.read_csv(plants).assign(leak=np.arange(count) % 2, wear=(np.arange(count) % 10 == 0).astype(int))
    rows.to_csv(plants, index=False)
    text = preview(name="table", path=str(plants), label=["leak", "wear"], device="site", missing="median")
    assert "2 labels, 6 devices" in text
    assert "task: multilabel, 0.6 labels on average, 40.0% of the rows have none" in text
    head = next(line for line in text.splitlines() if line.startswith("device"))
    assert head.split() == ["device", "train", "val", "test", "missing", "leak,", "%", "wear,", "%"]
    first = next(line for line in text.splitlines() if line.startswith("plant_A")).split()
    assert 30 < float(first[-2]) < 70
    assert float(first[-1]) < 25


@pytest.mark.slow
@pytest.mark.parametrize(("name", "visits"), [("patient", 4), ("month", 30)])
def test_a_column_that_may_say_whose_a_row_is_is_named(tmp_path: Path, name: str, visits: int):
    rows = pd.DataFrame({"u": np.arange(240) / 7, "who": np.arange(240) % 2, "y": np.arange(240) // 3 % 2})
    rows[name] = 100 + np.arange(240) // visits
    rows["code"] = [f"p{i // 4}" for i in range(240)]
    rows["note"] = [f"some words {i // 4}" for i in range(240)]
    rows.to_csv(tmp_path / "t.csv", index=False)
    data = {"name": "table", "path": str(tmp_path / "t.csv"), "label": "y", "device": "who"}
    groups = "code (60 texts), patient (60 numbers)" if visits == 4 else "code (60 texts)"
    text = " ".join(preview(**data, width=200).split())
    id = "NAME" if visits == 4 else "code"
    own = f"if so, data.id={id} with federation.hold_out=stable keeps each one's rows together"
    assert f"{groups}: may say whose rows they are, such as a patient's; {own}, to train or to test" in text
    assert f"if so, data.id={id} keeps each one's" in preview(**data, federation__hold_out="stable", width=200)
    assert "whose rows" not in preview(**data, id="code", federation__hold_out="stable", width=200)


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.slow
def test_rows_that_both_train_and_test_are_counted(tmp_path: Path, marked: bool):
    rows = pd.DataFrame({"u": np.arange(100) / 7, "who": np.arange(100) % 2, "y": np.arange(100) // 3 % 2})
    rows = pd.concat([rows.assign(part="train"), rows.assign(part="test")])
    rows.to_csv(tmp_path / "t.csv", index=False)
    data = {"name": "table", "path": str(tmp_path / "t.csv"), "label": "y", "device": "who"}
    marks = {"split": "part"} if marked else {"ignore": ["part"]}
    text = preview(**data, **marks, federation__hold_out="random", width=200)
    stable = "federation.hold_out=stable keeps equal rows of a device on one side"
    mend = "leave one of each out, or data.split" if marked else stable
    assert f" test rows equal a training row; {mend}" in text
    assert "copies" not in preview(**data, ignore=["part"], federation__hold_out="stable", width=200)


def test_ids_that_both_train_and_test_are_no_copies(tmp_path: Path):
    rows = pd.DataFrame({"u": np.arange(200) / 7, "who": np.arange(200) % 2, "y": np.arange(200) // 3 % 2})
    rows.assign(pat=np.arange(200) // 8, part=np.where(np.arange(200) % 8 < 6, "train", "test")).to_csv(
        tmp_path / "t.csv", index=False
    )
    data = {"name": "table", "path": str(tmp_path / "t.csv"), "label": "y", "device": "who", "id": "pat"}
    text = preview(**data, split="part", federation__hold_out="stable", width=200)
    mend = "give rows of one id one part, or leave data.split out"
    assert f"data.id: 30 of 48 test rows have the pat of a training row; {mend}\n" in text
    assert "copies" not in text
    assert mend not in preview(**data, ignore=["part"], federation__hold_out="stable", width=200)


@pytest.mark.slow
def test_equal_rows_of_unequal_labels_are_not_copies(tmp_path: Path):
    """Answers to few questions are equal by chance: to keep them together parts them from those of another label."""
    rows = pd.DataFrame({"u": np.arange(100) % 4, "who": np.arange(100) % 2, "y": np.arange(100) // 3 % 2})
    rows.to_csv(tmp_path / "t.csv", index=False)
    data = {"name": "table", "path": str(tmp_path / "t.csv"), "label": "y", "device": "who", "width": 200}
    line = "equal but for the label: 100 rows have all columns of a row with another label; with federation.hold_out"
    assert f"{line}=stable_each, not stable, each is held out by itself" in preview(
        **data, federation__hold_out="stable"
    )
    for way in ("random", "stable_each"):
        text = preview(**data, federation__hold_out=way)
        assert "equal but for" not in text
        assert "copies" not in text
        assert "equal rows" not in text


@pytest.mark.parametrize(("times", "said"), [(3, True), (1, False)])
def test_rows_that_stand_several_times_are_counted(tmp_path: Path, times: int, said: bool):
    drawn = np.random.default_rng(0).normal(size=60)
    rows = pd.DataFrame({"u": drawn, "who": np.arange(60) % 2, "y": np.arange(60) // 3 % 2})
    pd.concat([rows] * times).to_csv(tmp_path / "t.csv", index=False)
    data = {"name": "table", "path": str(tmp_path / "t.csv"), "label": "y", "device": "who", "width": 200}
    text = preview(**data, federation__hold_out="stable")
    assert bool(re.search(r"equal rows: (\d+) training rows, \d+ different ones; analytic takes", text)) == said


@pytest.mark.parametrize("way", ["ids", "gaps", "grades"])
def test_rows_of_one_id_or_of_few_values_are_no_copies(tmp_path: Path, way: str):
    rng, count = np.random.default_rng(0), 240
    rows = pd.DataFrame({"u": rng.normal(size=count), "who": np.arange(count) % 2, "y": rng.integers(0, 2, count)})
    rows["pat"] = np.arange(count) // 8
    if way != "ids":
        rows["u"] = np.arange(count) % 5
        rows.loc[rng.random(count) < 0.2 * (way == "gaps"), "u"] = np.nan
    rows.drop(columns=["pat"] * (way != "ids")).to_csv(tmp_path / "t.csv", index=False)
    data = {"name": "table", "path": str(tmp_path / "t.csv"), "label": "y", "device": "who", "width": 200}
    assert "equal rows" not in preview(
        **data, **({"id": "pat", "federation__hold_out": "stable"} if way == "ids" else {"missing": "median"})
    )


@pytest.mark.parametrize(("files", "named"), [
    ({"north": range(40), "south": range(40, 80)}, ""),
    ({"north": range(40), "copy": range(40), "south": range(40, 80)}, "copy (on north), north (on copy)"),
    ({"north": range(40), "south": range(40, 80), "all": range(80)}, "north (on all), south (on all)"),
    ({"north": range(40), "old": range(30, 80)}, ""),
    ({"north": [*range(8)] * 5, "south": [*range(8)] * 5}, ""),
])  # fmt: skip
@pytest.mark.parametrize("hold_out", ["random", "stable"])
@pytest.mark.slow
def test_devices_that_hold_the_same_rows_are_named(tmp_path: Path, files: Any, named: str, hold_out: str):
    for name, numbers in files.items():
        rows = pd.DataFrame({"u": np.array(numbers) / 7, "y": np.array(numbers) % 2})
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
    data = {"name": "table", "path": str(tmp_path), "label": "y", "federation__hold_out": hold_out}
    line = f"copies: most rows of {named} are on two devices"
    text = preview(**data, federation__min_size=1, width=200)
    assert (line in text) if named else ("on two devices" not in text)


@pytest.mark.slow
def test_whole_numbers_that_may_be_words_are_asked_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "words_read.py").write_text(
        "import numpy as np, fedcore as fc\n\n\ndef read(scale: float = 1):\n"
        "    x = np.random.default_rng(0).integers(0, 85, (60, 25)) * scale\n"
        "    return fc.from_arrays(x, np.arange(60) % 2, device=np.arange(60) // 3 % 2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    line = "if they are words: net.name=lstm or transformer, net.vocabulary=85"
    assert line in preview(name="words_read:read", net__name="auto", width=200)
    assert line not in preview(name="words_read:read", net__name="mlp", width=200)
    assert "if they are words" not in preview(name="words_read:read", scale=0.5, net__name="auto", width=200)


TINY = "fewer than 20 test rows, left out of means (run.least_test=0 counts all): {} of {}"
OF_CASES: dict[str, tuple[dict[str, Any], str]] = {
    "leaf_synthetic": ({"name": "leaf", "path": "."}, "24 examples, 3 numbers each, 3 classes, 2 devices"),
    "narrow_preview": ({"path": "rows.csv", "label": "state"}, "education-years  number        -  0 to 6 "),
    "one_big_site": ({"path": "sites.csv", "label": "state"}, TINY.format(7, 8)),
    "scale_device_hurts": ({"path": "rows.csv", "label": "state"}, "federation.scale=common is suggested"),
    "tiny_site_decides": ({"path": "rows.csv", "label": "late", "federation__min_size": 1}, TINY.format(5, 7)),
    "train_val_pictures": (
        {"name": "image_folder", "path": "insects", "size": 16, "federation__devices": 2}, "folders: train, and val as "
    ),
}  # fmt: skip


@cases
@pytest.mark.parametrize("case", OF_CASES)
@pytest.mark.slow
def test_what_people_sent_is_previewed_as_they_expect(case: str, monkeypatch: pytest.MonkeyPatch):
    settings, line = OF_CASES[case]
    monkeypatch.chdir(CASES / case)
    assert line in preview(width=80, **({"name": "table", "device": "site"} if "label" in settings else {}) | settings)


@cases
def test_a_rare_label_of_a_case_is_tested_as_often_as_it_occurs():
    data = load("table", path=CASES / "rare_label_never_tested/rows.csv", label="ill", device="site")
    made = partition(data, name="by_device", seed=0, min_size=1)
    tests = np.concatenate([*(own["test"] for own in made.devices.values()), made.shared])
    assert data.train.y.numpy()[tests].mean() == pytest.approx(0.1, abs=0.03)


@cases
@pytest.mark.slow
def test_a_file_that_a_net_of_a_case_reads_is_in_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    contents = []
    for name in ("backbone.pt", "backbone_zeros.pt"):
        shutil.copy(CASES / "net_file/pre.py", tmp_path)
        shutil.copy(CASES / "net_file" / name, tmp_path / "backbone.pt")
        monkeypatch.syspath_prepend(tmp_path)
        contents.append(custom("pre:Pre")(shape=(3,), classes=2).content)
    assert contents[0] != contents[1]


def test_numbered_columns_of_whole_numbers_may_be_words(tmp_path: Path):
    words = pd.DataFrame(np.random.default_rng(0).integers(0, 90, (60, 4)), columns=[f"word{i}" for i in range(4)])
    words.assign(kind=["a", "b"] * 30).to_csv(tmp_path / "words.csv", index=False)
    text = preview(name="table", path=str(tmp_path / "words.csv"), label="kind", federation__devices=2)
    assert "which net.name=auto learns as quantities; if they are words: net.name=lstm" in " ".join(text.split())
