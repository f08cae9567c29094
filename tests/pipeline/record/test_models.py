"""Logged models: they predict what was evaluated, need MLflow and PyTorch alone, and refuse wrong rows by name."""

import json
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from importlib.machinery import EXTENSION_SUFFIXES
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedcore import Data, Dataset, InputError, Net, nets, write_weights
from fedcore.api import serving
from fedcore.cli.predict import read_tables
from fedcore.core.evaluation import outputs
from fedcore.data import load
from fedcore.data.drift import from_json
from fedcore.data.encoding import cells, encode
from fedcore.data.pixels import scale
from fedcore.data.prepare import fit_schema
from fedcore.data.schema import MISSING_VALUES, Column, Fit, Schema
from fedcore.execute.accelerator import one_thread
from fedcore.partition import Partition, partition
from fedcore.pipeline.record import models
from fedcore.pipeline.record.result import Result
from fedcore.types.method import Model, Threshold

COLUMNS = (Column("force", "number"), Column("running", "boolean"), Column("kind", "text", ("old", "new")))
SCHEMA = Schema(
    (4,), "float32", ("bad", "good", "worn"), COLUMNS, "fault", "site", "median",
    devices={"A": Fit((1.0, 0, 0, 0), (2.0, 0, 0, 0), (3.0, 1, 1, 1)),
             "B": Fit((5.0, 0, 0, 0), (-7.0, 0, 0, 0), (0.1, 1, 1, 1))},
    shared=Fit((3.0, 0, 0, 0), (1.0, 0, 0, 0), (2.0, 1, 1, 1)),
)  # fmt: skip
SECTIONS: list[dict[str, Any]] = [{"name": "mlp", "widths": [5]}, {"name": "mlp", "widths": [7, 3]}]
NETS: list[Net] = [nets.net(shape=(4,), classes=3, **section) for section in SECTIONS]
ROWS = pd.DataFrame(
    {
        "kind": ["old", "new", "odd", None], "other": 1, "force": [1.5, None, -2.0, 7],
        "running": [True, False, True, True], "site": ["B", "A", "B", "A"],
    },
    index=[10, 11, 12, 13],
)  # fmt: skip
KNOWN = ROWS.replace("odd", "new")


def member(net: int, seed: int) -> dict[str, torch.Tensor]:
    return nets.init(NETS[net], torch.Generator().manual_seed(seed))


OWN = [(Model((member(0, 1),)), 0), (Model((member(1, 2), member(1, 3)), (0.25, 0.75)), 1)]
"""Two devices' models, of unequal nets; the second is an ensemble."""


def saved(folder: Path, found: list[tuple[Model, int]], devices: dict[str, int]) -> serving.ServedModels:
    models.write(folder / "files", SCHEMA, SECTIONS, found, devices)
    return serving.load(folder / "files")


def expected(model: Model, net: Net, rows: pd.DataFrame, device: str | None) -> pd.DataFrame:
    with one_thread():
        found = outputs(model, net, encode(rows, SCHEMA, device))
    names = np.array(SCHEMA.classes, dtype=object)[found.argmax(1).numpy()]
    labels = pd.DataFrame({"label": names, "probability": found.amax(1).exp().numpy()}, index=rows.index)
    unknown = rows["kind"] == "odd"
    return labels.assign(unknown=np.where(unknown, "kind", "")) if unknown.any() else labels


@pytest.mark.slow
def test_each_devices_rows_are_predicted_by_its_model_with_the_same_bits(tmp_path: Path):
    served = saved(tmp_path, OWN, {"A": 0, "B": 1})
    for device, (model, net) in zip("AB", OWN, strict=True):
        mine = ROWS[ROWS["site"] == device]
        known = expected(model, NETS[net], mine, device)
        pd.testing.assert_frame_equal(served.predict(mine.drop(columns="site"), device), known, check_exact=True)
        found = served.predict(ROWS).loc[mine.index, [*known]]
        pd.testing.assert_frame_equal(found, known, check_exact=True)
    assert list(served.predict(ROWS).index) == list(ROWS.index)


def test_a_model_of_all_devices_needs_no_device(tmp_path: Path):
    model = Model((member(0, 5),))
    served = saved(tmp_path, [(model, 0)], {"A": 0, "B": 0})
    known = expected(model, NETS[0], ROWS, None).assign(predicted_as="a new device")
    pd.testing.assert_frame_equal(served.predict(ROWS.drop(columns="site")), known, check_exact=True)
    pd.testing.assert_frame_equal(served.predict(ROWS.assign(site="elsewhere")), known, check_exact=True)


def test_a_blank_before_a_name_is_none_of_its_letters_in_json_and_in_csv(tmp_path: Path):
    server = serving._Pyfunc(saved(tmp_path, OWN, {"A": 0, "B": 1}))
    plain, file = KNOWN[["kind", "force", "running", "site"]].assign(force=1.0).dropna(), tmp_path / "rows.csv"
    known = server.served.predict(plain).reset_index(drop=True)
    blanks = plain.assign(kind=" " + plain["kind"], site="  " + plain["site"])
    cells = [[*map(str, row)] for row in blanks.itertuples(index=False)]
    for form in ("{}", '"{}"'):
        file.write_text("\n".join([",".join(plain), *(",".join(map(form.format, row)) for row in cells)]))
        for rows in (blanks, blanks.to_dict("records"), blanks.astype("category"), read_tables(file, SCHEMA)[0]):
            found = server.predict(rows).reset_index(drop=True)
            pd.testing.assert_frame_equal(found, known, check_exact=True)


