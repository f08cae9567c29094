"""New rows keep their columns; wrong words are refused before anything slow is imported."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from project_params import ROOT

from fedcore import nets
from fedcore.api.serving import ServedModels
from fedcore.cli import predict
from fedcore.data.drift import BinnedRows, Reference, summarise
from fedcore.data.schema import Column, Fit, Schema
from fedcore.errors import InputError
from fedcore.types.method import Model, Threshold

REFUSED = {
    "promote --versin 3": "No such option '--versin'", "promote digits mnist": "unexpected extra argument (mnist)",
    "promote digits": "model = 'digits': not registered", "promote digits --list": "model = 'digits': not registered",
    "promote --list": "--list needs a model: fedcore promote MODEL --list",
    "promote --no-final-fit": "--version, --run and --no-final-fit: need a model",
    "promote digits --list --version 1": "--list and --seeds: not with --version, --run",
    "promote digits --list --no-final-fit": "--list and --seeds: not with --version, --run or --no-final-fit",
    "predict": "Missing argument 'ROWS'", "predict new.csv --modle digits": "No such option '--modle'",
    "predict nowhere.csv": "nowhere.csv: no such file or folder",
    "predict new.csv --out none/labels.csv": "--out = none/labels.csv: no such folder",
    "predict new.csv --out .": "--out = .: is a folder",
    "predict new.csv": "--model: no model is registered; run fedcore run",
    "predict new.csv --model digits@champion": "model = 'digits': not registered",
}  # fmt: skip
REFUSING = """
import json, sys
from fedcore.cli.main import main
for words in json.load(sys.stdin):
    try:
        main(words.split())
    except SystemExit as leaving:
        print(leaving.code, *sorted({"torch", "mlflow", "pandas"} & {*sys.modules}))
