"""The test of a module is found by its name: tests/<room>/test_<module>.py, or test_<module>_<aspect>.py beside it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    path.relative_to(ROOT / "fedcore").with_suffix("").as_posix()
    for path in (ROOT / "fedcore").rglob("*.py")
    if path.name != "__init__.py"
)
ELSEWHERE = {
    "partition/new_devices": "core/test_new_device.py",
    "core/flat_nets": "core/test_prediction.py",
    "core/stacked": "core/test_together.py",
    "results/advice": "results/test_answer.py",
    "results/intervals": "results/test_judging.py",
    "__main__": "cli/test_main.py",
    "api/federation": "test_front_door.py",
    "results/left_out": "core/test_new_device.py",
    "api/results": "test_front_door.py",
    "api/serving": "pipeline/record/test_models.py",
    "builders": "test_front_door.py",
    "cli/device": "cli/test_field.py",
    "cli/project": "cli/test_main.py",
    "cli/promote": "pipeline/record/test_promotion.py",
    "cli/run": "end_to_end/test_flows.py",
    "cli/save": "pipeline/test_backup.py",
    "cli/show": "pipeline/test_answers.py",
    "cli/status": "end_to_end/test_installed.py",
    "config/sections": "config/test_params.py",
    "data/arrays": "test_front_door.py",
    "data/cosines": "data/test_bearings.py",
    "data/cwru": "data/test_bearings.py",
    "data/dataset": "test_front_door.py",
    "data/leaf": "data/test_files.py",
    "data/pictures": "data/test_files.py",
    "data/schema": "data/test_encoding.py",
    "data/simulated_rig": "data/test_bearings.py",
    "errors": "test_types.py",
    "types/federation": "test_types.py",
    "types/method": "test_types.py",
    "types/ranges": "config/test_settings.py",
    "execute/packing": "execute/test_workers.py",
    "execute/remote": "execute/test_cluster.py",
    "field/answers": "field/test_server.py",
    "field/deployed": "field/test_session.py",
    "field/examples": "field/test_rows.py",
    "field/results": "field/test_study.py",
    "field/trial": "field/test_cells.py",
    "methods/fedasa/sharing": "methods/fedasa/test_fedper.py",
    "methods/one_shot/ensembles": "methods/one_shot/test_ensemble.py",
    "methods/st_lf/energy": "methods/st_lf/test_bound.py",
    "methods/st_lf/heuristics": "methods/st_lf/test_st_lf_rivals.py",
    "methods/st_lf/problem": "methods/st_lf/test_programs.py",
    "methods/st_lf/protocol": "methods/st_lf/test_st_lf.py",
    "nets/builders_by_path": "pipeline/cache/test_store.py",
    "nets/features": "methods/one_shot/test_analytic.py",
    "nets/params": "nets/test_registry.py",
    "nets/mlp": "nets/test_registry.py",
    "nets/parts": "nets/test_cells.py",
    "nets/randomness": "nets/test_registry.py",
    "nets/residual": "nets/test_cnn.py",
    "nets/tables": "nets/test_cnn.py",
    "nets/vgg": "nets/test_cnn.py",
    "partition/examples": "partition/test_partitions.py",
    "partition/parts": "partition/test_partitions.py",
    "partition/pools": "partition/test_partitions.py",
    "partition/refusals": "partition/test_partitions.py",
    "pickling": "execute/test_workers.py",
    "pipeline/cache/calls": "pipeline/cache/test_shared.py",
    "pipeline/environment": "pipeline/test_state.py",
    "pipeline/files": "end_to_end/test_dvc.py",
    "pipeline/record/field": "pipeline/record/test_promotion.py",
    "pipeline/record/pictures": "end_to_end/test_recorded_runs.py",
    "pipeline/record/proposals": "pipeline/record/test_promotion.py",
    "pipeline/record/registry": "pipeline/record/test_promotion.py",
    "pipeline/record/result": "pipeline/run/test_run_method.py",
    "pipeline/run/chunks": "end_to_end/test_local_chunks.py",
    "pipeline/run/comparison": "end_to_end/test_flows.py",
    "pipeline/run/final_fit": "end_to_end/test_mine.py",
    "pipeline/run/outputs": "end_to_end/test_dvc.py",
    "pipeline/run/requests": "end_to_end/test_flows.py",
    "pipeline/orchestration/steps": "tasks/test_steps.py",
    "pipeline/run/step_functions": "pipeline/orchestration/test_shards.py",
    "report/figures/code": "methods/code/test_transport_report.py",
    "report/figures/dfl": "report/figures/test_results.py",
    "report/figures/drawing": "report/figures/test_results.py",
    "report/figures/fedasa": "report/figures/test_results.py",
    "report/figures/insides": "report/figures/test_results.py",
}
"""Modules whose tests stand in the file of what uses them."""


def named(module: str) -> list[Path]:
    """Return the test files of a module's own name."""
    room, name = (ROOT / "tests" / module).parent, Path(module).name
    return [
        path
        for path in room.glob(f"test_{name}*.py")
        if path.stem == f"test_{name}" or path.stem.startswith(f"test_{name}_")
    ]


def test_a_module_has_a_test_by_its_name_or_is_listed():
    wrong = [module for module in MODULES if bool(named(module)) == (module in ELSEWHERE)]
    assert wrong == [], "list it in ELSEWHERE, or take it out"
    assert [module for module, test in ELSEWHERE.items() if not (ROOT / "tests" / test).is_file()] == []


def test_no_module_is_listed_that_is_gone():
    assert ELSEWHERE.keys() <= {*MODULES}


def test_a_test_file_in_a_room_has_the_name_of_a_module():
    rooms = [path.name for path in (ROOT / "fedcore").iterdir() if path.is_dir()]
    files = [path for room in rooms for path in (ROOT / "tests" / room).rglob("test_*.py")]
    found = {path for module in MODULES for path in named(module)}
    assert {path.name for path in {*files} - found} == {"test_contract.py"}
