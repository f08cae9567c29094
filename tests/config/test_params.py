"""params.yaml and the files of studies and claims: how they are read, changed and refused."""

import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from dvc.utils.hydra import apply_overrides
from federations import NETS
from project_params import PARAMS, ROOT, ask, copied, points, refusal
from ruamel.yaml import YAML

import fedcore as fc
from fedcore import InputError, Training
from fedcore.builders import RENAMED
from fedcore.config import nightly
from fedcore.config.files import parse_value, read_mapping
from fedcore.config.methods import MethodConfig, configure
from fedcore.config.params import REQUIRED, change, parse, read
from fedcore.config.studies import Run, find_study, run_section
from fedcore.methods import METHODS
from fedcore.pipeline.cache.keys import Digest


def project(folder: Path, **files: str | bytes) -> Path:
    """Copy the parameters, and write some files of it anew: `studies__mine` is studies/mine.yaml."""
    shutil.copyfile(ROOT / "params.yaml", folder / "params.yaml")
    for name in ("studies", "claims"):
        shutil.copytree(ROOT / name, folder / name)
    for name, content in files.items():
        path = folder / f"{name.replace('__', '/')}.yaml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def test_section_run_has_all_of_its_settings():
    """Those of other sections are known by the functions that take them."""
    params = read(ROOT)
    assert set(Run.model_fields) == set(params["run"])
    costs = change(params, parse(["run.costs={fault: {ok: 50}, ok: {fault: 1}}"]))["run"]["costs"]
    assert costs == {"fault": {"ok": 50}, "ok": {"fault": 1}}


def test_the_files_are_short():
    assert len((ROOT / "params.yaml").read_text().splitlines()) <= 250
    assert len((ROOT / "dvc.lock").read_text().splitlines()) <= 1500


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("code_ot.reg=0.1", "  reg: 0.1"),
        ("training.optimiser=sgd", "  optimiser: sgd             # adam, adamw, sgd"),
        ("run.workers=2", "  workers: 2                 # worker processes; empty: one per core"),
        ("federation.alpha=1.0e+20", "  alpha: 1e+20               # dirichlet, few_classes, device_dirichlet,"),
        ("federation.devices=16", None),
    ],
)
def test_dvc_sets_a_parameter_and_leaves_the_layout(tmp_path: Path, override: str, line: str | None):
    """`dvc exp run -S` writes the whole file anew; a value that it already has changes nothing."""
    path = project(tmp_path) / "params.yaml"
    before = path.read_text().splitlines()
    apply_overrides(path, [override])
    after = path.read_text().splitlines()
    changed = [new for old, new in zip(before, after, strict=True) if old != new]
    assert len(changed) == (line is not None)
    assert all(new.startswith(str(line)) for new in changed)
    assert read(tmp_path) == change(PARAMS, parse([override]))


@pytest.mark.parametrize(
    ("override", "lines"),
    [
        ("+methods.rounds=3", ["methods:", "  rounds: 3"]),
        ("+half_best.rank_by=test", ["half_best:", "  rank_by: test"]),
        ('+data.exclude=["1.10"]', ["  exclude:", "  - '1.10'"]),
        ("+code_ot.training.lr=0.5", ["  training:", "    lr: 0.5"]),
    ],
)
@pytest.mark.slow
def test_dvc_adds_a_parameter_that_only_a_signature_has(tmp_path: Path, override: str, lines: list[str]):
    path = project(tmp_path) / "params.yaml"
    before = path.read_text().splitlines()
    apply_overrides(path, [override])
    after = path.read_text().splitlines()
    assert [line for line in after if line not in before or line == "  training:"] == lines
    assert len(after) <= len(before) + len(lines)
    section = override[1:].partition(".")[0]
    assert read(tmp_path)[section] == change(PARAMS, parse([override[1:]]))[section]


@pytest.mark.slow
def test_dvc_sets_a_list_and_leaves_the_comments(tmp_path: Path):
    path = project(tmp_path) / "params.yaml"
    before = path.read_text().splitlines()
    apply_overrides(path, ["net.widths=[16,8]"])
    assert [line for line in path.read_text().splitlines() if line not in before] == ["  - 16", "  - 8"]


# words


