"""Bad input on the command line: cases, and a program that runs all of them in one process.

python -m refusals   in a project's folder; reads cases as JSON, writes what was said to each as a line of JSON
"""

import io
import json
import os
import runpy
import shutil
import struct
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from project import Project, Said, read_params, write_params
from scipy.io import savemat


@dataclass(frozen=True)
class Case:
    """A command.

    module: the sub-command. words: what is typed after it. says: what the one line must name. files: written (in a
    folder for this case) before it is typed there, beside params.yaml; `change` changes that. late: whether it takes
    reading data to know.
    """

    module: str
    words: str
    says: tuple[str, ...]
    files: dict[str, bytes]
    change: Callable[[dict[str, Any]], object] | None = None
    late: bool = False


def federate(words: str, *says: str, change: Callable[[dict[str, Any]], object] | None = None, **files: bytes) -> Case:
    return Case("run", words, says, files, change)


def late(words: str, *says: str, **files: bytes) -> Case:
    return Case("run", f"{words}", says, files, late=True)


def idx(shape: tuple[int, ...], cut: int = 0) -> bytes:
    """Return an idx file of zeros, some bytes short."""
    size = 1
    for length in shape:
        size *= length
    return bytes((0, 0, 8, len(shape))) + struct.pack(f">{len(shape)}I", *shape) + bytes(size - cut)


ROWS = ["0,0.5,a,train", "1,0.25,b,train", "2,0.5,a,val", "3,0.25,b,test"] * 8
HEADER = "u,v,y,part"


def csv(*more: str) -> bytes:
    return "\n".join([HEADER, *ROWS, *more, ""]).encode()


MNIST = {
    "sets/MNIST/raw/train-images-idx3-ubyte": idx((20, 28, 28)),
    "sets/MNIST/raw/train-labels-idx1-ubyte": idx((20,)),
    "sets/MNIST/raw/t10k-images-idx3-ubyte": idx((10, 28, 28), cut=100),
    "sets/MNIST/raw/t10k-labels-idx1-ubyte": idx((10,)),
}
TABLE = "data.name=table data.path=t.csv data.label=y federation.devices=2 federation.min_size=1 "


def mat(*columns: str, samples: int = 2000) -> bytes:
    """Return a MATLAB file with these columns of noise."""
    file = io.BytesIO()
    savemat(file, {name: np.random.default_rng(0).standard_normal((samples, 1)) for name in columns})
    return file.getvalue()


BEARINGS = (
    "data.name=bearings data.train=1 data.test=1 data.server=1 federation.partition=by_device federation.min_size=1 "
    "federation.val=0 federation.shared_test=0 net.name=cells method=fedasa "
)
CWRU = BEARINGS.replace("bearings", "cwru") + "data.root=sets data.download=false data.window=64 "

