"""The command `fedcore`: help at once, wrong words refused in one line, nothing done outside of a project."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from process_forks import Ended, run_all
from project_params import ROOT

from fedcore import __version__
from fedcore.cli import project
from fedcore.cli.main import COMMANDS, main
from fedcore.cli.project import find_modules_here
from fedcore.cli.show import wrapped
from fedcore.errors import InputError
from fedcore.pipeline.command import CONTINUE

pytestmark = pytest.mark.slow

ASK = """
import json, sys
from fedcore.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as leaving:
    assert not leaving.code
heavy = {"prefect", "mlflow", "torch", "numpy", "pydantic"}
print(json.dumps(sorted(heavy & {*sys.modules})), file=sys.stderr)
"""


def asked(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    call = [sys.executable, "-c", ASK, *words]
    return subprocess.run(call, capture_output=True, text=True, cwd=ROOT, env=environment, check=True)


def test_a_word_of_a_heading_names_the_page(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["docs", "rare"])
    assert "no page 'rare'; pages that name it: metric. " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "line"), [("plan", "stopped"), ("preview", "stopped"), ("run", f"stopped; {CONTINUE}")]
)
def test_only_a_command_that_computes_says_that_steps_are_kept(
    name: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def stop() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedcore.cli.run.enter_project", stop)
    with pytest.raises(SystemExit) as left:
        main([name])
    assert (left.value.code, capsys.readouterr().err) == (130, f"fedcore: {line}\n")


def test_the_plan_of_dvc_names_edits_that_a_study_overrides(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Else an experiment stands in DVC's table with a setting that no run had."""
    monkeypatch.setattr("fedcore.cli.run.enter_project", lambda: None)
    monkeypatch.setattr("fedcore.pipeline.run.outputs.write_plan", lambda: None)
    monkeypatch.setattr("fedcore.config.request.ask", lambda words: words)
    monkeypatch.setattr("fedcore.config.request.unused_settings", lambda *_: iter(["fedavg.rounds = 3: not used"]))
    main(["stage", "plan"])
    assert capsys.readouterr().out == "fedcore: fedavg.rounds = 3: not used\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_at_once(name: str):
    done = asked(name, "--help")
    assert json.loads(done.stderr) == []
    assert f"fedcore {name}" in done.stdout


def test_help_lists_the_commands_and_imports_nothing_heavy():
    done = asked("--help")
    assert json.loads(done.stderr) == []
    listed = [line.split()[0] for line in done.stdout.partition("Commands:")[2].strip().splitlines()]
    assert listed == [name for name in COMMANDS if name != "stage"]
    assert asked().stdout == done.stdout
    assert "..." not in done.stdout.partition("Commands:")[2]


def test_the_version_is_that_of_the_package():
    assert asked("--version").stdout == f"fedcore {__version__}\n"


def test_a_page_is_printed_by_the_last_part_of_its_name():
    assert asked("docs", "baselines").stdout == asked("docs", "methods/baselines").stdout
    assert asked("docs", "undecided.").stdout == asked("docs", "undecided").stdout


def test_the_paragraphs_of_a_page_fit_the_terminal():
    page = "# One\n\nA line\nbroken early, and then one that is `far too long`.\n\n* One\n  entry.\n* Other.\n\n"
    kept = "```\nfedcore run  as it stands, however long\n```\n\n| a table | of a page, however long |\n| --- | --- |\n"
    lines = "# One\n\nA line broken early, and\nthen one that is `far too\nlong`.\n\n* One entry.\n* Other.\n\n"
    assert wrapped(page + kept, 26) == lines + kept