@pytest.mark.parametrize(
    ("word", "value"),
    [("3", 3), ("0.5", 0.5), ("1.0e-3", 0.001), ("1e-07", 1e-7), ("true", True), ("null", None), ("", None),
     ("a b", "a b"), ("[16, 8]", [16, 8]), ("{a: 1}", {"a": 1}), ("a=b", "a=b"), ("1e", "1e")],
)  # fmt: skip
def test_values_of_arguments_are_yaml(word: str, value: Any):
    assert parse([f"some.key={word}"]) == {"some.key": value}


@pytest.mark.parametrize("word", ["federation.devices", "", "=3", "a=[1", "a={", "a={b: 1, b: 2}"])
def test_an_argument_without_a_value_is_refused(word: str):
    refusal(parse, [word])


# keys


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("federation.devises", "federation.devises: no such key; did you mean federation.devices?"),
        ("fedration.devices", "fedration.devices: no such key; did you mean federation?"),
        ("federation.zzz", "federation.zzz: no such key (allowed: partition, devices, "),
        ("data.rot", "data.rot: no such key; did you mean data.root?"),
        ("federation.alpha.beta", "federation.alpha.beta: alpha has no keys below it"),
        ("lmf.order", "lmf.order: no such key; did you mean code_ot.order? (allowed: "),
        ("fedavg.mu", "fedavg.mu: no such key; did you mean fedprox.mu or moon.mu? (allowed: "),
        ("lr", "lr: no such key; did you mean training.lr?"),
        ("sedes", "sedes: no such key; did you mean seeds?"),
        ("half_best.rank_bi", "half_best.rank_bi: no such key; did you mean half_best.rank_by?"),
        ("dfl.training.momentun", "dfl.training.momentun: no such key; did you mean dfl.training.momentum?"),
        ("methods.round", "methods.round: no such key; did you mean methods.rounds?"),
        ("run.evry", "run.evry: no such key; did you mean run.every?"),
        ("fedprox.batch", "fedprox.batch: no such key; did you mean fedprox.training.batch?"),
        ("budget", "budget: no such key; did you mean fedasa.budget?"),
        ("metric", "metric: no such key; did you mean run.metric?"),
        ("rounds", "rounds: no such key; did you mean methods.rounds?"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_one(key: str, says: str):
    line = refusal(change, PARAMS, {key: 1})
    assert line.startswith(says) if "(allowed: " in says else line == says


def test_a_change_leaves_the_rest(params: dict[str, Any]):
    after = change(params, {"federation.devices": 3, "data.root": "here", "net.widths": [4]})
    assert params == PARAMS
    assert after["federation"] == {**params["federation"], "devices": 3}
    assert after["data"]["root"] == "here"
    assert {key for key in after if after[key] != params[key]} == {"federation", "data", "net"}


def test_a_key_that_only_a_signature_has_can_be_changed(params: dict[str, Any]):
    assert change(params, {"data.device": "who"})["data"]["device"] == "who"
    assert "half_best" not in params
    assert change(params, {"half_best.rank_by": "test"})["half_best"] == {"rank_by": "test"}
    assert change(params, {"scaffold.training.momentum": 0.5})["scaffold"] == {"training": {"momentum": 0.5}}


def test_a_section_cannot_become_a_value():
    assert "set a key below it: partition, devices" in refusal(change, PARAMS, {"federation": 3})
    assert "set a key below it: rank_by" in refusal(change, PARAMS, {"half_best": 3})


# settings of every method


def rounds(params: dict[str, Any], **changes: Any) -> dict[str, Any]:
    (point,) = points(params, **changes)
    return {row.label: row.settings.get("rounds") for row in point.methods}


def test_a_shared_setting_reaches_every_method_that_takes_it(params: dict[str, Any]):
    rows: dict[str, Any] = {"fedavg": {}, "dfl": {}, "lmf": {}, "ten": {"method": "fedavg", "rounds": 10}}
    assert rounds(ask(params, rows)) == {"fedavg": 1, "dfl": 10, "lmf": 1, "ten": 10}
    assert rounds(params, methods__rounds=3) == {"fedavg": 3, "dfl": 3, "lmf": 3, "ten": 10}


def test_a_later_change_wins_over_a_shared_setting(params: dict[str, Any]):
    """In one place a method's own setting wins."""
    ask(params, {"fedavg": {}, "dfl": {}}, set={"methods.rounds": 3, "dfl.rounds": 4})
    assert rounds(params) == {"fedavg": 3, "dfl": 4}
    assert rounds(params, fedavg__rounds=5) == {"fedavg": 5, "dfl": 4}
    assert rounds(params, methods__rounds=6) == {"fedavg": 6, "dfl": 6}
    params["methods"] = {"rounds": 7}
    params["dfl"]["rounds"] = 8
    assert rounds(ask(params, {"fedavg": {}, "dfl": {}})) == {"fedavg": 7, "dfl": 8}


def test_a_wrong_shared_setting_is_refused(params: dict[str, Any]):
    ask(params, {"local_only": {}})
    assert "methods.rounds = 'many'" in refusal(points, params, methods__rounds="many")
    params["methods"] = {"surplus": 1}
    assert "methods.surplus" in refusal(points, params)


# the files


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"run: [\n", "not YAML"), (b"\xff\xfe\x00", "not YAML"), (b"- run\n", "sections"), (b"", "sections"),
        (b"run: {}\n", "missing"), (b"runn: {}\n", "did you mean run?"), (b"run: 3\n", "params.yaml: run = 3: must"),
        (b"studies: {}\n", "studies: no such section"), (b"run: {}\nrun: {}\n", "run"),
        (b"ignore: [a]\n", "params.yaml: ignore: no such section; did you mean data.ignore?"),
        (b"run: {metric: f1}\nmetric: f1\n", "metric: no such section; did you mean run.metric?"),
        (b"run: {size: small, size: paper}\n", "size"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_parameter_file_is_refused(tmp_path: Path, content: bytes, says: str):
    assert says in refusal(read, project(tmp_path, params=content))


def test_a_folder_in_the_place_of_the_parameters_is_refused(tmp_path: Path):
    (project(tmp_path) / "params.yaml").unlink()
    (tmp_path / "params.yaml").mkdir()
    assert "params.yaml: cannot be read (Is a directory)" in refusal(read, tmp_path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"st_lf__phi_s": False}, "st_lf.phi_s = False: must be a number"),
        ({"training__steps": True}, "training.steps = True: must be a number"),
        ({"code_ot__max_iterations": "1"}, "code_ot.max_iterations = '1': must be a number"),
        ({"net__widths": [16, True]}, "net.widths.1 = True: must be a number"),
        ({"training__lr": float("inf")}, "training.lr = inf: must be a finite number"),
        ({"federation__devices": 2**63}, "must be a number below 2^63"),
        ({"data__name": "mnist", "data__download": "no"}, "data.download = 'no': must be true or false"),
    ],
)
def test_a_value_of_another_kind_is_not_taken(changes: dict[str, Any], says: str):
    methods: dict[str, Any] = {"st_lf": {}, "code_ot": {}, "fedavg": {}}
    assert says in refusal(points, ask(copied(), methods), **changes)