CASES: dict[str, Case] = {
    "unknown key": federate("federation.devises=4", "federation.devises", "did you mean federation.devices?"),
    "unknown section": federate("trainng.lr=0.1", "trainng.lr", "did you mean training?"),
    "unknown key of the request": federate("sizes=small", "sizes: no such key"),
    "a key below a value": federate("run.size.big=1", "run.size", "no keys below"),
    "a section set to a value": federate("federation=4", "federation = 4", "devices"),
    "text for a number": federate("federation.devices=many", "federation.devices = 'many'", "whole number"),
    "half an example per step": federate("training.batch=1.5", "training.batch", "1.5", "whole number"),
    "a word for a rate": federate("training.lr=fast", "training.lr", "'fast'"),
    "a word for a list": federate("net.widths=wide", "net.widths", "'wide'"),
    "nothing for a number": federate("federation.alpha=", "federation.alpha = None"),
    "alpha of zero": federate("federation.alpha=0", "federation.alpha = 0", "above 0"),
    "alpha below zero": federate("federation.alpha=-0.5", "federation.alpha = -0.5", "above 0"),
    "alpha not a number": federate("federation.alpha=.nan", "federation.alpha"),
    "a negative share": federate("federation.val=-0.1", "federation.val = -0.1"),
    "no device": federate("federation.devices=0", "federation.devices = 0"),
    "a rate of zero": federate("training.lr=0", "training.lr", "0"),
    "an infinite rate": federate("training.lr=.inf", "training.lr", "inf"),
    "an epoch too few": federate("training.epochs=0", "training.epochs", "0"),
    "unknown optimiser": federate("training.optimiser=adm", "training.optimiser", "'adm'", "adam"),
    "unknown initialisation": federate("training.shared_init=same", "training.shared_init = 'same'", "true or false"),
    "a key of an earlier version": federate("training.init=common", "it is now called training.shared_init"),
    "unknown dataset": federate("data.name=minst", "data.name = 'minst'", "did you mean mnist?"),
    "unknown net": federate("net.name=mpl", "net.name = 'mpl'", "did you mean mlp?"),
    "unknown method": federate("method=code", "code", "code_ot"),
    "unknown study": federate("study=cod", "cod", "did you mean code?"),
    "a study that is a path": federate("study=../../zz", "'../../zz'", "code"),
    "a method of one's own that is not there": federate("method=mymethods:median", "mymethods", "imported"),
    "unknown size": federate("size=tiny", "tiny", "small, paper"),
    "unknown partition": federate("federation.partition=dirichle", "dirichle", "dirichlet"),
    "unknown scale": federate("federation.scale=global", "federation.scale = 'global'", "device"),
    "unknown solver": federate("code_ot.solver=newtn", "code_ot.solver = 'newtn'", "newton"),
    "an order that is neither": federate("code_ot.p=3", "code_ot.p = 3", "1 or 2"),
    "a share of devices above one": federate("fedavg.fraction=1.5", "fedavg.fraction = 1.5", "1"),
    "a setting that a method has not": federate("lmf.order=ascending", "lmf.order"),
    "a seed that is a word": federate("seed=first", "seed = 'first'", "whole number"),
    "a seed below zero": federate("seed=-1", "seed", "-1"),
    "no seeds": federate("seeds=[]", "seeds"),
    "a word without =": federate("federation.devices", "'federation.devices'", "key=value"),
    "a word without a key": federate("=3", "key=value"),
    "not YAML": federate("net.widths=[16", "net.widths", "[16"),
    "params.yaml malformed": federate("", "params.yaml", "YAML", **{"params.yaml": b"run: [\n"}),
    "params.yaml not text": federate("", "params.yaml", **{"params.yaml": b"\xff\xfe\x00\x80"}),
    "params.yaml a list": federate("", "params.yaml", "sections", **{"params.yaml": b"- run\n"}),
    "params.yaml empty": federate("", "params.yaml", **{"params.yaml": b""}),
    "params.yaml without a section": federate("", "federation", "missing", change=lambda p: p.pop("federation")),
    "params.yaml without a key": federate("", "net.name = None", "mlp", change=lambda p: p["net"].pop("name")),
    "a key that stands twice": federate("", "params.yaml", "size", **{"params.yaml": b"run: {size: a, size: b}\n"}),
    "a study in a file that is not YAML": federate(
        "", "my_data.yaml", "YAML", **{"studies/my_data.yaml": b"mine: [\n"}
    ),
    "a study that stands twice": federate(
        "", "my_data.yaml", "code is also in", **{"studies/my_data.yaml": b"code: {}\n"}
    ),
    "a claim of no study": federate("", "'cod'", "mean code?", **{"claims/mine.yaml": b"cod: []\n"}),
    "a key of claims that is not known": federate(
        "",
        "claims: code.vaild: no such key (allowed: valid, ceiling, converged, claims)",
        **{"claims/mine.yaml": b"code: {vaild: []}\n"},
    ),
    "params.yaml with a key too many": federate(
        "", "training.speed", "no such key", change=lambda p: p["training"].update(speed=1)
    ),
    "params.yaml with a section too many": federate("", "trainings", change=lambda p: p.update(trainings={"lr": 1})),
    "a section that is a value": federate("", "training", change=lambda p: p.update(training=3)),
    "a method's section that is a value": federate("", "lmf", change=lambda p: p.update(lmf=3)),
    "a study without methods": federate(
        "", "studies.code.methods", change=lambda p: p["studies"]["code"].update(methods={})
    ),
    "a grid that is no list": federate(
        "",
        "studies.code.sizes.small.grid",
        change=lambda p: p["studies"]["code"]["sizes"].update(small={"grid": {"federation.alpha": 1.0}}),
    ),
    "a study that sets an unknown key": federate(
        "",
        "federation.alhpa",
        "did you mean federation.alpha?",
        change=lambda p: p["studies"]["code"]["sizes"].update(small={"set": {"federation.alhpa": 1.0}}),
    ),
    "a sensor's place that does not exist": federate(BEARINGS + "data.locations=[A,D]", "data.locations", "'D'", "'C'"),
    "no sensor": federate(BEARINGS + "data.locations=[]", "data.locations = []", "at least 1"),
    "an odd window": federate(BEARINGS + "data.window=1023", "data.window = 1023", "multiple of 2"),
    "a window longer than the simulator's record": federate(
        BEARINGS + "data.window=121858", "data.window = 121858", "at most 121856"
    ),
    "no training window": federate(BEARINGS.replace("train=1", "train=0"), "data.train = 0", "at least 1"),
    "unknown scaling of spectra": federate(CWRU + "data.scaling=rsm", "data.scaling = 'rsm'", "'rms'"),
    "a rate of the simulator": federate(BEARINGS + "data.rate=6000", "data.rate", "no such key"),
    "a budget that is a word": federate(BEARINGS + "fedasa.budget=small", "fedasa.budget = 'small'", "be a number"),
    "a budget of nothing": federate(BEARINGS + "fedasa.budget=[1000,0]", "fedasa.budget", "above 0"),
    "an alignment that is not one": federate(BEARINGS + "fedasa.distance=cosine", "fedasa.distance", "'unit_norm'"),
    "a budget list of the wrong length": late(
        BEARINGS + "fedasa.budget=[100000,100000,100000]", "fedasa.budget: 3 numbers for 12 devices (A0, A1,"
    ),
    "a budget for no device": late(BEARINGS + 'fedasa.budget={"D0":50000}', "fedasa.budget: D0: not a device", "C3"),
    "a budget below the stem": late(
        BEARINGS + "data.locations=[B] fedasa.budget=[41856,41855,50000,50000]",
        "fedasa.budget: B1 has 41855 bytes a round, the least that fits is 41856",
    ),
    "a sensor that no file has": late(
        CWRU + "data.locations=[A,C]", "data.locations = ['A', 'C']", "no file", "C (columns X..._BA_time)",
        **{"sets/CWRU/105.mat": mat("X105_DE_time", "X105_FE_time")},
    ),
    "a window longer than a record": late(
        CWRU.replace("window=64", "window=4096"),
        "data.window = 4096",
        "CWRU/105.mat, DE,",
        "2000 samples",
        **{"sets/CWRU/105.mat": mat("X105_DE_time")},
    ),
    "fewer windows than asked for": late(
        CWRU.replace("train=1", "train=80"), "80 + 1 + 1", "31 windows", **{"sets/CWRU/105.mat": mat("X105_DE_time")}
    ),
    "a record at 48,000 Hz": late(
        CWRU,
        "CWRU/105.mat has none of X105_DE_time",
        "X109_DE_time",
        "48,000",
        **{"sets/CWRU/105.mat": mat("X109_DE_time", "X109_FE_time")},
    ),
    "a record at 48,000 Hz, renamed": late(
        CWRU, "CWRU/105.mat", "243938 samples", "48,000", **{"sets/CWRU/105.mat": mat("X105_DE_time", samples=243_938)}
    ),
    "costs of links below zero": federate("method=st_lf st_lf.costs=[[0,1],[-1,0]]", "st_lf.costs", "-1", "0"),
    "costs of links that are no matrix": federate("method=st_lf st_lf.costs=[1,2]", "st_lf.costs", "list"),
    "costs of links of the wrong shape": late(
        "method=st_lf federation.devices=3 st_lf.costs=[[0,1],[1,0]]",
        "st_lf.costs: shape (2, 2)",
        "3 devices",
        "(3, 3)",
    ),
    "no labelled device": late(
        "method=st_lf federation.devices=4 federation.unlabelled=0.9", "federation.unlabelled = 0.9", "4 devices"
    ),
    "a device without data": federate(
        "data.name=table data.path=devices data.label=y federation.partition=by_device method=st_lf",
        "devices/b.csv",
        "no rows",
        **{"devices/a.csv": csv(), "devices/b.csv": (HEADER + "\n").encode()},
    ),
    "more devices than examples": late("federation.devices=5000", "federation.devices = 5000", "143"),
    "data that are not there": late(
        "data.name=mnist data.root=nowhere data.download=false", "data.root = nowhere", "missing"
    ),
    "data that are cut off": late(
        "data.name=mnist data.root=sets data.download=false", "t10k-images-idx3-ubyte", "bytes", **MNIST
    ),
    "a table that is not there": federate(
        "data.name=table data.path=t.csv data.label=y", "data.path", "t.csv", "no such"
    ),
    "a table without a label": federate("data.name=table data.path=t.csv", "data.label", "must be set"),
    "a label column that is not there": federate(
        TABLE.replace("label=y", "label=z"), "'z'", "u, v, y, part", **{"t.csv": csv()}),
    "a cell without a number": federate(TABLE, "'u'", "row 33", "missing", **{"t.csv": csv(",0.5,a,train")}),
    "a table that is no text": federate(TABLE, "t.csv", "cannot be read", **{"t.csv": bytes(range(128, 256)) * 9}),
    "a label that no device has": federate(
        TABLE + "data.split=part federation.val=0", "label 'c'", **{"t.csv": csv("4,0.5,c,test")}
    ),
    "a rate that no training survives": late("method=lmf training.lr=1.0e+38", "not finite", "learning rate"),
    "nothing prepared": late("study=code seed=0 prepared=true", "dataset.safetensors", "dvc repro"),
    "an unknown study to prepare": Case(
        "stage", "data", ("run.studies", "cod", "mean code?"), {}, lambda p: p["run"].update(studies=["cod"])
    ),
    "a stage that is not one": Case("stage", "date", ("No such command 'date'",), {}),
    "days that are none": Case("prune", "--days soon", ("--days", "'soon'", "float"), {}),
    "days before the first": Case("prune", "--days=-1", ("--days", "-1", "number"), {}),
    "an option that prune does not have": Case("prune", "--weeks 1", ("--weeks",), {}),
    "nothing to compare": Case("stage", "compare", ("dvc repro",), {}),
    "nothing to show": Case("show", "", ("dvc repro",), {}),
    "a summary alone to show": Case(
        "show", "", ("pipeline/compare/table.parquet", "dvc repro"), {"results/summary.csv": b"method\n"}
    ),
}  # fmt: skip

