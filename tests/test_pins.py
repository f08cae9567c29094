"""The pins without which pip finds an environment that does not work."""

import re
import tomllib
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from project import ROOT

from fedcore.execute.remote import PACKAGES

CONSTRAINTS = (ROOT / "constraints.txt").read_text()
PIPELINE = [
    Requirement(line)
    for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["pipeline"]
]
PINS = {"fastapi": ("0.150.0", "0.151"), "sqlalchemy": ("2.0.58", "2.1")}
"""name -> a version that works, the first that does not"""


def pinned() -> dict[str, Version]:
    lines = [line for line in CONSTRAINTS.splitlines() if line.strip() and not line.startswith("#")]
    found = [re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.+!]+)", line) for line in lines]
    assert all(found), [line for line, match in zip(lines, found, strict=True) if not match]
    return {re.sub(r"[-_.]+", "-", m[1]).lower(): Version(m[2]) for m in found if m}


@pytest.mark.parametrize("name", ["torch", "torchvision"])
def test_the_build_for_processors_satisfies_its_pin(name: str):
    """pip leaves it in place: docs/development.md installs it first, to do without CUDA's libraries."""
    (line,) = (line for line in CONSTRAINTS.splitlines() if line.startswith(f"{name}=="))
    assert Requirement(line).specifier.contains(f"{pinned()[name]}+cpu")


@pytest.mark.parametrize("name", PINS)
def test_a_mandatory_pin_stands_everywhere(name: str):
    works, breaks = map(Version, PINS[name])
    (required,) = (r for r in PIPELINE if r.name.lower() == name)
    assert required.specifier.contains(works)
    assert not required.specifier.contains(breaks)
    assert not required.specifier.contains(Version(f"{breaks}.5"))
    assert required.specifier.contains(pinned()[name])
    assert Version(metadata.version(name)) < breaks


def test_constraints_are_exact_and_hold_no_address():
    assert len(pinned()) > 100
    assert not re.search(r"https?:|file:|git\+|@|--", CONSTRAINTS)


def test_constraints_allow_what_the_project_asks_for():
    """Every dependency is pinned, to a version within its range."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    exact = pinned()
    for requirement in map(Requirement, asked):
        if requirement.name == project["name"]:  # an extra within another
            assert requirement.extras <= {*project["optional-dependencies"]}
            continue
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        assert name in exact, name
        assert requirement.specifier.contains(exact[name]), requirement


def test_the_workers_of_a_cluster_have_the_librarys_packages_in_common():
    """Those that read commands, show something or count threads and fetch data aside."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["study"], *extras["tables"]]
    names = {Requirement(line).name for line in lines} - {project["name"]}
    assert {*PACKAGES} == names - {"click", "rich", "threadpoolctl", "torchvision"}


def test_a_device_installs_no_data_frame_and_no_solver():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["field"]]
    assert {Requirement(line).name for line in lines} == {
        "torch", "annotated-types", "click", "numpy", "pydantic", "safetensors", "nvflare"
    }  # fmt: skip


@pytest.mark.slow
def test_what_is_installed_is_what_is_pinned():
    exact = pinned()
    names = {re.sub(r"[-_.]+", "-", d.metadata["Name"]).lower(): Version(d.version) for d in metadata.distributions()}
    assert {n: v for n, v in names.items() if n in exact and v != exact[n]} == {}
