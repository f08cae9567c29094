"""A flow whose parts are killed, which is asked to end, or which has a twin."""

import os
import re
import signal
import time
from dataclasses import dataclass

import psutil
from project import LIMIT, Process, Project, Said, Seen, digests, wait

from scenarios.place import Place

WORK = (
    "federation.devices=6", "training.batch=4", "training.epochs=60", "methods=[local_only,fedavg_3]", "run.workers=2",
)  # fmt: skip


@dataclass(frozen=True)
class Hurt:
    """calm: an undisturbed flow. twins: two such flows at once in one folder. healed: one whose server, one worker and
    the record's process were killed in its middle. spread: one on a Dask cluster, a worker of which was killed in its
    middle. ended: a flow after SIGTERM. left: the processes then left, but for the server. alone: a flow whose server
    was stopped. again: the flow of `alone` once more, to its end. plans: what a plan says before and after `calm`.
    """

    calm: Seen
    twins: Seen
    healed: Seen
    spread: Seen
    ended: Said
    left: list[str]
    alone: Said
    again: Seen
    same: bool
    plans: list[str]


def hurt(place: Place) -> Hurt:
    undisturbed, paired, clustered = (place.copy(name) for name in ("calm", "twins", "clustered"))
    plans = [undisturbed.run("fedcore", "plan", *WORK).out]
    calm = undisturbed.look(undisturbed.federate(*WORK))
    plans.append(undisturbed.run("fedcore", "plan", *WORK).out)
    pair = [paired.start("fedcore", "run", *WORK, log=place.folder / f"twin{i}.log") for i in range(2)]
    assert [flow.wait() for flow in pair] == [0, 0]
    twins = paired.look()
    flow = in_the_middle(clustered, *WORK, "run.engine=dask")
    dask_workers(flow)[0].kill()
    spread = clustered.look(said_by(flow))

    project = place.join(Project.copy(place.folder / "hurt", pictures=False))  # with a server of its own
    try:
        flow = in_the_middle(project, *WORK)
        parts = wait("a worker and the record's process", lambda: parts_of(flow))
        for process in parts:
            process.kill()
        os.killpg(project.server(), signal.SIGKILL)
        healed = project.look(said_by(flow))
        flow = in_the_middle(project, *WORK, "seed=1")
        flow.terminate()
        ended = said_by(flow)
        left = still_there(project)
        flow = in_the_middle(project, *WORK, "seed=2")
        project.run("python", "-m", "fedcore.pipeline.orchestration.server", "stop")
        alone = said_by(flow)
        project.api, project.password = place.host.api, place.host.password  # another server takes seconds to start
        again = project.look(project.federate(*WORK, "seed=2"))
    finally:
        project.run("python", "-m", "fedcore.pipeline.orchestration.server", "stop")
    runs = [{p: d for p, d in digests(one.folder / "runs").items() if "table.parquet" in p or "models.json" in p}
            for one in (undisturbed, paired, clustered, project)]  # fmt: skip
    same = bool(runs[0]) and runs[0] == runs[1] == runs[2] and runs[0].items() <= runs[3].items()
    return Hurt(calm, twins, healed, spread, ended, left, alone, again, same, plans)


def still_there(project: Project) -> list[str]:
    """Return a project's processes, but for servers, that do not end within five seconds."""
    servers = re.compile(r"-m (prefect server|fedcore\.pipeline\.orchestration\.server)")
    for _ in range(50):
        left = [command for command in project.processes().values() if not servers.search(command)]
        if not left:
            break
        time.sleep(0.1)
    return left


def in_the_middle(project: Project, *words: str) -> Process:
    """Start a flow and wait until it has trained a device."""
    project.look()
    flow = project.start("fedcore", "run", *words, whole=True)

    def trained() -> bool:
        assert flow.poll() is None, f"ended too early: {flow.communicate()}"
        return any(step["step"] == "train" for step in project.journal()[project.read :])

    wait("a trained device", trained, every=0.01)
    return flow


def parts_of(flow: Process) -> list[psutil.Process]:
    """Return a worker of a flow and the process that writes its record, once there are both."""
    assert flow.poll() is None, f"ended too early: {flow.communicate()}"
    processes = sorted(psutil.Process(flow.pid).children(recursive=True), key=psutil.Process.create_time)
    parts = {process.nice(): process for process in processes}  # the template is older than its workers
    return list(parts.values()) if len(parts) == 2 else []


def dask_workers(flow: Process) -> list[psutil.Process]:
    """Return the workers of a flow's own Dask cluster, each a process that its nanny starts again."""
    processes = psutil.Process(flow.pid).children(recursive=True)
    return [one for one in processes if "spawn_main" in " ".join(one.cmdline())]


def said_by(flow: Process) -> Said:
    out, err = flow.communicate(timeout=LIMIT)
    return Said(flow.returncode, out, err)