NOWHERE = "http://127.0.0.1:9/api"
"""No server: what is refused here is refused before anything is started or computed."""

CASES_FILE, ANSWERS_FILE = "cases.json", "answers.jsonl"

TYPED = ("a cell without a number",)
"""Cases that are also typed one by one, each into a process of its own."""


def ask(project: Project) -> dict[str, Said]:
    """Type every case in the project; the ones that are typed by themselves have a name with "typed" before it."""
    cases = {name: {**asdict(case), "folder": place(project, name, case), "change": None, "files": None}
             for name, case in CASES.items()}  # fmt: skip
    answers: dict[str, Said] = {}
    for late, api in ((False, NOWHERE), (True, project.api or "")):
        mine = {name: case for name, case in cases.items() if case["late"] == late}
        answers |= type_all(project, mine, FEDCORE_HOME=str(project.folder), PREFECT_API_URL=api)
    for name in TYPED:
        here = Project(Path(cases[name]["folder"]), project.api, project.folder, project.password)
        words = CASES[name].words.split()
        answers[f"typed: {name}"] = here.run(
            "fedcore", CASES[name].module, *words, code=None, whole=True, FEDCORE_HOME=str(project.folder)
        )
    return answers


def type_all(project: Project, cases: dict[str, dict[str, Any]], **environment: str) -> dict[str, Said]:
    """Type cases one after another in one process; returns the answers that there are, even if it did not end well."""
    (project.folder / CASES_FILE).write_text(json.dumps(cases))
    (project.folder / ANSWERS_FILE).write_text("")
    with suppress(AssertionError):  # it hung
        project.run("python", "-m", "refusals", code=None, **environment)
    lines = (project.folder / ANSWERS_FILE).read_text().splitlines()
    return {name: Said(**said) for name, said in map(json.loads, lines)}