def test_a_grid_of_a_million_points_is_refused_at_once():
    grid = {f"training.{key}": list(range(1, 101)) for key in ("epochs", "batch", "lr")}
    said = refusal(points, ask(copied(), {"lmf": {}}, grid=grid))
    assert said == "studies.asked.sizes.small.grid: has 1000000 settings, at most 2000 are allowed"


def test_a_missing_file_is_refused(tmp_path: Path):
    assert "no such file" in refusal(read, tmp_path)


ONE = "title: '?'\n  methods: {lmf: {}}\n  sizes: {small: {}}\n"


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"studies__mine": f"code:\n  {ONE}"}, "code is also in"),
        ({"studies__mine": f"Code:\n  {ONE}"}, "code.yaml, but for upper and lower case"),
        ({"studies__mine": f"mine:\n  {ONE}mine:\n  {ONE}"}, "mine"),
        ({"studies__mine": f"mine:\n  {ONE}  title: twice\n"}, "title"),
        ({"studies__mine": f"../../zz:\n  {ONE}"}, "'../../zz'"),
        ({"studies__mine": "- mine\n"}, "must hold studies"),
        ({"studies__mine": "mine: {\n"}, "not YAML"),
        ({"claims__mine": "cod: []\n"}, "claims: no such study: 'cod'; did you mean code?"),
        ({"claims__mine": "code: []\ncode: []\n"}, "code"),
    ],
)
@pytest.mark.slow
def test_a_malformed_study_or_claim_is_refused(tmp_path: Path, files: dict[str, str], says: str):
    assert says in refusal(read, project(tmp_path, **files))


