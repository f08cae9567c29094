"""A user's own pictures and module, used as docs/pictures.md and docs/own_net.md describe."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch
from project import METHODS
from scenarios import Own, documented

from fedcore import nets
from fedcore.methods.code.fusion import align, units
from fedcore.methods.code.transport import Transport
from fedcore.types.federation import Net

DEVICES = 4
ONE_SHOT = [label for label in METHODS if label != "fedavg_3"]

REFUSED = {
    "no such file": ("net.name", "'mynet:Small'", "cannot be imported"),
    "no such class": ("net.name", "mynets", "'Smal'"),
    "no module": ("net.name", "'mynets:Plain'", "nn.Module"),
    "damaged picture": ("data.path", "data/shapes/stripe/07.png", "replace or remove it"),
}


def found(own: Own) -> Path:
    """Return the folder that the first command named."""
    assert own.first.said is not None
    page = own.first.said.out.rpartition("page: ")[2].partition("/report.html")[0]
    return own.project.folder / page


def test_every_method_runs_on_own_pictures_and_an_own_module(own: Own):
    summary = pd.read_csv(found(own) / "summary.csv")
    assert set(summary["method"]) == set(METHODS)
    assert set(summary["dataset"]) == {"shapes"}
    assert summary["shared_mean"].between(0, 1).all()
    assert own.first.said is not None
    assert all(f"{label} " in own.first.said.out for label in METHODS)
    assert len(own.first.computed("train")) == DEVICES


def test_the_users_module_is_trained_and_aligned(own: Own):
    """Its bytes are sent, and a plan for each kind of units of its table was solved."""
    table = pd.read_parquet(found(own) / "code-0" / "table.parquet")
    sent = table[(table["method"] == "code_ot") & (table["metric"] == "bytes_up")]["value"]
    parameters = 8 * 3 * 9 + 8 + 16 * 8 * 16 + 16 + 3 * 16 + 3
    marks = 8 * 2 * 3  # for each class, how many examples of it the device's model was asked, and got right
    assert sent.tolist() == [4 * parameters + marks] * DEVICES
    solved = table[(table["method"] == "code_ot") & (table["split"] == "transport")]
    assert set(solved["metric"]) == {"iterations", "violation", "bound", "partners"}
    assert solved["device"].nunique() == DEVICES - 1


def test_a_comment_in_the_module_retrains_nobody(own: Own):
    assert own.commented.computed() == []
    assert len(own.commented.steps) == len(own.first.steps)
    assert own.commented.record == own.first.record


def test_a_changed_line_of_the_module_retrains_everybody(own: Own):
    trained = own.edited.computed("train")
    assert sorted({step["unit"] for step in trained}) == [f"device-{i:02d}" for i in range(DEVICES)]
    assert len(trained) == DEVICES
    assert own.edited.count("train") == DEVICES * len(ONE_SHOT)
    assert not {"partition", "distribute"} & {step["step"] for step in own.edited.computed()}


def test_a_users_method_and_a_new_file_in_methods_run(own: Own):
    """Neither needs a change of another file."""
    assert own.methods.said is not None
    assert {"median seed 0", "fedavg seed 0", "throwaway seed 0"} <= set(
        re.findall(r"\w+ seed 0", own.methods.said.out)
    )
    assert own.methods.record["runs"] > own.again.record["runs"]


@pytest.mark.parametrize("what", REFUSED)
def test_unusable_input_is_one_line_and_exit_code_2(own: Own, what: str):
    said = own.refused[what]
    assert said.code == 2, said.all
    (line,) = said.err.splitlines()
    assert line.startswith("fedcore: ")
    assert said.out.strip() == ""
    for words in REFUSED[what]:
        assert words in line


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module that holds what docs/own_net.md shows."""
    (tmp_path / "shown_in_docs.py").write_text(documented())
    monkeypatch.syspath_prepend(tmp_path)
    yield "shown_in_docs"
    sys.modules.pop("shown_in_docs", None)


@pytest.mark.parametrize("name", ["Small", "chain"])
def test_the_documented_tables_undo_a_shuffle(shown: str, name: str):
    """Permuted units give the same function; alignment restores the tensors."""
    net: Net = nets.net(f"{shown}:{name}", shape=(3, 8, 8), classes=5)
    target = nets.init(net, torch.Generator().manual_seed(0))
    shuffled, widths = dict(target), units(target, net.table)
    for key, labels in net.table.items():
        for axis, label in enumerate(labels):
            if label:
                x = shuffled[key].movedim(axis, 0).unflatten(0, (widths[label], -1))
                shuffled[key] = x.flip(0).flatten(0, 1).movedim(0, axis)
    aligned, plans = align(shuffled, target, net.table, Transport("exact"))
    assert set(plans) == {label for labels in net.table.values() for label in labels if label}
    for key, x in target.items():
        torch.testing.assert_close(aligned[key], x)
        assert torch.equal(shuffled[key], x) == (not any(net.table[key]))


def test_only_steps_unused_for_a_month_are_deleted(own: Own):
    """The edited module's run found data and partition, which are as old as what was trained with the first module."""
    before, after = own.cache
    assert after.items() < before.items()
    used = {f"steps/{step['key']}" for step in own.edited.steps}
    assert {path for path in after if path.startswith("steps/")} == used
    gone = [path for path in before if path not in after]
    steps, blobs = (sum(path.startswith(kind) for path in gone) for kind in ("steps/", "blobs/"))
    assert own.pruned.out.startswith(f"pruned {steps} steps and {blobs} blobs not used for 30 days, ")
    assert steps > 0 < blobs


def test_pruning_keeps_all_that_the_run_needs(own: Own):
    assert own.again.computed() == []
    assert own.again.outs == own.edited.outs