"""


@pytest.mark.slow
def test_wrong_words_are_refused_before_pytorch_and_mlflow_are_imported(tmp_path: Path):
    """Their imports take five seconds of a core."""
    (tmp_path / "new.csv").write_text("a,b\n1,2\n")
    (tmp_path / "params.yaml").write_text("run: {}\n")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "FEDCORE_HOME": str(tmp_path)}
    env.pop("MLFLOW_TRACKING_URI", None)
    call = [sys.executable, "-c", REFUSING]
    done = subprocess.run(call, input=json.dumps([*REFUSED]), capture_output=True, text=True, cwd=tmp_path, env=env)
    assert done.stdout.splitlines() == ["2"] * len(REFUSED), done.stderr
    for line, words in zip(done.stderr.splitlines(), REFUSED.values(), strict=True):
        assert line.startswith("fedcore: ")
        assert words in line


# the output

SCHEMA = Schema(
    (2,), "float32", ("bad", "good"), (Column("heat", "number"), Column("force", "number")), "fault", "site",
    devices={"A": Fit(), "B": Fit()},
)  # fmt: skip
NET = nets.net("mlp", shape=(2,), classes=2, widths=[3])
MODELS = tuple((Model((nets.init(NET, torch.Generator().manual_seed(seed)),)), NET) for seed in range(2))
SHARED = ServedModels(SCHEMA, MODELS[:1], {"A": 0, "B": 0})
OWN = ServedModels(SCHEMA, MODELS, {"A": 0, "B": 1})
ROWS = "id,site,heat,force,label\n=7,A,1.5,2,x\n8,C,0.5,1,y\n9,B,2.5,0,x\n,,1.0,1,z\n"


def labelled(folder: Path, served: ServedModels, keep: str | None = None, device: str | None = None, text: str = ROWS):
    """Return the predictions of a CSV file and the lines about them."""
    (folder / "new.csv").write_text(text)
    rows, index, owners = predict.read_rows(folder / "new.csv", served, "machines", device)
    found, _, lines = predict.label(folder / "new.csv", rows, index, served, owners, keep)
    return found, lines


@pytest.mark.slow
def test_kept_columns_are_written_as_the_file_has_them(tmp_path: Path):
    cells = ["9007199254740993", "007", "1.10", "true", "none", "", "1e3"]
    text = "heat,force,site,id\n" + "".join(f"1,2,A,{cell}\n" for cell in cells)
    found, _ = labelled(tmp_path, SHARED, "id", text=text)
    assert found["id"].tolist() == cells
    heat = Column("heat", "text", ("1", "2"))
    joined = replace(SHARED, schema=replace(SCHEMA, columns=(heat, SCHEMA.columns[1]), spelling="joined", shape=(3,)))
    net = nets.net("mlp", shape=(3,), classes=2, widths=[3])
    joined = replace(joined, models=((Model((nets.init(net, torch.Generator()),)), net),))
    kept = pd.DataFrame({"heat": ["01", "2 "], "force": [1.5, 2.0], "site": ["A", "a "]})
    for name, force in (("new.csv", ["1.5", "2.0"]), ("new.parquet", [1.5, 2.0])):
        (kept.to_csv if name == "new.csv" else kept.to_parquet)(tmp_path / name, index=False)
        rows, index, owners = predict.read_rows(tmp_path / name, joined, "machines")
        found, _, _ = predict.label(tmp_path / name, rows, index, joined, owners, "heat,force,site")
        assert rows["heat"].tolist() == ["1", "2"]
        assert found[["heat", "site"]].to_numpy().tolist() == kept[["heat", "site"]].to_numpy().tolist()
        assert found["force"].tolist() == force


@pytest.mark.slow
def test_the_output_has_the_kept_columns_and_each_class(tmp_path: Path):
    decided = ServedModels(SCHEMA, MODELS[:1], {"A": 0, "B": 0}, Threshold("bad", 0.5))
    found, _ = labelled(tmp_path, decided, "id")
    each = ["probability_bad", "probability_good"]
    assert [*found] == ["id", "site", "label", "probability", *each, "threshold", "predicted_as"]
    assert found["site"].tolist() == ["A", "C", "B", ""]
    assert found.index.tolist() == [1, 2, 3, 4]
    assert found.index.name == "row"
    each = found[each].to_numpy()
    np.testing.assert_allclose(each.sum(1), 1, rtol=1e-6)
    assert np.array_equal(found["probability"], each[np.arange(4), (found["label"] == "good").to_numpy().astype(int)])
    assert [*labelled(tmp_path, SHARED)[0]][:3] == ["site", "label", "probability"]
    by_row = replace(decided, schema=replace(SCHEMA, device="row"))
    assert [*labelled(tmp_path, by_row, text=ROWS.replace("site", "row"))[0]][:2] == ["device", "label"]


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        ("id,line", "--keep = id,line: no column 'line'; the table has: id, site, heat, force, label"),
        ("label", "--keep = label: the predictions have a column 'label' of their own"),
        ("all", "--keep = all: the predictions have a column 'label' of their own"),
    ],
)
def test_columns_that_cannot_be_kept_are_refused(tmp_path: Path, keep: str, said: str):
    with pytest.raises(InputError, match=said):
        labelled(tmp_path, SHARED, keep)


@pytest.mark.slow
def test_all_columns_are_kept_in_their_order(tmp_path: Path):
    found, _ = labelled(tmp_path, SHARED, "all", text=ROWS.replace("label", "was"))
    assert [*found][:6] == ["id", "site", "heat", "force", "was", "label"]


@pytest.mark.slow
def test_unknown_devices_get_the_model_that_all_share(tmp_path: Path):
    found, lines = labelled(tmp_path, SHARED)
    said = "device unknown in training in 2 of 4 rows ('C', no device): predicted by the model that all devices share"
    assert lines == [said]
    assert len(found) == 4


@pytest.mark.slow
def test_unknown_devices_without_a_shared_model_are_left_out(tmp_path: Path):
    """The others are predicted as they would be alone, and a bad cell is named by its row in the file."""
    found, (line,) = labelled(tmp_path, OWN, "id")
    assert line.startswith("device unknown in training in 2 of 4 rows ('C', no device): left out")
    assert found.index.tolist() == [1, 3]
    for row, device in ((1, "A"), (3, "B")):
        alone, _ = labelled(tmp_path, OWN, None, device)
        assert found.loc[row, "probability_bad"] == pytest.approx(alone.loc[row, "probability_bad"], rel=1e-6)
    with pytest.raises(InputError, match="column 'heat', row 3: 'hot' is not a finite number"):
        labelled(tmp_path, OWN, text=ROWS.replace("2.5", "hot"))
    alone = r"add a column 'site', or type --device NAME \(A, B\); for new devices promote a method with one model: fed"
    with pytest.raises(InputError, match=alone):
        labelled(tmp_path, OWN, text="heat,force\n1,2\n")
    with pytest.raises(InputError, match="row 1: 'X': each device has a model of its own; promote a method with one"):
        labelled(tmp_path, OWN, text="site,heat,force\nX,1,2\nY,1,2\n")


# for whom

SITES = {"A": 0.0, "B": 4.0, "C": -4.0, "D": 1.0}
"""The devices, and what fills a missing cell of each."""
FITS = {"shared": Fit((0.25, 0.0)), "devices": {name: Fit((heat, 0.0)) for name, heat in SITES.items()}}
FILLED = ServedModels(replace(SCHEMA, device=None, missing="median", **FITS), MODELS[:1], dict.fromkeys(SITES, 0))
"""Models of a folder with a file for each of four sites: no column names them."""
NEW = "no device given: 24 rows predicted as those of a new device; a column 'device', or --device, says whose they are"


def site_rows(site: str, count: int = 24) -> pd.DataFrame:
    """Return rows of a site, of which a share of its own has no heat."""
    rng = np.random.default_rng(ord(site))
    rows = pd.DataFrame(rng.normal(size=(count, 2)).round(3), columns=["heat", "force"])
    return rows.assign(heat=rows["heat"].mask(rng.random(count) < 0.2 * ("ABCD".index(site) + 1)))


def run(folder: Path, rows: pd.DataFrame | None, device: str | None = None, name: str = "new.csv"):
    """Return the predictions of rows in a file, or of all that is in the folder, and the lines about them."""
    if rows is not None:
        rows.to_csv(folder / name, index=False)
    found, index, owners = predict.read_rows(folder / name if rows is not None else folder, FILLED, "machines", device)
    labels, _, lines = predict.label(folder, found, index, FILLED, owners, None)
    return labels.reset_index(drop=True), lines


@pytest.mark.slow
def test_rows_are_predicted_as_those_of_their_site_however_it_is_said(tmp_path: Path):
    """By --device, a column `device`, one file with rows of all sites, and the names of files, alone or in a folder."""
    (tmp_path / "sites").mkdir()
    wanted = {site: run(tmp_path, site_rows(site), site) for site in SITES}
    assert all(not lines for _, lines in wanted.values())
    for site, (labels, _) in wanted.items():
        for found, lines in (
            run(tmp_path, site_rows(site).assign(device=site)),
            run(tmp_path / "sites", site_rows(site), name=f"{site}.csv"),
        ):
            pd.testing.assert_frame_equal(found, labels)
            assert not lines
        found, lines = run(tmp_path, site_rows(site))
        assert lines == [NEW]
        assert set(found["predicted_as"]) == {"a new device"}
        assert "device" not in found
        gaps = site_rows(site)["heat"].isna()
        assert (found["probability_bad"] != labels["probability_bad"]).tolist() == gaps.tolist()
    together = pd.concat([labels for labels, _ in wanted.values()], ignore_index=True)
    mixed = pd.concat([site_rows(site).assign(device=site) for site in SITES])
    in_files = run(tmp_path / "sites", None)
    site_rows("A").assign(device="A").to_csv(
        tmp_path / "sites" / "A.csv", index=False
    )  # the other files have no column
    for found, lines in (run(tmp_path, mixed), in_files, run(tmp_path / "sites", None)):
        pd.testing.assert_frame_equal(found, together)
        assert not lines


def test_each_file_of_a_folder_says_by_its_own_columns_whose_rows_it_has(tmp_path: Path):
    """By the training data's column, by a column `device`, and by its name; an empty column says nothing."""
    (tmp_path / "1.csv").write_text("heat,force,site\n1,2,B\n1,2,\n")
    (tmp_path / "2.csv").write_text("heat,force,device\n1,2,A\n1,2,B\n")
    (tmp_path / "A.csv").write_text("heat,force\n1,2\n")
    (tmp_path / "B.csv").write_text("heat,force,site,device\n1,2,,\n")
    _, _, owners = predict.read_rows(tmp_path, SHARED, "machines")
    assert owners is not None
    assert owners.tolist() == ["B", "", "A", "B", "A", "B"]