def test_claims_are_those_of_the_study_of_that_name(tmp_path: Path):
    claim = "{statement: Better., rule: lmf > lmf}"
    project(tmp_path, studies__mine=f"mine:\n  {ONE}", claims__mine=f"mine: [{claim}]\n")
    assert read(tmp_path)["studies"]["mine"]["claims"] == [{"statement": "Better.", "rule": "lmf > lmf"}]


def test_an_entry_of_claims_may_hold_gates_beside_claims(tmp_path: Path):
    gate = "{require: lmf > 0.2, reason: it is at chance}"
    project(tmp_path, studies__mine=f"mine:\n  {ONE}", claims__mine=f"mine:\n  valid: [{gate}]\n  claims: []\n")
    study = read(tmp_path)["studies"]["mine"]
    assert study["valid"] == [{"require": "lmf > 0.2", "reason": "it is at chance"}]
    assert study["claims"] == []
    (tmp_path / "claims/mine.yaml").write_text("mine: {vaild: []}\n")
    assert refusal(read, tmp_path) == "claims: mine.vaild: no such key (allowed: valid, ceiling, converged, claims)"


def test_the_project_has_each_section_and_study_once():
    assert set(PARAMS) - set(METHODS) == {*REQUIRED, "methods", "studies"}
    for folder, more in (("studies", {"my_data", "closed", "published"}), ("claims", set[str]())):
        known = {"code", "fedasa", "dfl", "hostile", "one_shot", "st_lf"} | more
        assert {path.stem for path in (ROOT / folder).iterdir()} == known


# words of earlier versions

KEYS = {
    "exam": "code_ot.exam", "shots": "lmf.shots", "mixing": "fedavg.mixing", "matters": "run.matters",
    "init": "training.init", "moments": "fedavg.training.moments", "sums": "analytic.sums", "sends": "fedavg.sends",
}  # fmt: skip
IN_STUDIES: dict[str, dict[str, Any]] = {
    "along": {"along": "net.name"}, "show": {"show": []}, "says": {"claims": [{"says": "?", "rule": "lmf > lmf"}]},
    "of": {"claims": [{"statement": "?", "rule": "lmf > lmf", "of": "test.accuracy"}]},
    "at": {"claims": [{"statement": "?", "rule": "lmf > lmf", "at": 1}]},
    "when": {"valid": [{"when": "lmf > 0", "reason": "?"}]}, "why": {"valid": [{"require": "lmf > 0", "why": "?"}]},
}  # fmt: skip
VALUES = {
    "printed": {"training.loss": "printed"}, "table3": {"training.loss": "table3"},
    "kept": {"training.optimiser_state": "kept"}, "change": {"fedavg.upload": "change"},
}  # fmt: skip


@pytest.mark.parametrize("old", KEYS)
def test_an_old_key_is_refused(params: dict[str, Any], old: str):
    above = KEYS[old].rpartition(".")[0]
    line = f"{KEYS[old]}: no such key; it is now called {above}.{RENAMED[old]}"
    assert refusal(change, params, {KEYS[old]: 1}) == line


def test_an_old_key_in_a_file_is_refused(params: dict[str, Any]):
    params["run"]["matters"] = 0.1
    assert "run.matters: no such key; it is now called min_effect (allowed: " in refusal(run_section, params)


@pytest.mark.parametrize("old", IN_STUDIES)
def test_an_old_key_of_a_study_is_refused(params: dict[str, Any], old: str):
    ask(params, {"lmf": {}})
    params["studies"]["asked"] |= IN_STUDIES[old]
    line = refusal(find_study, params, "asked")
    assert f"{old}: no such key" in line
    assert f"it is now called {RENAMED[old]}" in line


@pytest.mark.parametrize("old", VALUES)
def test_an_old_value_is_refused(params: dict[str, Any], old: str):
    line = refusal(points, change(ask(params, {"lmf": {}, "fedavg": {}}), VALUES[old]))
    assert f"it is now called {RENAMED[old]}" in line


def test_old_methods_and_studies_are_refused(params: dict[str, Any]):
    assert "'recommended': it is now called personal_distillation; allowed: " in refusal(fc.method, "recommended")
    assert "'mine': it is now called my_data; allowed: " in refusal(find_study, params, "mine")
    assert "'field': it is now called published; allowed: " in refusal(find_study, params, "field")