TABLE = ["data.name=table", "data.path=examples/machines.csv", "data.label=fault", "data.device=site"]
WRONG = [
    (["run", "federation.devises=4"], "did you mean federation.devices?"),
    (["run", "data.name=table", "data.path=none.csv", "data.label=y"], "no such file"),
    (["plan", "training.speed=1"], "training.speed: no such key"),
    (["preview", "data.nme=table"], "did you mean data.name?"), (["stage", "date"], "No such command 'date'"),
    (["plan", "code"], "'code': must be key=value, e.g. study=code"), (["plan", "fedavg"], "e.g. method=fedavg"),
    (["plan", "all"], "e.g. training.lr=0.1"), (["plan", "tests/budget.yaml"], "e.g. data.path=tests/budget.yaml"),
    (["plan", "seeds", "=", "[0]"], "'seeds': must be key=value without blanks, e.g. seeds=[0]"),
    (["plan", "data.path=my", "rows.csv"], "a value with blanks in quotes: 'data.path=my rows.csv'"),
    (["plan", "seeds=", "3"], "'3': must be key=value without blanks, e.g. seeds=3"),
    (["docs", "fedasa"], "pages that name it: methods/fedasa, "), (["docs", "code"], "results/code, methods/code, "),
    (["plan", "methods=[mymodule.median]"], "method = 'mymodule.median': did you mean mymodule:median?\n"),
    (["plan", "methods=[fedcore.builders:cal]"], "fedcore.builders has no 'cal'; did you mean call?\n"),
    (["docs", "method"], "pages that name it: adding-a-method, "),
    (["predict", "new.csv", "--device"], "See fedcore predict --help."),
    (["docs", "metrics"], "did you mean metric?"), (["docs", "tables"], "did you mean table?"),
    (["docs", "setings"], "did you mean settings?"), (["docs", "a", "b"], "argument (b); it takes no more. See"),
    (["show", "all"], "unexpected extra argument (all); it takes no name; --history lists the runs. See"),
    (["promote", "a", "3"], "(3); a version is named by --version, a run by --run. See"),
    (["predict", "a", "b"], "(b); a model is named by --model; a path with blanks needs quotes. See"),
    (["init", "a", "b"], "(b); options have dashes: --data, --label, --device; a path with blanks needs quotes. See"),
    (["prune", "30"], "(30); options with a value: --days, --store, --record. See"),
    (["shwo"], "did you mean show?"), (["pre"], "did you mean preview?"), (["plan", "lr = 1"], "fedcore: lr: no"),
    (["prune", "--days", "soon"], "'soon' is not a valid float"),
    (["prune", "--days", "-1"], "--days = -1.0: must be a number from 0"),
    (["prune", "--weeks", "1"], "No such option '--weeks'. See"),
    (["show", "--short"], "No such option '--short'. See"),  # click's own guess is --history
    (["preview", "--seed", "3"], "No such option '--seed'. A setting has no dashes: KEY=VALUE. See"),
    (["plan", "training.lr=0,01"], "training.lr = '0,01': must be a number, with a point"),
]  # fmt: skip


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> list[Ended]:
    """What is said to each, one after another: none of them imports Prefect."""
    commands = [["-m", "fedcore", *words] for words, _ in WRONG]
    return run_all(commands, ROOT, FEDCORE_HOME=str(tmp_path_factory.mktemp("home")))


@pytest.mark.parametrize("number", range(len(WRONG)), ids=lambda number: " ".join(WRONG[number][0]))
def test_a_wrong_command_is_refused_without_waiting_for_prefect(refused: list[Ended], number: int):
    done, said = refused[number], WRONG[number][1]
    assert (done.out, done.code) == ("", 2)
    assert done.err.startswith("fedcore: ")
    assert said in done.err
    assert done.err.count("\n") == 1
    assert not {"prefect", "mlflow"} & done.imported