@pytest.mark.slow
def test_a_line_says_by_what_rows_of_new_devices_are_scaled(tmp_path: Path):
    """Each device by its own rows, whatever others are in the file; few rows by those of training."""
    fit = Fit((), (0.0, 0.0), (1.0, 1.0))
    served = replace(SHARED, schema=replace(SCHEMA, own_scale=True, shared=fit, devices={"A": fit, "B": fit}))
    rows = site_rows("A", 24).fillna(0.0)
    tables = {"X": rows, "Y": rows + 9, "Z": rows[:3]}
    found = {}
    for name in ("X", "Y", "Z", "YX", "YZ"):
        text = pd.concat([tables[of].assign(site=of) for of in name]).to_csv(index=False)
        found[name], (line,) = labelled(tmp_path, served, text=text)
        assert line.rpartition("; ")[2] == {
            "Z": "scaled by numbers of all training rows, as fewer than 20 tell no scale",
            "YZ": "scaled by their own rows from 20 rows of a device on, else by numbers of all training rows, as "
            "fewer than 20 tell no scale",
        }.get(name, "scaled by their own rows")
    own, shared = ("a new device, scaled by its own rows",) * 24, ("a new device",) * 3
    assert (*found["YZ"]["predicted_as"],) == own + shared
    answers = {name: of["probability_bad"].to_numpy() for name, of in found.items()}
    assert answers["X"] == pytest.approx(answers["Y"], abs=1e-6)
    assert answers["YX"] == pytest.approx([*answers["Y"], *answers["X"]], abs=1e-6)
    assert answers["YZ"][24:] == pytest.approx(answers["Z"], abs=1e-6)
    line = labelled(tmp_path, served, text=rows.to_csv(index=False))[1][0]
    assert line.endswith("says whose they are; in the column a new name has its rows scaled by themselves")