def test_every_old_word_is_tested():
    assert {*KEYS, *IN_STUDIES, *VALUES, "recommended", "mine", "field"} == {*RENAMED}


# YAML files: YAML 1.2's numbers, and what is refused before it takes the memory or the stack.
BOMB = "\n".join(f"{b}: &{b} [{','.join(10 * [f'*{a}'])}]" for a, b in pairwise("abcdefghi"))
"""Each line ten times the one before."""
MERGE_BOMB = "\n".join(f"{b}: &{b} {{<<: [{','.join(10 * [f'*{a}'])}]}}" for a, b in pairwise("abcdefghi"))


def written(folder: Path, content: str) -> Path:
    path = folder / "some.yaml"
    path.write_text(content)
    return path


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("a: &a [*a]\n", "the alias *a refers to what contains it"),
        ("a: &a\n  b: {c: *a}\n", "the alias *a refers to what contains it"),
        ("a: " + "[" * 10_000 + "]" * 10_000, "nested more than 50 deep"),
        ("a: " + "[" * 100_000, "nested more than 50 deep"), ("- " * 10_000 + "a", "nested more than 50 deep"),
        ("? " * 10_000, "nested more than 50 deep"),
        ("a: &a [1,1,1,1,1,1,1,1,1,1]\n" + BOMB, "more than 100000 values"),
        ("a: &a {x: 1, y: 1}\n" + MERGE_BOMB, "more than 100000 values"),
        ("a: 1\nb: 2\na: 3\n", 'found duplicate key "a"'), ("a: {b: 1, b: 2}\n", 'found duplicate key "b"'),
        ("a: *b\n", "found undefined alias (line 1, column 4)"), ("a: [\n", "(line 2, column 1)"),
        ("a: 1999-99-99\n", "month"), ("a: !!python/object/apply:os.getpid []\n", "python/object"),
        ("a: \0", "control characters"), ("- a\n", "must hold keys, has list"), ("", "must hold keys, has NoneType"),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_what_would_hang_or_break_is_refused_in_one_line(tmp_path: Path, content: str, says: str):
    line = refusal(read_mapping, written(tmp_path, content), "keys")
    assert says in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("+3", 3), ("[010, 0x1F, 1_000, 0]", ["010", "0x1F", "1_000", 0]), ("1e-3", 1e-3),
        ("1e-07", 1e-7), ("1.0e+20", 1e20), ("-0.5E3", -500.0),
        ("5.", 5.0), (".inf", float("inf")), ("true", True), ("False", False), ("yes", "yes"), ("no", "no"),
        ("on", "on"), ("1:30", "1:30"), ("1e", "1e"), ("", None), ("null", None), ("~", None), ("[1, a]", [1, "a"]),
    ],
)  # fmt: skip
def test_values_are_those_of_yaml_1_2(text: str, value: Any):
    """YAML 1.1 reads 010 as 8, 1:30 as 90, yes as true, and 1e-3 as a text. 010 may be a name, and stays as typed."""
    parsed = parse_value("key", text)
    assert (parsed, type(parsed)) == (value, type(value))


def test_names_are_read_as_they_are_written(tmp_path: Path):
    text = "{exclude: [1.50, 1.5, 2024-01-02, +1, 3], device: 1e3, costs: {1.50: {b: 2.50}}, budget: [2.50], lr: 1.50}"
    said = {"exclude": ["1.50", 1.5, "2024-01-02", "+1", 3], "device": "1e3", "costs": {"1.50": {"b": 2.5}}}
    said |= {"budget": [2.5], "lr": 1.5}
    assert parse_value("data", text) == read_mapping(written(tmp_path, f"data: {text}"), "keys")["data"] == said
    assert [parse_value(f"data.{key}", "[1.50]") for key in ("exclude", "rates")] == [["1.50"], [1.5]]