ARGUMENTS = {
    "predict": ["x.csv"], "stage": ["plan"], "save": ["there"], "restore": ["there"],
    "export": ["x", "--device", "a", "--to", "x.onnx"], "reproduce": ["3fa9c2d1"],
}  # fmt: skip
ANYWHERE = {"init", "docs", "field", "device"}
"""Commands that need no project."""
OF_A_PROJECT = [name for name in COMMANDS if name not in ANYWHERE]


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Ended]]:
    """A folder with a table alone, and what is said to each command there, one after another."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "x.csv").write_text("a\n1\n")
    commands = [["-m", "fedcore", name, *ARGUMENTS.get(name, [])] for name in OF_A_PROJECT]
    said = run_all(commands, folder, FEDCORE_HOME="", PYTHONPATH=str(ROOT))
    return folder, dict(zip(OF_A_PROJECT, said, strict=True))


@pytest.mark.parametrize("name", OF_A_PROJECT)
def test_outside_of_a_project_a_command_says_so_and_creates_nothing(outside: tuple[Path, dict[str, Ended]], name: str):
    folder, said = outside
    assert (said[name].out, said[name].code) == ("", 2)
    assert (
        said[name].err == f"fedcore: {folder}: no project here (no params.yaml); make one with: fedcore init FOLDER\n"
    )
    assert [path.name for path in folder.iterdir()] == ["x.csv"]


WITHOUT = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == sys.argv[1] else find(name, *more)
from fedcore.cli.main import main
main(sys.argv[2:])
"""


@pytest.mark.parametrize(
    ("words", "lacks", "extra"),
    [("run", "prefect", "pipeline"), ("init new", "prefect", "pipeline"),
     ("export m --device a --to a.onnx", "onnxruntime", "export")],
)  # fmt: skip
def test_without_the_extra_one_line_names_it(tmp_path: Path, words: str, lacks: str, extra: str):
    (tmp_path / "params.yaml").write_text("run: {}\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FEDCORE_HOME": ""}
    call = [sys.executable, "-c", WITHOUT, lacks, *words.split()]
    done = subprocess.run(call, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert (done.stdout, done.returncode) == ("", 2)
    install = f"in a clone of fedcore: pip install '.[{extra}]' --constraint constraints.txt"
    assert done.stderr == f"fedcore: {lacks} is not installed; {install}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["params.yaml"]


def test_a_file_here_hides_no_module_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The folder is searched after Python's own modules, and before what is installed."""
    monkeypatch.chdir(tmp_path)
    library = str(Path(os.__file__).parent)
    monkeypatch.setattr(sys, "path", ["/scripts", library, f"{library}/lib-dynload", f"{library}/site-packages"])
    find_modules_here()
    find_modules_here()
    assert sys.path[2:4] == [f"{library}/lib-dynload", str(tmp_path)]
    assert len(sys.path) == 5


def test_tasks_of_another_folder_do_not_hide_edited_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Where PYTHONPATH names a folder with tasks/, these are imported; equal ones do no harm."""
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "other"
    for folder in (Path("tasks"), other / "tasks"):
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("flows", "tasks")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(other)
    found = project.load("tasks")
    assert project.load("tasks") is found
    Path("tasks/fuse.py").touch()
    with pytest.raises(InputError) as refused:
        project.load("tasks")
    assert str(refused.value) == f"{other / 'tasks'} hides this project's tasks/: remove {other} from PYTHONPATH"
    del sys.modules["tasks"]


def test_flows_of_another_version_are_told_in_a_line(monkeypatch: pytest.MonkeyPatch):
    """Whichever module of fedcore they miss; one that another package misses is raised as it is."""

    def missing(name: str) -> ModuleNotFoundError:
        return ModuleNotFoundError(f"No module named {name!r}", name=name)

    for name, kind, said in (
        ("fedcore.pipeline.record.origin", InputError, "are of an earlier version of fedcore"),
        ("flows", InputError, "the project has no such folder"), ("lib", ModuleNotFoundError, "No module named 'lib'"),
    ):  # fmt: skip
        monkeypatch.setattr(project, "import_module", lambda module, name=name: (_ for _ in ()).throw(missing(name)))
        with pytest.raises(kind, match=said):
            project.load("flows.federate")