def test_many_names_with_blanks_before_them_take_no_square_of_time():
    rows, start = pd.DataFrame({"kind": [f" {number}" for number in range(20_000)]}), time.perf_counter()
    assert serving.without_indent(rows, SCHEMA)["kind"].iloc[-1] == "19999"
    assert time.perf_counter() - start < 10  # 0.1 seconds, not 40


@pytest.mark.parametrize(
    ("rows", "device", "said"),
    [
        (ROWS.rename(columns={"force": "forces"}), None, "column 'force' is not there"),
        (ROWS.assign(force=["1", "2", "x", "3"]), None, "column 'force', row 3: 'x' is not a finite number"),
        (ROWS.assign(force=[1.5, True, 2.0, 3.0]), None, "column 'force', row 2: 'True' is not a finite number"),
        (ROWS, "C", "device = 'C': no such device; the model knows: A, B"),
        (ROWS.assign(site=["A", "C", "B", "A"]), None, "row 2: 'C': each device has a model of its own"),
        (ROWS.drop(columns="site"), ["A", "B"], "device: 2 names for 4 rows; give one for all, or one for each"),
        (
            ROWS.drop(columns="site"),
            None,
            "device: each device has a model of its own; promote a method with one",
        ),
        (np.zeros((2, 4), np.float32), "A", "has no column names"),
    ],
)
@pytest.mark.slow
def test_rows_that_do_not_fit_are_refused_by_name(tmp_path: Path, rows: Any, device: str | None, said: str):
    with pytest.raises(InputError, match=said.replace("(", r"\(")):
        saved(tmp_path, OWN, {"A": 0, "B": 1}).predict(rows, device)


BARE = """
import sys
import time

class Blocked:
    def find_spec(self, name, path=None, target=None):
        known = ("sklearn", "scipy", "prefect", "dvc", "cvxpy", "ot")
        if name.startswith("fedcore.pipeline") or name.partition(".")[0] in known:
            raise ImportError(name)

sys.meta_path.insert(0, Blocked())
import json, mlflow, pandas as pd
from fastapi.testclient import TestClient
from mlflow.pyfunc import scoring_server
model = mlflow.pyfunc.load_model(sys.argv[1])
rows = pd.read_json(sys.argv[2], orient="split")
force, site, device, *requests = json.loads(sys.argv[3])
print(model.predict(rows).to_json(orient="split", double_precision=15))
print(model.predict(rows.drop(columns=site), params={"device": device}).to_json(orient="split", double_precision=15))
print(model.predict(rows.rename(columns={site: "device"})).to_json(orient="split", double_precision=15))
print(model.predict(rows.assign(**{force: 7})).to_json(orient="split", double_precision=15))
server = TestClient(scoring_server.init(model))
for kind, content in requests:
    answer = server.post("/invocations", content=content.encode(), headers={"Content-Type": kind})
    print(json.dumps([answer.status_code, answer.json()]))
scoring_server._predict(sys.argv[1], sys.argv[4], None, "csv")
print()
try:
    model.predict(rows.rename(columns={force: "forces"}))
except Exception as error:
    print(error)
import fedcore
print(fedcore.__file__)
"""
FORCE, KIND, SITE = "b%20 {0}", "ü 🙂", "si te\u202e"
A, B = "s{0}", "x\ny"
HARD = replace(
    SCHEMA, columns=(replace(COLUMNS[0], name=FORCE), COLUMNS[1], Column(KIND, "text", ("NA", "None"))), label='fa"ult',
    missing_values=("?",),
    device=SITE, devices={A: SCHEMA.devices["A"], B: SCHEMA.devices["B"]}, classes=("../no", "🙂 {1}", "worn"),
)  # fmt: skip
"""Names that are hard for MLflow's signatures, for JSON, CSV and HTTP."""
JSON, SECRET = "application/json", "271828"
WANTED = f"the request must have columns '{FORCE}' (number), 'running' (boolean), '{KIND}' (text), as JSON"


def row(**changed: Any) -> str:
    """A request of one row."""
    cells = {FORCE: 1.5, "running": True, KIND: "NA", SITE: A, **changed}
    return json.dumps({"dataframe_records": [{name: cell for name, cell in cells.items() if cell != "left out"}]})