def test_a_typed_value_that_is_no_yaml_is_refused_by_its_key():
    assert refusal(parse_value, "net.widths", "[1") == (
        "net.widths = '[1': not a YAML value; if it has blanks, put quotes around it: 'net.widths=[a, b]'"
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{A:{b:50}}", {"A": {"b": 50}}), ("{A: {b:50}}", {"A": {"b": 50}}), ("{a:x,b: y}", {"a": "x", "b": "y"}),
        ("{at:s3://b/c,'d:e':{f:1}}", {"at": "s3://b/c", "d:e": {"f": 1}}), ("{b:01: null}", {"b:01": None}),
        ("{a: {b:2}, c: x:Y, d:x:Y}", {"a": {"b": 2}, "c": "x:Y", "d": "x:Y"}), ("{it's a:1}", {"it's a": 1}),
        ("[median:fedavg]", ["median:fedavg"]), ("{median:fedavg: 1}", {"median:fedavg": 1}),
    ],
)  # fmt: skip
def test_a_typed_mapping_needs_no_blank_after_a_colon(text: str, value: object):
    assert parse_value("run.budget", text) == value


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["a={A:", "{b:", "50}}", "seed=0"], "a = '{A:': not a YAML value; type it in quotes: 'a={A: {b: 50}}'"),
        (["m=[a,", "b]"], "m = '[a,': not a YAML value; type it in quotes: 'm=[a, b]'"),
        (["a=A:{b:5}", "a=b:{A:1}"], "a: typed 2 times, A:{b:5} and b:{A:1}; type one value in quotes: "
        "'a={A:{b:5}, b:{A:1}}'"),
        (["a={A:b:5}", "a={A:c:1}"], "a: typed 2 times, {A:b:5} and {A:c:1}; type one value, with its braces in "
        "quotes"),
        (["a=1", "b=2", "a=3"], "a: typed 2 times, 1 and 3; type one value"),
    ],
)  # fmt: skip
def test_a_value_that_a_shell_has_divided_is_refused_with_its_quotes(words: list[str], line: str):
    assert refusal(parse, words) == line


def test_a_value_may_be_typed_again():
    assert parse(["a=1", "b=2", "a=1"]) == {"a": 1, "b": 2}


def test_keys_of_a_merged_anchor_may_be_said_again(tmp_path: Path):
    assert read_mapping(written(tmp_path, "a: &a {x: 1, y: 1}\nb: {<<: *a, y: 2}\n"), "keys")["b"] == {"x": 1, "y": 2}


def test_what_was_read_can_be_changed_and_a_changed_file_is_read(tmp_path: Path):
    """Texts are parsed once; nobody else has the values."""
    path = written(tmp_path, "a: &x {b: [1]}\nc: *x\n")
    read_mapping(path, "keys")["a"]["b"].append(2)
    assert read_mapping(path, "keys") == {"a": {"b": [1]}, "c": {"b": [1]}}
    path.write_text("a: {b: [3]}\n")
    assert read_mapping(path, "keys") == {"a": {"b": [3]}}


# A method with all its settings, from a script and from a study's row.


def test_a_scripts_method_is_a_row_of_a_study(params: dict[str, Any]):
    ask(params, {"slow": {"method": "dfl", "threshold": 0.5, "training": {"epochs": 3}}})
    (row,) = points(params)[0].methods
    assert fc.dfl(threshold=0.5, training={"epochs": 3}, label="slow") == row
    assert fc.method("dfl", threshold=0.5, training={"epochs": 3}, label="slow") == row


def test_its_settings_are_complete_and_flat():
    config = configure("dfl", {"threshold": 0.5}, {"lr": 0.1})
    flat = config.flat()
    assert (flat["method"], flat["threshold"], flat["rounds"], flat["training.lr"]) == ("dfl", 0.5, 10, 0.1)
    assert flat["training.shared_init"] is False
    assert len(flat) == 1 + len(config.settings) + len(Training.__dataclass_fields__)


@pytest.mark.parametrize(
    ("training", "shared"),
    [(None, True), ({"epochs": 2}, True), (Training(epochs=2), True), ({"shared_init": False}, False)],
)
def test_a_method_starts_as_its_builder_says_unless_it_is_told_otherwise(training: Any, shared: bool):
    assert fc.dfl(training=training).training.shared_init is shared
    assert fc.fedavg(training=training).training.shared_init is shared
    assert fc.local_only(training=training).training.shared_init is False


@pytest.mark.parametrize("name", sorted(METHODS))
@pytest.mark.slow
def test_methods_that_average_or_have_rounds_start_from_a_common_model(name: str):
    """Those that align models first, train alone, or combine outputs need not."""
    apart = {
        "code_ot", "lmf", "no_alignment", "half_best", "best_local", "local_only", "majority", "majority_per_device",
        "analytic", "analytic_local", "ensemble", "stack", "gaussian_distillation", "personal_distillation", "pooled",
        "xgb_bagging", "xgb_local",
    }  # fmt: skip
    assert fc.method(name).training.shared_init is (name not in apart)