def test_a_row_of_no_known_device_is_told_from_the_others(tmp_path: Path):
    found, (line,) = run(tmp_path, site_rows("A", 4).assign(device=["A", "X", None, "B"]))
    assert line.startswith("device unknown in training in 2 of 4 rows ('X', no device): predicted by")
    assert found["predicted_as"].tolist() == ["A", "a new device", "a new device", "B"]


def test_how_a_file_was_read_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A stray quote joins rows; points may separate thousands."""
    rows = site_rows("A", 6).assign(remark=["", '"urgent', "", 'later"', "", ""])
    text = ",".join(rows.columns) + "\n" + "".join(",".join(map(str, row)) + "\n" for row in rows.to_numpy())
    (tmp_path / "quote.csv").write_text(text)
    taken, *_ = predict.read_tables(
        tmp_path / "quote.csv", Schema((1,), "float64", ("a", "b"), (Column("heat", "number"),))
    )
    assert len(taken) == 4
    assert "fedcore: read: line breaks in cells of 'remark'" in capsys.readouterr().err


def test_a_folder_names_the_file_of_a_wrong_row(tmp_path: Path):
    site_rows("A").to_csv(tmp_path / "A.csv", index=False)
    site_rows("B").rename(columns={"heat": "hat"}).to_csv(tmp_path / "B.csv", index=False)
    with pytest.raises(InputError, match=r"B\.csv: column 'heat' is not there"):
        run(tmp_path, None)
    with pytest.raises(InputError, match="--device = 'E': no such device; the model knows: A, B, C, D"):
        run(tmp_path, site_rows("A"), "E")
    (tmp_path / "shapes/ok").mkdir(parents=True)
    (tmp_path / "shapes/ok/1.png").touch()
    with pytest.raises(InputError, match=r"predicts rows of a table; \S+shapes has pictures, such as \S+1\.png$"):
        run(tmp_path / "shapes", None)


def test_an_export_without_a_device_names_those_of_the_model(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(predict, "load", lambda model: ("machines-fault", "", SHARED, None))
    monkeypatch.setattr(predict, "enter_project", Path)
    monkeypatch.setattr(predict, "require_extra", lambda extra: None)
    said = r"^--device: name one of A, B, or type --all-devices: fedcore export machines-fault --device A --to m"
    with pytest.raises(InputError, match=said):
        predict.export.callback("machines-fault", None, False, Path("m.onnx"))  # type: ignore[misc]


def test_every_device_is_exported_to_a_file_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Names that differ in signs, or in upper and lower case alone, get a digest."""
    names = ["plant A", "plant-A", "Plant-A", "hall"]
    monkeypatch.setattr(
        predict, "load", lambda model: ("m", "", replace(SHARED, devices=dict.fromkeys(names, 0)), None)
    )
    monkeypatch.setattr(predict, "enter_project", Path)
    monkeypatch.setattr(predict, "require_extra", lambda extra: None)
    written: dict[str, Path] = {}

    def export(served: ServedModels, name: str, path: Path) -> None:
        written[name] = path
        path.touch()

    monkeypatch.setattr("fedcore.api.export.export", export)
    predict.export.callback("m", None, True, tmp_path / "m.onnx")  # type: ignore[misc]
    assert [*written] == names
    assert len({path.name.casefold() for path in written.values()}) == len(names)
    assert written["hall"].name == "m-hall.onnx"


