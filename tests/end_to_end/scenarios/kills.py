"""kill -9 of a flow: in the middle of steps, of many rounds, and of rounds in which some devices take part."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from project import Project, Seen, end, read_params, wait, write_params

from scenarios.place import Place

# in the middle of a step


SLOW = (
    "federation.devices=6", "training.batch=4", "training.epochs=240", "methods=[best_local,lmf]",
    "lmf.solver=sinkhorn", "lmf.tol=1.0e-300", "lmf.max_iterations=5000", "run.workers=2",
)  # fmt: skip


@dataclass(frozen=True)
class Kill:
    """The state after kill -9: the project, the remaining processes, and Prefect's flow run."""

    seen: Seen
    left: dict[int, str]
    flow_run: str


@dataclass(frozen=True)
class Killed:
    """training, fusing: a kill in the middle of it. end: after the same command ran to its end. calm: the same command
    in another folder, undisturbed. states: what Prefect says in the end of the two flow runs that were killed.
    inner: and of their methods' runs."""

    project: Project
    undisturbed: Project
    training: Kill
    fusing: Kill
    end: Seen
    calm: Seen
    states: list[str]
    inner: set[str]


def killed(place: Place) -> Killed:
    project = place.copy("killed", pictures=True)
    training = kill(project, SLOW, lambda steps: steps["train"] >= 1)
    # The second method finds its devices' training and exams in the cache; then it fuses, for seconds.
    fusing = kill(project, SLOW, lambda steps: steps["rank"] == 12 and steps["choose"] == 1)
    finished = project.look(project.federate(*SLOW))
    undisturbed = place.copy("undisturbed", pictures=True)
    calm = undisturbed.look(undisturbed.federate(*SLOW))
    states = [place.host.ask(f"flow_runs/{one.flow_run}")["state_type"] for one in (training, fusing)]
    of_methods = {"flow_runs": {"parent_flow_run_id": {"any_": [training.flow_run, fusing.flow_run]}}}
    inner = {run["state_type"] for run in place.host.ask("flow_runs/filter", of_methods)}
    return Killed(project, undisturbed, training, fusing, finished, calm, states, inner)


def kill(project: Project, words: Sequence[str], when: Callable[[Counter[str]], bool], command: str = "run") -> Kill:
    """Start the flow, and kill it when `when` is true of the steps that have ended, by kind."""
    flow = project.start("fedcore", command, *words)
    before = project.read

    def now() -> bool:
        assert flow.poll() is None, f"ended before it was killed: {flow.communicate()}"
        return when(Counter(step["step"] for step in project.journal()[before:]))

    wait("the moment to kill", now, every=0.01)
    os.kill(flow.pid, signal.SIGKILL)
    flow.wait()
    seen = project.look()
    (mark,) = (project.folder / ".fedcore" / "flows").iterdir()
    with suppress(AssertionError):
        wait("no process left", lambda: not project.processes(), 120)
    left = project.processes()
    end(flow)
    return Kill(seen, left, mark.name)


# in the middle of 100 rounds


LONG = (
    "data.name=bearings", "data.locations=[A]", "data.window=64", "data.train=1", "data.test=1", "data.server=1",
    "federation.partition=by_device", "federation.min_size=1", "federation.val=0", "federation.shared_test=0",
    "net.name=cells", "net.width=0.125", "training.shared_init=true", "training.optimiser_state=keep",
    "training.epochs=1", "fedasa.rounds=100", "run.every=20", "methods=[fedasa]",
)  # fmt: skip


@dataclass(frozen=True)
class Long:
    """halfway: a kill after alignment and some checkpoints. end: after the same command ran to its end. calm: the same
    in another folder, undisturbed. refused: a grid whose second point has a budget that does not fit.
    """

    project: Project
    undisturbed: Project
    halfway: Kill
    end: Seen
    calm: Seen
    refused: Seen


def long(place: Place) -> Long:
    project, undisturbed = hasty(place.copy("long"), 0.25), hasty(place.copy("long-undisturbed"), 0.25)
    halfway = kill(project, LONG, lambda steps: steps["rounds"] >= 3)
    finished = project.look(project.federate(*LONG))
    calm = undisturbed.look(undisturbed.federate(*LONG))
    params = read_params(project.folder)
    params["studies"]["code"]["sizes"]["small"] = {"grid": {"fedasa.budget": [1.0e6, [1.0e6, 1.0e6]]}}
    write_params(project.folder, params)
    refused = project.look(project.federate(*LONG, "training.lr=0.02", code=2, whole=True))
    return Long(project, undisturbed, halfway, finished, calm, refused)


def hasty(project: Project, seconds: float) -> Project:
    """Make a project write checkpoints at this interval."""
    file = project.folder / "fedcore" / "pipeline" / "run" / "chunks.py"
    assert file.read_text().count("CHUNK = 30.0\n") == 1
    file.write_text(file.read_text().replace("CHUNK = 30.0\n", f"CHUNK = {seconds}\n"))
    return project


# where some devices take part in a round, twice: each method in the middle of its 50 rounds


SAMPLED = (
    "federation.devices=10", "federation.val=0", "federation.test=0", "training.shared_init=true",
    "training.optimiser_state=keep", "training.epochs=1", "dfl.rounds=50", "dfl.fraction=0.3",
    "scaffold.rounds=50", "scaffold.fraction=0.3",
    "run.every=25", "methods=[dfl,scaffold]",
)  # fmt: skip


@dataclass(frozen=True)
class Sampled:
    """dfl, scaffold: kills after checkpoints of each. end: after the same command ran to its end. calm: the same in
    another folder, undisturbed.
    """

    project: Project
    undisturbed: Project
    dfl: Kill
    scaffold: Kill
    end: Seen
    calm: Seen


def sampled(place: Place) -> Sampled:
    project, undisturbed = hasty(place.copy("sampled"), 0.05), hasty(place.copy("sampled-undisturbed"), 0.05)
    dfl = kill(project, SAMPLED, lambda steps: steps["rounds"] >= 2)
    before: list[int] = []

    def two_of_the_second(steps: Counter[str]) -> bool:
        if steps["deploy"]:  # the first method's end
            before.append(steps["rounds"])
        return bool(before) and steps["rounds"] - before[0] >= 2

    scaffold = kill(project, SAMPLED, two_of_the_second)
    finished = project.look(project.federate(*SAMPLED))
    calm = undisturbed.look(undisturbed.federate(*SAMPLED))
    return Sampled(project, undisturbed, dfl, scaffold, finished, calm)