def place(project: Project, name: str, case: Case) -> str:
    """Write a case's files; returns the folder."""
    folder = project.folder / "cases" / name.replace(" ", "_")
    if case.change:
        params = read_params(project.folder)
        case.change(params)
        write_params(folder, params)
    else:
        shutil.copytree(project.folder / "studies", folder / "studies")
        shutil.copyfile(project.folder / "params.yaml", folder / "params.yaml")
    for path, content in case.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return str(folder)


def type_in(case: dict[str, Any]) -> dict[str, Any]:
    """Run a case as the command `fedcore` does; returns its exit code and all that came out meanwhile."""
    os.chdir(case["folder"])
    sys.argv = ["fedcore", case["module"], *case["words"].split()]
    saved = os.dup(1), os.dup(2)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        sys.stdout.flush(), sys.stderr.flush()
        os.dup2(out.fileno(), 1), os.dup2(err.fileno(), 2)
        code = 0
        try:
            runpy.run_module("fedcore", run_name="__main__", alter_sys=True)
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 1
        except Exception:
            code = 1
            traceback.print_exc()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os.dup2(saved[0], 1), os.dup2(saved[1], 2)
            for descriptor in saved:
                os.close(descriptor)
        out.seek(0), err.seek(0)
        return {"code": code, "out": out.read().decode(), "err": err.read().decode()}


if __name__ == "__main__":
    home = Path.cwd()
    for name, case in json.loads((home / CASES_FILE).read_text()).items():
        answer = type_in(case)
        with (home / ANSWERS_FILE).open("a") as answers:
            answers.write(json.dumps([name, answer]) + "\n")