@pytest.mark.slow
def test_pictures_are_their_folders(tmp_path: Path):
    """By folders of devices, one of which may be given alone; scales of each device make a difference."""
    schema = Schema((1, 2, 2), "uint8", ("a", "b"), devices={"A": Fit((), (1.0,) * 4, (2.0,) * 4), "B": Fit()})
    net = nets.net("mlp", shape=(1, 2, 2), classes=2, widths=[16])
    model = Model((nets.init(net, torch.Generator().manual_seed(0)),))
    served = ServedModels(schema, ((model, net),), {"A": 0, "B": 0})
    for site in "ABX":
        (tmp_path / "all" / site).mkdir(parents=True)
        Image.new("L", (2, 2), 90).save(tmp_path / "all" / site / "1.png")
    rows, index, owners = predict.read_rows(tmp_path / "all", served, "m")
    found, _, (line,) = predict.label(tmp_path / "all", rows, index, served, owners, None)
    assert line.startswith("device unknown in training in 1 of 3 rows ('X')")
    assert found["predicted_as"].tolist() == ["A", "B", "a new device"]
    assert found["probability_a"].nunique() == 2
    assert predict.read_rows(tmp_path / "all" / "A", served, "m")[2].tolist() == ["A"]
    assert predict.read_rows(tmp_path / "all" / "X", served, "m")[2] is None
    (tmp_path / "linked" / "A").mkdir(parents=True)
    (tmp_path / "linked" / "A" / "1.png").symlink_to(tmp_path / "all" / "B" / "1.png")
    assert predict.read_rows(tmp_path / "linked", served, "m")[2].tolist() == ["A"]
    unread = (
        ("A/1.heic", "files of other types in folders of pictures (1 .heic)"), ("B/.1.png", None),
        ("B/deep/1.png", "1 pictures that lie deeper, such as B/deep/1.png; put pictures into one folder, or"),
        ("0.png", "4 pictures that lie deeper, such as A/1.png; put pictures into one folder, or"),
    )  # fmt: skip
    for file, said in unread:  # the last is read in place of the others
        (tmp_path / "all" / file).parent.mkdir(exist_ok=True)
        Image.new("L", (2, 2), 90).save(tmp_path / "all" / file, "png")
        rows, index, owners = predict.read_rows(tmp_path / "all", served, "m")
        *_, lines = predict.label(tmp_path / "all", rows, index, served, owners, None)
        assert said is None or any(line.startswith(f"not read: {said}") for line in lines)
        assert sum(line.startswith("not read: ") for line in lines) == 1 + ("deep" in file)