def test_what_its_nets_do_not_allow_names_its_label():
    config = fc.dfl(label="mine", training={"shared_init": False})
    line = refusal(config.build, NETS)
    assert line.startswith("training.shared_init = false: dfl averages changes to one model")
    assert line.endswith(" (method mine)")


def test_rounds_have_a_bound_that_is_told_at_once():
    assert refusal(fc.fedavg(rounds=10**9).build, NETS) == (
        "1,000,000,000 rounds: at most 1,000,000 are allowed (method fedavg)"
    )
    assert fc.fedavg(rounds=10**6).build(NETS).stages[0].rounds == 10**6


def test_a_builder_of_ones_own_has_its_name():
    def own(*, training: Training, rounds: int = 2) -> fc.Method:
        raise NotImplementedError

    config = fc.method(own, rounds=3)
    assert config == MethodConfig("own", own, Training(), {"rounds": 3})
    assert config.flat()["method"] == "own"


def test_no_step_depends_on_where_models_start():
    """The server's first message says so; the training of a given model is the same."""
    digest = Digest()
    assert digest.of(replace(Training(), shared_init=True)) == digest.of(Training())
    assert digest.of(replace(Training(), optimiser_state="keep")) != digest.of(Training())


# The settings of a schedule: nightly.yaml.
WRONG: dict[str, list[Any]] = {
    "retries": [-1, 1.5, "two"],
    "retry_delay": [-1, "long"],
    "time_limit": [0, -1, "long"],
    "keep.cache": [-1, "long"],
    "keep.record": [-1, True],
    "alerts.events": [["promotd"], "failed"],
    "alerts.least_free": [-1, "much"],
    "alerts.webhook": ["ops.example.org", "ftp://ops.example.org/a", "http:///a", 3, "http://me:secret@host/a",
                       "http://host:secret/a", "http://host/é", "http://host/\x7f"],
    "alerts.command": ["logger -t fedcore", []],
    "alerts.mail": ["ops@example.org", {"to": "ops", "sender": "a@b"}, {"to": "a@b"},
                    {"to": "a@b", "sender": "a@b", "host": "smtp://host"}],
    "alerts.sms": [1],
}  # fmt: skip


def write(folder: Path, key: str, value: Any) -> None:
    *above, name = key.split(".")
    section = {name: value}
    for part in above:
        section = {part: section}
    YAML().dump(section, folder / nightly.NIGHTLY)


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in WRONG.items() for value in values])
@pytest.mark.slow
def test_a_wrong_value_is_refused_by_its_key(tmp_path: Path, key: str, value: Any):
    write(tmp_path, key, value)
    with pytest.raises(InputError, match=f"^{nightly.NIGHTLY}.{key}") as refused:
        nightly.read(tmp_path)
    assert "\n" not in str(refused.value)


def test_a_project_without_the_file_deletes_and_tells_nothing(tmp_path: Path):
    found = nightly.read(tmp_path)
    assert (found.retries, found.time_limit, found.keep.cache, found.keep.record) == (0, None, None, None)
    assert (found.alerts.webhook, found.alerts.command, found.alerts.mail) == (None, None, None)


def test_the_file_that_a_project_gets_is_read_and_explains_every_setting():
    path = Path(__file__).parents[2] / "ops" / nightly.NIGHTLY
    found, text = nightly.read(path.parent), path.read_text()
    assert found.keep.cache is not None
    for kind in (nightly.Nightly, nightly.Keep, nightly.Alerts, nightly.Mail):
        for name in kind.model_fields:
            assert f"{name}:" in text


def test_a_secret_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPS", "https://ops.example.org/secret")
    assert nightly.secret("$OPS") == "https://ops.example.org/secret"
    assert nightly.secret("http://a/b") == "http://a/b"
    with pytest.raises(InputError, match=r"^the environment has no NOBODY$"):
        nightly.secret("$NOBODY")


def test_a_password_is_no_address(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FEDCORE_MAIL_PASSWORD", "pa55 word")
    assert nightly.secret("$FEDCORE_MAIL_PASSWORD") == "pa55 word"
    with pytest.raises(ValueError, match=r"^must be http://"):
        nightly.webhook("$FEDCORE_MAIL_PASSWORD")