NO_MODEL = (
    "row 1: each device has a model of its own; promote a method with one model for all (fedcore promote MODEL --list)"
    f", or name one of: {A}, x\\ny"
)
REFUSED = [
    (JSON, row(**{FORCE: f"{SECRET}x"}), f"column '{FORCE}', row 1: must be a finite number"),
    (JSON, row(running=int(SECRET)), "column 'running', row 1: must be True or False"),
    (JSON, row(**{SITE: SECRET}), NO_MODEL),
    (JSON, row(**{KIND: float(SECRET)}), WANTED),
    (JSON, row(**{FORCE: "left out", SECRET: SECRET}), WANTED),
    (JSON, f'{{"dataframe_split": {SECRET}', WANTED),
    (JSON, f'{{"instances": [{SECRET}]}}', NO_MODEL),
    (JSON, f'{{"dataframe_records": [["{SECRET}"], {SECRET}]}}', WANTED),
    (JSON, json.dumps({**json.loads(row()), "params": {"device": SECRET}}),
     f"device: no such device; the model knows: {A}, x\\ny"),
    (JSON, json.dumps({**json.loads(row()), "params": {"device": [SECRET]}}), WANTED),
    ("text/csv", f"{KIND},{FORCE},running,{SITE}\nNA,{SECRET}x,True,{A}\n",
     f"column '{FORCE}', row 1: must be a finite number"),
    ("application/vnd.apache.parquet", SECRET, WANTED),
]  # fmt: skip
"""Requests over HTTP, and how they are refused: the kind of content, the content, the line."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_mlflow_loads_a_model_where_nothing_of_the_project_is(tmp_path: Path):
    """In another process, without the pipeline's packages; then with the code in it, and over HTTP, without values."""
    import mlflow

    models.write(tmp_path / "files", HARD, SECTIONS, OWN, {A: 0, B: 1})
    served = serving.load(tmp_path / "files")
    places, needed = models.write_code(tmp_path / "code", SECTIONS)
    mlflow.pyfunc.save_model(
        path=str(tmp_path / "model"), loader_module=models.LOADER, data_path=str(tmp_path / "files"),
        code_paths=places, signature=models.signature(HARD, own_models=True), pip_requirements=needed,
    )  # fmt: skip
    assert not [path for path in (tmp_path / "model").rglob("*") if path.suffix in (".pkl", ".pth", ".pt", ".pickle")]
    hard = ROWS.rename(columns={"force": FORCE, "kind": KIND, "site": SITE}).assign(**{SITE: [B, A, B, A]})
    hard[KIND] = hard[KIND].replace({"old": "NA", "new": "None"})  # which pandas would take for missing cells
    hard.astype({KIND: object}).to_json(tmp_path / "rows.json", orient="split")
    split = json.dumps({"dataframe_split": hard.to_dict(orient="split")}).replace("NaN", "null")
    csv = hard.to_csv(index=False)
    (tmp_path / "rows.txt").write_text(csv)
    requests = [(JSON, split), ("text/csv", csv), *(request[:2] for request in REFUSED)]
    call = [sys.executable, "-W", "ignore", "-c", BARE, str(tmp_path / "model"), str(tmp_path / "rows.json")]
    call += [json.dumps([FORCE, SITE, B, *requests]), str(tmp_path / "rows.txt")]
    done = subprocess.run(call, capture_output=True, text=True, cwd=tmp_path, env={"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    whole = hard.assign(**{FORCE: 7})  # which MLflow would refuse as a double
    predictions = [
        served.predict(rows, device) for rows, device in ((hard, None), (hard, B), (hard, None), (whole, None))
    ]
    for text, known in zip(lines, predictions, strict=False):
        said = json.loads(text)
        assert said["columns"] == ["label", "probability", "unknown"]
        assert [label for label, *_ in said["data"]] == known["label"].tolist()
        assert [np.float32(p) for _, p, _ in said["data"]] == known["probability"].tolist()
        assert [column for *_, column in said["data"]] == ["", "", KIND, ""]
    by_json, by_csv, *refused, by_file = map(json.loads, lines[4 : 5 + len(requests)])
    for status, answer in (by_json, by_csv, (200, by_file)):
        found = pd.DataFrame(answer["predictions"])
        assert (status, found["label"].tolist()) == (200, predictions[0]["label"].tolist())
        assert found["probability"].tolist() == pytest.approx(predictions[0]["probability"].tolist(), rel=1e-6)
    for (status, answer), (_, _, line) in zip(refused, REFUSED, strict=True):
        assert (status, answer["message"], answer.keys() & {"stack_trace"}) == (400, line, set())
    assert SECRET not in done.stdout + done.stderr
    assert f"column '{FORCE}' is not there" in " ".join(lines[5 + len(requests) :])
    taken = mlflow.pyfunc.load_model(str(tmp_path / "model")).metadata.signature.inputs.inputs
    assert [(column.name, column.type.name, column.required) for column in taken] == [
        (SITE, "string", True), (FORCE, "double", True), ("running", "boolean", True), (KIND, "string", True),
    ]  # fmt: skip
    assert Path(lines[-1]).is_relative_to(tmp_path / "model")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_logging_a_model_asks_for_no_installed_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """MLflow would list all their files; what the model needs stands in its files all the same."""
    import mlflow

    asked: list[str] = []
    monkeypatch.setattr("importlib_metadata.version", lambda name: asked.append(name) or "0")
    with models.quiet():
        models.write(tmp_path / "files" / models.FOLDER, SCHEMA, SECTIONS, OWN, {"A": 0, "B": 1})
        what = models.log_arguments(tmp_path / "files")
        mlflow.pyfunc.save_model(path=str(tmp_path / "model"), **what)
    assert asked == []
    logged = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    assert len(logged.predict(logged.input_example)) == 1  # it names a device, which this model needs
    assert f"torch=={torch.__version__.partition('+')[0]}" in (tmp_path / "model" / "requirements.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("join_names", "markers"), [(False, MISSING_VALUES), (False, ("?",)), (True, ("?", "-9"))])
def test_mlflow_reads_csv_as_fedcore_predict_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, join_names: bool, markers: tuple[str, ...]
):
    """Its own reader takes 01 for 1 and NA for a missing cell, and of more cells than names the first for an index."""
    kinds, sites = ["01", "1", "NA", "None", "true", "n a", "null", "1.50"] * 3, ["01", "1", "True"] * 8
    cells = [f"{kinds[i]},{i - 9},{'TRUE' if i % 5 else 'false'},{sites[i]}" for i in range(24)]
    header, table = "kind,force,running,site", tmp_path / "t.csv"
    table.write_text("\n".join([f"{header},y", *(f"{row},{i % 2}" for i, row in enumerate(cells))]))
    settings: dict[str, Any] = {"missing": "median", "missing_values": markers, "join_names": join_names}
    data = load("table", path=table, label="y", device="site", categorical=["kind"], **settings)
    own_rows = {name: np.flatnonzero(np.array(data.device) == name) for name in sorted(set(data.device or ()))}
    schema = fit_schema(data, own_rows, "common")
    net = nets.net(shape=schema.shape, classes=2, **SECTIONS[0])
    own = [(Model((nets.init(net, torch.Generator().manual_seed(i)),)), 0) for i in range(len(own_rows))]
    models.write(tmp_path / "files", schema, SECTIONS[:1], own, {name: i for i, name in enumerate(own_rows)})

    server = SimpleNamespace(invocations=print, _parse_json_data=print)
    server.parse_csv_input = lambda csv_input, schema=None: pd.read_csv(csv_input)
    monkeypatch.setitem(sys.modules, "mlflow.pyfunc.scoring_server", server)
    model, file = serving._load_pyfunc(str(tmp_path / "files")), tmp_path / "rows.csv"
    taken, others = (SimpleNamespace(input_names=partial(str.split, names, ",")) for names in (header, "kind"))
    for separator in (", ", ";"):
        text = "\n".join([header, *cells, "01,?,true,01"]).replace(",", separator)
        file.write_text(text)
        known = model.served.predict(read_tables(file, schema)[0]).reset_index(drop=True)
        for read in (server.parse_csv_input(str(file)), server.parse_csv_input(StringIO(text), schema=taken)):
            pd.testing.assert_frame_equal(model.predict(read), known, check_exact=True)
    with pytest.raises(InputError, match="cannot be read as"):
        server.parse_csv_input(StringIO("\n".join([header, *(f"{row}," for row in cells)])))
    assert server.parse_csv_input(StringIO("kind\n01\n"), others)["kind"].tolist() == [1]


MODULE = """
from torch import nn

class Mine(nn.Sequential):
    def __init__(self, shape, classes, width=3):
        super().__init__(nn.Linear(shape[0], width), nn.ReLU(), nn.Linear(width, classes))
"""


@pytest.mark.slow
def test_a_net_of_ones_own_brings_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "own_nets_of_a_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    section = {"name": "own_nets_of_a_test:Mine", "width": 4}
    places, needed = models.write_code(tmp_path / "code", [section, {"name": "mlp"}])
    assert places == [str(tmp_path / "code" / "fedcore"), str(tmp_path / "own_nets_of_a_test.py")]
    assert needed[0] == f"torch=={torch.__version__.partition('+')[0]}"
    net = nets.net(shape=(4,), classes=3, **section)
    model = Model((nets.init(net, torch.Generator()),))
    models.write(tmp_path / "files", SCHEMA, [section], [(model, 0)], {"A": 0})
    rows = ROWS.assign(site="A")
    known = expected(model, net, rows, "A")
    pd.testing.assert_frame_equal(serving.load(tmp_path / "files").predict(rows), known, check_exact=True)


@pytest.mark.parametrize("place", ["fast_{}{}", "lib_{}/fast{}"])
def test_a_version_keeps_compiled_modules_too(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(tmp_path / "home"))
    file = tmp_path / "home" / place.format(tmp_path.name, EXTENSION_SUFFIXES[0])
    file.parent.mkdir(parents=True)
    file.write_bytes(b"\0")
    top = file.relative_to(tmp_path / "home").parts[0].partition(".")[0]
    (tmp_path / "home" / f"net_{tmp_path.name}.py").write_text(f"import {top}\n")
    places, _ = models.write_code(tmp_path / "code", [{"name": f"net_{tmp_path.name}:Mine"}])
    kept = [of for at in map(Path, places[1:]) for of in (at, *at.rglob("*"))]
    assert file.name in {of.name for of in kept}


HELPED = """
import importlib
from torch import nn
{}

class Mine(nn.Linear):
    def __init__(self, shape, classes):
        super().__init__(shape[0], classes)

    def forward(self, x):
        return super().forward(x) * SLOPE
"""


@pytest.mark.slow
@pytest.mark.parametrize("helper", ["acts_{}.py", "lib_{}/acts.py", "lib_{}/__init__.py", "lib_{}/deep/acts.py"])
@pytest.mark.parametrize("how", ["from {} import SLOPE", "SLOPE = importlib.import_module('{}').SLOPE",
                                 "SLOPE = __import__('{}', fromlist=['']).SLOPE"])  # fmt: skip
@pytest.mark.parametrize("where", ["nets_{}.py", "nets_{}/mine.py"])
def test_a_version_keeps_the_helpers_that_it_was_trained_with(where: str, how: str, helper: str, tmp_path, monkeypatch):
    home = tmp_path / "home"
    net, file = (home / of.format(tmp_path.name) for of in (where, helper))
    monkeypatch.syspath_prepend(str(home))
    module = {of: ".".join(of.relative_to(home).with_suffix("").parts).removesuffix(".__init__") for of in (net, file)}
    for path, text in ((net, HELPED.format(how.format(module[file]))), (file, "SLOPE = 1.0")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (net.parent / "broken.py").write_text("print 1")
    section = {"name": f"{module[net]}:Mine"}
    model = Model((nets.init(nets.net(shape=(4,), classes=3, **section), torch.Generator()),))
    models.write(tmp_path / "model" / "data" / models.FOLDER, SCHEMA, [section], [(model, 0)], {"A": 0})
    known = serving.load(tmp_path / "model" / "data" / models.FOLDER).predict(ROWS.assign(site="A"))
    for place in map(Path, models.write_code(tmp_path / "links", [section])[0][1:]):
        copy = shutil.copytree if place.is_dir() else shutil.copy
        (tmp_path / "model" / "code").mkdir(exist_ok=True)
        copy(place, tmp_path / "model" / "code" / place.name)
    file.write_text("SLOPE = -2.0")
    for name in [of for of in sys.modules if tmp_path.name in of]:  # as another process begins
        del sys.modules[name]
    found = models.load(tmp_path / "model").predict(ROWS.assign(site="A"))
    pd.testing.assert_frame_equal(found, known, check_exact=True)


@pytest.mark.parametrize("what", ["frozen", "persistent=False", "file"])
@pytest.mark.slow
def test_a_net_with_other_frozen_tensors_or_files_is_refused(what: str, tmp_path: Path, monkeypatch):
    file = tmp_path / "numbers.txt"
    table = {
        "frozen": "nn.Parameter(numbers, requires_grad=False)", "file": "float(numbers[0])",
        "persistent=False": "numbers",
    }[what]  # fmt: skip
    keep = "self.register_buffer('table', numbers, persistent=False)" if "persist" in what else f"self.table = {table}"
    (tmp_path / f"fixed_nets_of_{what[:4]}.py").write_text(
        f"""
from pathlib import Path

import torch
from torch import nn

class Mine(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        numbers = torch.tensor([float(word) for word in Path({str(file)!r}).read_text().split()])
        {keep}
        self.fc = nn.Linear(shape[0], classes)

    def forward(self, x):
        return self.fc(x * self.table)
"""
    )
    file.write_text("1 2 3 4")
    monkeypatch.syspath_prepend(str(tmp_path))
    section = {"name": f"fixed_nets_of_{what[:4]}:Mine"}
    net = nets.net(shape=(4,), classes=3, **section)
    model = Model((nets.init(net, torch.Generator().manual_seed(1)),))
    models.write(tmp_path / "files", SCHEMA, [section], [(model, 0)], {"A": 0})
    rows = ROWS.assign(site="A")
    known = expected(model, net, rows, "A")
    pd.testing.assert_frame_equal(serving.load(tmp_path / "files").predict(rows), known, check_exact=True)
    file.write_text("2 2 3 4")
    with pytest.raises(InputError, match=rf"net fixed_nets_of_{what[:4]}:Mine: files .* are others than they were"):
        serving.load(tmp_path / "files")


READS = {
    "a file at import": ("SLOPE = float(Path({here!r}, 'slope.txt').read_text())", "SLOPE"),
    "a file in forward": ("", "float(Path({here!r}, 'slope.txt').read_text())"),
    "an environment variable": ("", "float(os.environ['SLOPE'])"),
    "a computed import": ("", "importlib.import_module('_'.join(['slope', {name!r}])).SLOPE"),
    "another package": ("", "getattr(torch, 'slope_of_a_test')"),
}


@pytest.mark.parametrize("what", READS)
def test_a_version_whose_code_reads_something_else_today_is_refused(what: str, tmp_path: Path, monkeypatch):
    def give(value: float) -> None:
        (tmp_path / "slope.txt").write_text(f"{value}")
        (tmp_path / f"slope_{name}.py").write_text(f"SLOPE = {value}  # {'-' * int(value)}")
        monkeypatch.setenv("SLOPE", f"{value}")
        monkeypatch.setattr(torch, "slope_of_a_test", value, raising=False)
        for module in [of for of in sys.modules if name in of]:  # as another process begins
            del sys.modules[module]

    name = tmp_path.name
    start, slope = (text.format(here=str(tmp_path), name=name) for text in READS[what])
    lines = f"import os, torch\nfrom pathlib import Path\n{start}"
    (tmp_path / f"reads_{name}.py").write_text(HELPED.replace("SLOPE", slope).format(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    give(1)
    section = {"name": f"reads_{name}:Mine"}
    found = [(Model((nets.init(nets.net(shape=(4,), classes=3, **section), torch.Generator()),)), 0)] * 2
    models.write(tmp_path / "files", SCHEMA, [section], found, {"A": 0, "B": 1})
    known = serving.load(tmp_path / "files").predict(ROWS)
    give(1.00001)  # as another machine rounds
    serving.load(tmp_path / "files")
    give(3)
    with pytest.raises(InputError, match=f"net reads_{name}:Mine: files .* are others than they were in training"):
        serving.load(tmp_path / "files")
    card = json.loads((tmp_path / "files" / serving.MODELS).read_text())
    assert all(len(entry.pop("answers")) == 36 for entry in card["models"])  # as versions of before have none
    (tmp_path / "files" / serving.MODELS).write_text(json.dumps(card))
    assert not serving.load(tmp_path / "files").predict(ROWS).equals(known)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_a_version_predicts_by_its_own_code_whatever_stands_there_today(tmp_path: Path, monkeypatch):
    """Its module, and the one that this imports, are changed after it was logged, and then gone."""
    import mlflow

    own, helper = tmp_path / "edited_nets_of_a_test.py", tmp_path / "edited_helper_of_a_test.py"
    own.write_text(MODULE.replace("nn.ReLU()", "act()").replace("\n", "\nfrom edited_helper_of_a_test import act\n", 1))
    helper.write_text("from torch import nn\n\nact = nn.ReLU\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    section, rows = {"name": "edited_nets_of_a_test:Mine", "width": 4}, ROWS.assign(site="A")
    net = nets.net(shape=(4,), classes=3, **section)
    model = Model((nets.init(net, torch.Generator().manual_seed(1)),))
    known = expected(model, net, rows, "A")
    models.write(tmp_path / "files" / models.FOLDER, SCHEMA, [section], [(model, 0)], {"A": 0})
    with models.quiet():
        mlflow.pyfunc.save_model(path=str(tmp_path / "model"), **models.log_arguments(tmp_path / "files"))
    today = sys.modules["edited_nets_of_a_test"]
    helper.write_text("from torch import nn\n\nact = nn.Tanh\n")
    for _ in range(2):
        served = models.load(tmp_path / "model")
        pd.testing.assert_frame_equal(served.predict(rows), known, check_exact=True)
        assert sys.modules["edited_nets_of_a_test"] is today
        own.unlink(missing_ok=True)
    monkeypatch.delitem(sys.modules, "edited_nets_of_a_test")
    monkeypatch.delitem(sys.modules, "edited_helper_of_a_test")
    pd.testing.assert_frame_equal(models.load(tmp_path / "model").predict(rows), known, check_exact=True)
    assert "edited_nets_of_a_test" not in sys.modules


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_a_model_that_is_loaded_first_changes_no_net_of_the_project(tmp_path: Path, monkeypatch):
    """As in a promotion, which compares with the champion and then makes the final fit: its config has the content."""
    import mlflow

    (tmp_path / "promoted_nets_of_a_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    section = {"name": "promoted_nets_of_a_test:Mine", "width": 4}
    net = nets.net(shape=(4,), classes=3, **section)
    models.write(
        tmp_path / "files" / models.FOLDER, SCHEMA, [section], [(Model((nets.init(net, torch.Generator()),)), 0)],
        {"A": 0},
    )  # fmt: skip
    with models.quiet():
        mlflow.pyfunc.save_model(path=str(tmp_path / "model"), **models.log_arguments(tmp_path / "files"))
    monkeypatch.delitem(sys.modules, "promoted_nets_of_a_test")  # as in a process that begins
    monkeypatch.setattr("fedcore.nets.custom._CLASSES", {})
    ((_, loaded),) = models.load(tmp_path / "model").models
    assert nets.net(shape=(4,), classes=3, **section).content == net.content != loaded.content


def test_a_frozen_part_travels_with_the_model(tmp_path: Path):
    """The file that it came from is needed no more."""
    whole = nets.net("mlp", shape=(6,), classes=len(SCHEMA.classes), widths=[3])
    write_weights(nets.init(whole, torch.Generator().manual_seed(3)), tmp_path / "base")
    section = {"name": "mlp", "widths": [3], "weights": str(tmp_path / "base"), "frozen": True, "rank": 1}
    net = nets.net(shape=(6,), classes=len(SCHEMA.classes), **section)
    model = Model((nets.init(net, torch.Generator().manual_seed(4)),))
    schema = Schema((6,), "float32", SCHEMA.classes)
    models.write(tmp_path / "files", schema, [section], [(model, 0)], {"A": 0})
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(5))
    known = outputs(model, net, x).exp().amax(1).detach().numpy()
    (tmp_path / "base").unlink()
    found = serving.load(tmp_path / "files").predict(x.numpy())
    np.testing.assert_allclose(found["probability"], known, rtol=1e-6)


def test_arrays_are_predicted_as_they_were_loaded(tmp_path: Path):
    schema = replace(Schema((1, 2, 2), "uint8", ("a", "b")), devices={"A": Fit()})
    net = nets.net("mlp", shape=(1, 2, 2), classes=2, widths=[3])
    model = Model((nets.init(net, torch.Generator()),))
    models.write(tmp_path / "files", schema, [{"name": "mlp", "widths": [3]}], [(model, 0)], {"A": 0})
    x = np.arange(12, dtype=np.uint8).reshape(3, 1, 2, 2)
    found = serving.load(tmp_path / "files").predict(x)
    with one_thread():
        known = outputs(model, net, torch.from_numpy(x) / 255)
    np.testing.assert_array_equal(found["probability"], known.amax(1).exp().numpy())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["inputs", "instances"])
def test_fractions_that_bytes_cannot_hold_are_refused(kind: str):
    """MLflow would make 0 of each pixel that is divided by 255."""
    from mlflow.pyfunc import scoring_server as server

    schema = Schema((1, 2, 2), "uint8", ("a", "b"))
    signature = models.signature(schema)
    about: Any = SimpleNamespace(
        flavors={"python_function": {"loader_module": models.LOADER}}, _is_signature_from_type_hint=lambda: False,
        get_params_schema=lambda: None,
    )  # fmt: skip
    parse = serving._with_all_formats(server._parse_json_data)
    x = np.arange(12, dtype=np.uint8).reshape(3, 1, 2, 2)
    np.testing.assert_array_equal(parse(json.dumps({kind: x.tolist()}), about, signature.inputs).data, x)
    for wrong in (x / 255, x + 0.9, x.astype(int) + 250):
        with pytest.raises((InputError, server.MlflowException)):
            parse(json.dumps({kind: wrong.tolist()}), about, signature.inputs)


def test_all_that_a_model_holds_is_packed():
    """Nested tuples, lists and dicts, nothing, and a net; but no function of another package."""
    tensors: dict[str, torch.Tensor] = {}
    net = nets.net("cnn", shape=(1, 8, 8), classes=3)
    value = {"a": ((1.5, 2), [None, "x"], {}), "net": net, "model": Model((member(0, 1), member(0, 2)), (0.5, 0.5))}
    packed = json.loads(json.dumps(serving.pack(value, "0", tensors)))
    found = serving.unpack(packed, tensors)
    assert found["a"] == value["a"]
    assert found["model"].weights == (0.5, 0.5)
    assert [list(params) for params in found["model"].members] == [list(member(0, 1))] * 2
    assert nets.shapes(found["net"]) == nets.shapes(net)
    with pytest.raises(ValueError, match="not a net of the library: os:system"):
        serving.unpack({"net": "os:system", "arguments": [["ls"], {"dict": {}}]}, {})
    with pytest.raises(TypeError, match="cannot hold set"):
        serving.pack({1}, "0", {})


def test_a_threshold_decides_between_two_classes(tmp_path: Path):
    two = replace(SCHEMA, classes=("bad", "good"))
    net = nets.net(shape=(4,), classes=2, **SECTIONS[0])
    model = Model((nets.init(net, torch.Generator().manual_seed(4)),))
    with one_thread():
        p = outputs(model, net, encode(ROWS, two, None)).exp()[:, 0].numpy()
    value = float(np.sort(p)[1])  # three rows reach it, one of them exactly
    models.write(tmp_path / "files", two, SECTIONS, [(model, 0)], {}, Threshold("bad", value))
    found = serving.load(tmp_path / "files").predict(ROWS).drop(columns=["unknown", "predicted_as"])
    assert (found["label"] == "bad").tolist() == (p >= value).tolist()
    np.testing.assert_allclose(found["probability"], np.where(p >= value, p, 1 - p), rtol=1e-6)
    assert found["threshold"].tolist() == [value] * 4
    served = serving.load(tmp_path / "files")
    served.predict(ROWS, every_class=True).to_csv(tmp_path / "found.csv")
    written = pd.read_csv(tmp_path / "found.csv")
    assert (written["probability_bad"] == written["threshold"]).sum() == 1
    assert ((written["probability_bad"] >= written["threshold"]) == (written["label"] == "bad")).all()
    assert models.signature(two, True).outputs.input_names() == [*found]


def test_costs_decide_between_classes(tmp_path: Path):
    """The probability is that of the predicted class, which is not always the most probable."""
    costs = ((0.0, 1.0, 9.0), (2.0, 0.0, 9.0), (3.0, 1.0, 0.0))
    net = nets.net(shape=(4,), classes=3, **SECTIONS[0])
    model = Model((nets.init(net, torch.Generator().manual_seed(4)),))
    models.write(tmp_path / "files", SCHEMA, SECTIONS, [(model, 0)], {}, costs=costs)
    served = serving.load(tmp_path / "files")
    found = served.predict(ROWS, every_class=True)
    p = found[served.class_columns].to_numpy()
    chosen = (p @ np.array(costs)).argmin(1)
    assert found["label"].tolist() == np.array(SCHEMA.classes)[chosen].tolist()
    np.testing.assert_array_equal(found["probability"], p[np.arange(4), chosen])
    assert (chosen != p.argmax(1)).any()


@pytest.mark.slow
def test_a_reference_counts_the_training_rows_of_each_device(tmp_path: Path):
    """Labels of labelled rows alone; predictions are those of the same rows in a frame."""
    served = saved(tmp_path, OWN, {"A": 0, "B": 1})
    rows = pd.concat([ROWS] * 3, ignore_index=True).sort_values("site", ignore_index=True)
    data = Dataset(Data(cells(rows, COLUMNS), torch.arange(12) % 3), None, SCHEMA.classes, schema=SCHEMA)
    none = np.zeros(0, np.int64)
    index = {"A": np.arange(6), "B": np.arange(6, 12)}
    parts = {name: {"train": own[:4], "unlabelled": own[4:], "val": none, "test": none} for name, own in index.items()}
    made = Partition.of(parts, none)
    models.write_reference(tmp_path / "files", data, made)
    found = from_json((tmp_path / "files" / models.REFERENCE).read_text())
    for name, own in index.items():
        of, label = found.devices[name], served.predict(rows.iloc[own], name)["label"]
        assert of.labels["label"].counts == tuple(np.bincount(data.train.y[own[:4]], minlength=3).tolist())
        assert of.predicted["label"].counts == tuple(int((label == one).sum()) for one in SCHEMA.classes)
        assert of.columns["force"].gaps == int(rows["force"].iloc[own].isna().sum())
        assert of.columns["kind"].counts == tuple(
            int((rows["kind"].iloc[own] == kind).sum()) for kind in ("old", "new")
        )
    assert sum(found.everyone.labels["label"].counts) == 8
    assert models.load_reference(tmp_path) is None


@pytest.mark.parametrize("scaling", ["none", "standard"])
def test_a_model_of_standardised_images_takes_no_bytes(scaling: str):
    """How they were standardised is not stored; a schema of pictures of one's own says it."""
    x, y = torch.arange(160, dtype=torch.uint8).view(40, 1, 2, 2), torch.arange(40) % 2
    data = scale(Dataset(Data(x, y), None, ("a", "b")), scaling)
    parts = partition(data, name="iid", devices=2, seed=0)
    setting = SimpleNamespace(data={"scaling": scaling}, federation={"scale": "none"})
    asked: Any = SimpleNamespace(setting=setting)
    assert Result.schema(asked, data, parts).standardised == (scaling == "standard")
    own = replace(data, schema=Schema((1, 2, 2), "uint8", ("a", "b")))
    assert not Result.schema(asked, own, parts).standardised


@pytest.mark.parametrize("mean", [100.0, 1e9])
@pytest.mark.slow
def test_a_number_is_predicted_in_its_unit(tmp_path: Path, mean: float):
    """A mean of models, standardised by a mean and 20: predictions, drift's bins and MLflow's signature."""
    schema = replace(SCHEMA, classes=("hours",), task="regression", label_scale=(mean, 20.0))
    section = {"name": "mlp", "widths": [5]}
    net = nets.net(shape=(4,), classes=1, **section)
    params = [nets.init(net, torch.Generator().manual_seed(seed)) for seed in (1, 2)]
    models.write(tmp_path / "files", schema, [section], [(Model(tuple(params), (0.25, 0.75)), 0)], {"A": 0, "B": 0})
    served = serving.load(tmp_path / "files")
    found = served.predict(KNOWN, "A", every_class=True)
    x = encode(KNOWN, schema, "A")
    one, other = (outputs(Model((of,)), net, x, served.task).numpy()[:, 0] for of in params)
    np.testing.assert_allclose(found["label"] - mean, 20 * (0.25 * one + 0.75 * other), rtol=1e-5, atol=1e-4)
    pd.testing.assert_frame_equal(
        served.predict(KNOWN.iloc[:1], "A"), served.predict(KNOWN, ["A", "B", "B", "B"]).iloc[:1]
    )
    assert [*found] == served.output_columns == ["label"]
    data = Dataset(
        Data(cells(ROWS, COLUMNS), torch.tensor([90.0, 95.0, 120.0, 100.0])), None, ("hours",), schema=schema
    )
    parts = {
        "train": np.array([0, 1, 3]), "val": np.array([], int), "test": np.array([2]), "unlabelled": np.array([], int),
    }  # fmt: skip
    models.write_reference(tmp_path / "files", data, Partition.of({"A": parts}, np.array([], int)))
    reference = from_json((tmp_path / "files" / models.REFERENCE).read_bytes())
    label, prediction = reference.everyone.labels["label"], reference.everyone.predicted["label"]
    assert (label.edges[0], label.edges[-1], sum(label.counts), sum(prediction.counts)) == (90.0, 100.0, 3, 3)
    (output,) = models.signature(schema).outputs.to_dict()
    assert (output["name"], output["type"]) == ("label", "double")


@pytest.mark.slow
def test_several_labels_are_predicted_with_their_probabilities(tmp_path: Path):
    """A mean of models: predictions, drift's counts and MLflow's signature."""
    schema = replace(SCHEMA, classes=("leak", "wear"), task="multilabel", label=None)
    section = {"name": "mlp", "widths": [5]}
    net = nets.net(shape=(4,), classes=2, **section)
    params = [nets.init(net, torch.Generator().manual_seed(seed)) for seed in (1, 2)]
    models.write(tmp_path / "files", schema, [section], [(Model(tuple(params), (0.25, 0.75)), 0)], {"A": 0, "B": 0})
    served = serving.load(tmp_path / "files")
    found = served.predict(KNOWN)
    assert [*found] == served.output_columns == ["label_leak", "label_wear", "probability_leak", "probability_wear"]
    for device in "AB":
        x = encode(own := KNOWN[KNOWN["site"] == device], schema, device)
        one, other = (outputs(Model((of,)), net, x, served.task).sigmoid().numpy() for of in params)
        mean = 0.25 * one + 0.75 * other
        np.testing.assert_allclose(found.loc[own.index].iloc[:, 2:], mean, rtol=1e-5)
        np.testing.assert_array_equal(found.loc[own.index].iloc[:, :2], mean > 0.5)
    data = Dataset(
        Data(cells(ROWS, COLUMNS), torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 0]])),
        None,
        schema.classes,
        schema=schema,
    )
    none = np.array([], int)
    parts = {"train": np.array([0, 1, 3]), "val": none, "test": np.array([2]), "unlabelled": none}
    models.write_reference(tmp_path / "files", data, Partition.of({"A": parts}, none))
    reference = from_json((tmp_path / "files" / models.REFERENCE).read_bytes()).everyone
    assert {name: of.counts for name, of in reference.labels.items()} == {"leak": (1, 2), "wear": (3, 0)}
    assert [sum(of.counts) for of in reference.predicted.values()] == [3, 3]
    types = [one["type"] for one in models.signature(schema).outputs.to_dict()]
    assert types == ["long", "long", "float", "float"]


def test_each_step_is_predicted_with_its_probability(tmp_path: Path):
    """Predictions, a reference without labels, and MLflow's signature."""
    schema = Schema((3,), "float32", ("a", "b"), task="sequence_labelling", devices={"A": Fit(), "B": Fit()})
    section = {"name": "lstm", "vocabulary": 4, "embedding": 2, "hidden": 3}
    net = nets.net(shape=(3,), classes=2, per_step=True, **section)
    params = [nets.init(net, torch.Generator().manual_seed(seed)) for seed in (1, 2)]
    own = [(Model((of,)), 0) for of in params]
    models.write(tmp_path / "files", schema, [section], own, {"A": 0, "B": 1})
    served = serving.load(tmp_path / "files")
    x = np.array([[0, 1, 2], [3, 2, 1]], dtype=np.float32)
    found = served.predict(x, "B")
    assert [*found] == served.output_columns == [f"{of}_{t}" for of in ("label", "probability") for t in range(3)]
    said = outputs(Model((params[1],)), net, torch.from_numpy(x), served.task).exp()
    np.testing.assert_allclose(found.iloc[:, 3:], said.max(-1).values, rtol=1e-6)
    assert found.iloc[:, :3].to_numpy().tolist() == np.array(["a", "b"])[said.argmax(-1)].tolist()
    data = Dataset(Data(torch.from_numpy(x), torch.tensor([[0, 1, -1], [1, 1, 0]])), None, schema.classes)
    none = np.array([], int)
    parts = {"train": np.arange(2), "val": none, "test": none, "unlabelled": none}
    models.write_reference(tmp_path / "files", data, Partition.of({"A": parts}, none))
    reference = from_json((tmp_path / "files" / models.REFERENCE).read_bytes()).everyone
    assert (reference.labels, reference.predicted) == ({}, {})
    types = [one["type"] for one in models.signature(schema).outputs.to_dict()]
    assert types == ["string"] * 3 + ["float"] * 3