# drift


def drifts(
    folder: Path, reference: Reference | None, shift: float, rows: int = 40, served: ServedModels = SHARED,
    sites: str = "AB",
) -> tuple[bool, list[str]]:  # fmt: skip
    """Compare rows of two sites, whose levels are unequal, with a reference."""
    rng = np.random.default_rng(1)
    lines = [f"{sites[i % 2]},{rng.normal(5 * (i % 2)) + shift:.4f},{rng.normal():.4f}" for i in range(rows)]
    (folder / "new.csv").write_text("\n".join(["site,heat,force", *lines]))
    new, index, owners = predict.read_rows(folder / "new.csv", served, "machines")
    predicted, new, _ = predict.label(folder, new, index, served, owners, None)
    return predict.compare(new, predicted, served, reference, owners)


@pytest.mark.slow
def test_rows_are_compared_with_those_of_training(tmp_path: Path):
    rng = np.random.default_rng(0)
    x = {name: rng.normal((5 * i, 0), 1, (300, 2)).astype(np.float32) for i, name in enumerate("AB")}
    classes = {name: SHARED.labels_of(torch.from_numpy(own), name).numpy() for name, own in x.items()}
    reference = summarise(SCHEMA, x, classes, classes)
    assert drifts(tmp_path, reference, 0.0) == (False, [])
    moved, (line, *_) = drifts(tmp_path, reference, 1.5)
    assert moved
    assert line.startswith("drift: column 'heat' moved in all rows: ")


@pytest.mark.slow
def test_rows_that_are_scaled_by_themselves_are_not_compared(tmp_path: Path):
    """Their level, which is another, is taken away before they are predicted."""
    fit = Fit((), (0.0, 0.0), (1.0, 1.0))
    served = replace(SHARED, schema=replace(SCHEMA, own_scale=True, shared=fit, devices={"A": fit, "B": fit}))
    x = {name: np.random.default_rng(0).normal((5 * i, 0), 1, (300, 2)) for i, name in enumerate("AB")}
    classes = {name: served.labels_of(torch.from_numpy(own), name).numpy() for name, own in x.items()}
    reference, said = (
        summarise(SCHEMA, x, classes, classes),
        "drift not checked: 40 rows, which their own numbers scale",
    )
    assert drifts(tmp_path, reference, 9.0, served=served, sites="XX") == (False, [said])
    moved, lines = drifts(tmp_path, reference, 9.0, 80, served, "AX")
    assert moved
    assert lines[0] == said
    assert lines[1].startswith("drift: column 'heat' moved in all rows: ")


def test_what_cannot_be_compared_is_said(tmp_path: Path):
    moved, (line,) = drifts(tmp_path, None, 9.0)
    assert not moved
    assert line == "drift not checked: this version kept nothing of its training rows"
    few = ["drift not checked: 12 rows, 20 needed"]
    assert drifts(tmp_path, Reference(BinnedRows({})), 9.0, 12) == (False, few)


def test_the_version_that_predicts_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    site_rows("A", 4).assign(device="A").to_csv(tmp_path / "new.csv", index=False)
    monkeypatch.setattr(predict, "enter_project", lambda: None)
    monkeypatch.setattr(predict, "load", lambda wanted: ("m", "m version 2 (fedavg, seed 0)", FILLED, None))
    predict.predict.callback(tmp_path / "new.csv", None, None, None, None, False)
    out, err = capsys.readouterr()
    assert err.splitlines()[0] == "fedcore: predicted by m version 2 (fedavg, seed 0)"
    assert len(out.splitlines()) == 5
