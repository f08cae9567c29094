"""Random kills of a Dask cluster's workers and scheduler while a study runs: the same results, no finished step twice.

A scheduler and two workers with nannies run as separate processes with TLS, and a loop that starts what has ended, as a
service manager does. A flow whose scheduler is killed ends with exit code 1, and the same command continues. The
scheduler is killed after a flow has computed some steps and while others run; a flow that ends well all the same does
not count. The results are compared with those of own workers.

    python -m benchmarks.kills FOLDER [workers] [schedulers]        0 0: none is killed
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import distributed
import psutil
import yaml

sys.path += ["tests", "tests/end_to_end"]

from project import Project, digests

WORDS = (
    "study=code", "seeds=[0,1]", "federation.devices=8", "training.batch=8", "training.epochs=60",
    "methods=[local_only,fedavg_10,code_ot,lmf]",
)  # fmt: skip
SEED = 0
STEPS = (3, 9)
"""How many steps a flow has computed on the cluster when its scheduler is killed: the least and the most."""
INLINE = ("partition", "distribute", "describe")
"""Steps of the flow's process. A flow that has asked for no other does not notice that its scheduler started again."""
EXACT = ("table.parquet", "models.json")


class Service:
    """The scheduler and its workers; what ends is started again until `stop`."""

    def __init__(self, folder: Path, project: Path) -> None:
        self.folder, self.project, self.port = folder, project, 40_000 + random.Random(str(folder)).randrange(20_000)
        self.settings(distributed.Security.temporary())
        self.running: list[subprocess.Popen[bytes] | None] = [None] * 3
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.keep)
        self.thread.start()

    @property
    def address(self) -> str:
        return f"tls://127.0.0.1:{self.port}"

    def settings(self, made: distributed.Security) -> None:
        files = {"ca": made.tls_ca_file, "cert": made.tls_client_cert, "key": made.tls_client_key}
        for name, content in files.items():
            (self.folder / f"{name}.pem").write_text(content)
        role = {name: str(self.folder / f"{name}.pem") for name in ("cert", "key")}
        tls = {"ca-file": str(self.folder / "ca.pem"), **dict.fromkeys(("scheduler", "worker", "client"), role)}
        content = {"distributed": {"comm": {"require-encryption": True, "tls": tls}}}
        (self.folder / "dask.yaml").write_text(yaml.dump(json.loads(json.dumps(content))))

    def keep(self) -> None:
        environment = Project(self.project).environment(DASK_CONFIG=str(self.folder))
        scheduler = [
            "scheduler",
            "--protocol",
            "tls",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--no-dashboard",
        ]
        worker = ["worker", self.address, "--nthreads", "1", "--no-dashboard", "--death-timeout", "20"]
        with (self.folder / "log").open("w") as log:
            while not self.ended.wait(0.2):
                for place, words in enumerate((scheduler, worker, worker)):
                    process = self.running[place]
                    if process is None or process.poll() is not None:
                        command = [sys.executable, "-m", "dask", *words, "--no-dashboard"]
                        self.running[place] = subprocess.Popen(
                            command, env=environment, stdout=log, stderr=log, cwd=self.project
                        )

    def workers(self) -> list[psutil.Process]:
        """Return the workers' processes, which their nannies start again."""
        found = []
        for nanny in self.running[1:]:
            with suppress(psutil.Error, AttributeError):
                found += [p for p in psutil.Process(nanny.pid).children() if "spawn_main" in " ".join(p.cmdline())]
        return found

    def stop(self) -> None:
        self.ended.set()
        self.thread.join()
        for process in self.running:
            if process is not None:
                with suppress(psutil.Error):
                    for child in psutil.Process(process.pid).children(recursive=True):
                        child.kill()
                process.kill()
                process.wait()


def main(place: str, workers: int = 20, schedulers: int = 5) -> None:
    folder, draw = Path(place).resolve(), random.Random(SEED)
    calm, hurt = (Project.copy(folder / name, change=lambda params: None) for name in ("calm", "hurt"))
    service = Service(folder, hurt.folder)
    try:
        calm.federate(*WORDS)
        killed, ends = {"workers": 0, "schedulers": 0}, []
        while not ends or ends[-1] != 0:
            enough = len(computed(hurt, INLINE)) + draw.randint(*STEPS)
            flow = hurt.start(
                "fedcore", "run", *WORDS, "run.engine=dask", f"run.cluster={service.address}",
                log=folder / "flow.log", DASK_CONFIG=str(folder),
            )  # fmt: skip
            while flow.poll() is None:
                due = killed["workers"] * (schedulers + 1) >= workers * (killed["schedulers"] + 1)
                if killed["schedulers"] < schedulers and due:
                    if len(computed(hurt, INLINE)) >= enough:
                        service.running[0].kill()
                        killed["schedulers"] += flow.wait() != 0
                    time.sleep(0.05)
                    continue
                time.sleep(draw.uniform(0.5, 3))
                if killed["workers"] < workers and (found := service.workers()):
                    draw.choice(found).kill()
                    killed["workers"] += 1
            ends.append(flow.returncode)
            last = (folder / "flow.log").read_text().strip().splitlines()[-1]
            print(f"exit code {flow.returncode}: {last}", flush=True)
    finally:
        service.stop()
        for project in (calm, hurt):
            project.run("python", "-m", "fedcore.pipeline.orchestration.server", "stop")
    steps = computed(hurt)
    runs = [
        {path: digest for path, digest in digests(one.folder / "runs").items() if path.endswith(EXACT)}
        for one in (calm, hurt)
    ]
    print(f"killed: {killed}; flows: {len(ends)}; steps computed: {len(steps)}, twice: {len(steps) - len({*steps})}")
    print(f"same results: {bool(runs[0]) and runs[0] == runs[1]}")


def computed(project: Project, but: tuple[str, ...] = ()) -> list[str]:
    """Return the keys of the steps that were computed, but for those of some kinds."""
    return [step["key"] for step in project.journal() if not step["cached"] and step["step"] not in but]


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
