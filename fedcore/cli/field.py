"""A method on real devices."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedcore.cli.project import PATH, enter_project, find_modules_here, open_template
from fedcore.errors import InputError, TooFew, plural, printable, require_extra

if TYPE_CHECKING:
    from fedcore.field.runs import Setup


LONGEST_NAME = 80
"""Characters of a run's name, each of which may take three bytes of a folder's."""
NOTICE = 31
"""Days before the end of the certificates from which on `field status` says how many are left."""


@click.group()
def field() -> None:
    """Run a method on real devices (`fedcore docs field`). Their examples never leave them."""


@field.command("try")
@click.option("--devices", type=click.IntRange(2, 50), default=4, show_default=True, help="A process for each.")
@click.option("--method", "name", default="fedavg", show_default=True, help="The method, with its own settings.")
@click.option("--rounds", type=click.IntRange(1), help="Its rounds, if it has any; its own by default.")
@click.option("--seed", type=int, default=0, show_default=True)
def try_(devices: int, name: str, rounds: int | None, seed: int) -> None:
    """Try the field on this machine: a process for each device, on loopback, with the digits in this package.

    Each process reads the file of its own examples alone. At the end the command says whether the bits are those of a
    simulation, and leaves with 1 if they are not.
    """
    require_extra("field")
    import fedcore.field.cells  # noqa: F401  # once for all processes, which are forks

    open_template()
    from fedcore.api.federation import federate, method
    from fedcore.data import load
    from fedcore.field.trial import try_method

    settings: dict[str, Any] = {} if rounds is None else {"rounds": rounds}
    fed = federate(load("digits"), devices=devices).federation(seed)
    with tempfile.TemporaryDirectory(prefix="fedcore-field-") as folder:
        trial = try_method(method(name, **settings), fed, seed, Path(folder), say)
    for line in trial:
        print(f"differs: {line}")
    if trial:
        sys.exit(1)
    print(f"{name}: the bits are those of the simulation: server, messages, memories, bytes and scores of every round")


@field.command()
@click.argument("folder", type=PATH)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--address", required=True, help="Where devices reach the server, host:port.")
@click.option("--device", "devices", multiple=True, help="A device's name, once for each; else those of the data.")
@click.option("--shape", help="Without a study: of an example, e.g. 12 (features) or 1x28x28 (pictures).")
@click.option("--classes", type=click.IntRange(2), help="Without a study: how many.")
@click.option("--net", default="mlp", show_default=True, help="Without a study: the net, with its own settings.")
def init(
    folder: Path, settings: tuple[str, ...], address: str, devices: tuple[str, ...], shape: str | None,
    classes: int | None, net: str,
) -> None:  # fmt: skip
    """Make the kits of a server and its devices: certificates and keys, a folder for the server, an archive for each.

    In a project the kits are those of its study: schema, nets, methods and answer go into the server's, no row does.
    Settings are those of fedcore run. Give each device its own archive, by a way that nobody else reads.

    \b
    fedcore field init my-field --address 10.0.0.5:8002
    fedcore field init my-field --address 127.0.0.1:8002 --device a --device b --shape 12 --classes 3
    """
    require_extra("field")
    require_extra("study")
    from fedcore.field.kits import SERVER, archive, make_kits
    from fedcore.field.runs import Setup, write_setup

    if shape is None and classes is None:
        setup = setup_of_study(settings, devices)
    elif shape is None or classes is None or not devices or settings:
        raise InputError("--shape, --classes, --device: without a study all of them are needed, and no KEY=VALUE")
    else:
        lengths = shape.split("x")
        if not all(length.isdecimal() and int(length) for length in lengths):
            raise InputError(f"--shape {shape}: must be whole numbers, such as 12 or 1x28x28")
        setup = Setup(tuple(sorted(devices)), tuple(map(int, lengths)), classes, ({"name": net},))
    setup.public()  # an unknown net is refused before anything is written
    kits = make_kits(folder, setup.devices, address)
    write_setup(kits[SERVER], setup)
    for name, kit in kits.items():
        say(f"{name}: {kit if name == SERVER else archive(kit)}")
    if setup.study is not None:
        answer = setup.study.answer or "none yet: fedcore run has not registered one, so that --method must be given"
        print(f"methods: {len(setup.study.methods)} rows of study {setup.study.name}; its answer: {answer}")
        method = str(setup.study.configs[setup.study.answer].name) if setup.study.answer else "METHOD"
        numbers = " --allow numbers" if setup.recipe is not None and setup.recipe.lacks is not None else ""
        print(f"each owner: fedcore device start ARCHIVE --data ROWS --allow {method}{numbers}")


def setup_of_study(settings: tuple[str, ...], devices: tuple[str, ...]) -> Setup:
    """Return the setup for the devices of the project's study."""
    enter_project()
    from fedcore.config.request import ask, plan_jobs
    from fedcore.data import load
    from fedcore.field.study import setup_of
    from fedcore.pipeline.record import registry
    from fedcore.pipeline.record.field import find_answer, rates_of_rows

    _, jobs = plan_jobs(ask([*settings]))
    job = jobs[0]
    if len({each.study for each in jobs}) > 1 or len(job.settings) > 1:
        raise InputError("a field has one setting of one study: name it, such as study=my_data size=small")
    setting = job.settings[0]
    dataset = load(**setting.data)
    answer, rates = None, dict[str, float]()
    catalogue = registry.read()
    if catalogue is not None and registry.CANDIDATE in getattr(catalogue.get(setting.model_name), "aliases", {}):
        answer, seed = find_answer(setting.model_name)
        rates = rates_of_rows(setting.study, setting.name, job.size)
        job = job.model_copy(update={"seed": seed})
    if untried := sorted(setting.rates.keys() - rates.keys() - ({answer.label} if answer else set())):
        more = f" and {len(untried) - 5} more" if len(untried) > 5 else ""
        say(f"not tuned: {', '.join(untried[:5])}{more}; fedcore run tries their learning rates")
    if setting.threshold is not None:
        say("run.threshold has no effect here, as validation rows stay on devices: the likelier class is predicted")
    return setup_of(job, setting, dataset, devices, answer, rates)


@field.command()
@click.argument("kit", type=PATH)
@click.option("--foreground", is_flag=True, help="Stay in this terminal, or under a service manager, until Ctrl-C.")
@click.option("--listen", metavar="HOST:PORT", help="Where it listens from now on; else at --address.")
def start(kit: Path, foreground: bool, listen: str | None) -> None:
    """Start a server that stays: devices come and go, and field run and field study use it.

    Where devices reach it at an address that is not this machine's own, as behind NAT or in a container, --listen says
    at which it listens.

    \b
    fedcore field start my-field/server
    fedcore field start my-field/server --listen 0.0.0.0:8002
    """
    require_extra("field")
    from fedcore.field import station
    from fedcore.field.kits import read_kit, set_address
    from fedcore.field.runs import read_setup

    setup, own = read_setup(kit), read_kit(kit)
    if listen is not None:
        own = set_address(own, listen)
    if (running := station.find(kit)) is not None:
        raise InputError(f"{kit}: a server is there already, process {running.pid}")
    where = f"listening at {own.address} for {plural(len(setup.devices), 'device')}"
    if foreground:
        from fedcore.field.cells import Cells

        link = Cells(own)
        say(where)
        try:
            station.serve(kit, link)
        finally:
            link.close()
        return
    log = kit / "server.log"
    with log.open("ab") as out:
        child = subprocess.Popen(
            [sys.executable, "-m", "fedcore", "field", "start", str(kit), "--foreground"],
            stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
    while station.find(kit) is None:
        if child.poll() is not None:
            last = (log.read_text("utf-8").strip().splitlines() or ["it ended"])[-1]
            raise InputError(last.removeprefix("fedcore: "))
        time.sleep(0.1)
    child.returncode = 0  # it stays: nobody waits for it
    say(f"{where}, process {child.pid}; {log} has what it says")


@field.command()
@click.argument("kit", type=PATH)
def stop(kit: Path) -> None:
    """Stop the server that stays. A run that uses it loses its devices, and goes on when it is started again."""
    from fedcore.field import station
    from fedcore.pipeline.command import Failed

    running = station.find(kit)
    if running is None:
        raise InputError(f"{kit}: no server has been started; fedcore field start does")
    running.stop()
    if not station.wait_until_gone(kit, 30.0):
        raise Failed(f"{kit}: its server, process {running.pid}, does not end")
    say("stopped; devices try to connect again until they are stopped, too")


@field.command()
@click.argument("kit", type=PATH)
def status(kit: Path) -> None:
    """Show which devices are connected, and how far each run is."""
    require_extra("field")
    from fedcore.field import station
    from fedcore.field.kits import check_kit, read_kit
    from fedcore.field.runs import read_run, read_setup

    setup, running = read_setup(kit), station.find(kit)
    away = [*setup.devices] if running is None else running.wait_for([*setup.devices], 0.0)
    say("no server has been started" if running is None else f"server: process {running.pid}")
    try:
        end = check_kit(read_kit(kit))
        left = (end - datetime.now(UTC)).days
        notice = f", in {left} days; fedcore field init makes new ones" if left < NOTICE else ""
        say(f"certificates end on {end:%Y-%m-%d}{notice}")
    except InputError as ended:
        say(str(ended))
    for name in setup.devices:
        say(f"{name}: {'away' if name in away else 'connected'}")
    for folder in sorted((kit / "runs").glob("*/")):
        try:
            run = read_run(folder)
        except InputError:
            say(f"run {folder.name}: no turn yet")
            continue
        total = sum(stage.rounds for stage in run.plan.build()[0].stages)
        absent = sum(len(turn.absent) for turn in run.turns)
        say(
            f"run {folder.name}: {run.plan.method}, seed {run.plan.seed}, {len(run.turns)} of {total} rounds, "
            f"{absent} absences"
        )


@field.command("revoke")
@click.argument("kit", type=PATH)
@click.argument("device")
def revoke_(kit: Path, device: str) -> None:
    """Refuse a device's certificate from now on, such as one that was stolen, also while a server runs.

    It gets no other: to take the device in again, make new kits.

    \b
    fedcore field revoke my-field/server b
    """
    from fedcore.field.kits import revoke
    from fedcore.field.runs import read_setup

    if device not in (names := read_setup(kit).devices):
        raise InputError(f"{device}: not a device of {kit}; its devices are {', '.join(names)}")
    revoke(kit, device)
    say(f"{device} is refused")


class Duration(click.ParamType[float]):
    """Seconds, or a number with s, m or h."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(value), re.ASCII)
        seconds = float(found[1]) * {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}[found[2]] if found else 0.0
        if not 1 <= seconds <= 1e6:
            self.fail(f"{str(value)!r} must be at least 1 second, such as 90, 90s, 10m or 1h", param, ctx)
        return seconds


DEADLINE = click.option(
    "--deadline", type=Duration(), default="10m", show_default=True, help="For a step: 90s, 10m, 1h."
)
LEAST = click.option("--least", type=click.IntRange(1), help="How many devices must answer; all by default.")


@field.command()
@click.argument("kit", type=PATH)
@click.option("--method", "name_of_method", help="A method or a row of the study; by default the study's answer.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the method, e.g. rounds=10.")
@click.option("--name", default="first", show_default=True, help="The run's name; the same name goes on with it.")
@click.option("--seed", type=int, help="By default that of the study, else 0.")
@DEADLINE
@LEAST
def run(
    kit: Path, name_of_method: str | None, settings: tuple[str, ...], name: str, seed: int | None, deadline: float,
    least: int | None,
) -> None:  # fmt: skip
    """Run a method with the devices of a server's kit, which have been started by their owners.

    A turn is kept once it is over. The same command goes on after Ctrl-C or a kill, with the same bits. In a project
    the run is recorded in MLflow, and its model is proposed.

    \b
    fedcore field run my-field/server --method fedavg --set rounds=10 --deadline 10m --least 3
    """
    require_extra("field")
    if not name.isalnum() or len(name) > LONGEST_NAME:
        raise InputError(f"--name {name}: must be letters and digits, at most {LONGEST_NAME}")
    require_extra("study")
    from fedcore.config.files import parse_value
    from fedcore.field.session import choose_method, play

    parts = [setting.partition("=") for setting in settings]
    find_modules_here()
    config = choose_method(kit, name_of_method, {key: parse_value(key, value) for key, _, value in parts})
    with going_on():
        field_run = play(kit, config, name, seed, seconds=deadline, least=least, said=say)
    say(f"{name}: over; {field_run.folder / 'state'} holds what each device was sent last")
    if Path("params.yaml").is_file():
        enter_project()
        from fedcore.pipeline.record.field import record

        for line in record(field_run):
            say(line)


@field.command()
@click.argument("kit", type=PATH)
@click.option("--method", "labels", multiple=True, help="A row of the study, once for each; all by default.")
@click.option("--seeds", default="0", show_default=True, help="Such as 0,1,2.")
@DEADLINE
@LEAST
def study(kit: Path, labels: tuple[str, ...], seeds: str, deadline: float, least: int | None) -> None:
    """Compare the study's methods on the devices themselves, where rows may not be pooled even for a study.

    A row that a device refuses is left out, with the reason. Scores come back as numbers; the answer is by the study's
    rule. KIT/study has the table, and what left each device.

    \b
    fedcore field study my-field/server --method local_only --method fedavg --seeds 0,1,2
    """
    require_extra("field")
    if not all(seed.isdecimal() for seed in seeds.split(",")):
        raise InputError(f"--seeds {seeds}: must be whole numbers, such as 0,1,2")
    require_extra("study")
    from fedcore.field.session import play_study
    from fedcore.report.phrases import sentences

    with going_on():
        result = play_study(kit, labels, [*map(int, seeds.split(","))], seconds=deadline, least=least, notify=say)
    folder = kit / "study"
    folder.mkdir(exist_ok=True)
    result.table.to_csv(folder / "table.csv", index=False)
    result.left.to_csv(folder / "left.csv", index=False)
    for line in sentences(result.answer):
        say(line)
    say(f"{folder}/table.csv: the scores; {folder}/left.csv: what left each device")


@contextmanager
def going_on() -> Iterator[None]:
    """End in one line where too few devices answer: the run can go on later."""
    from fedcore.pipeline.command import Failed

    try:
        yield
    except TooFew as few:
        raise Failed(f"{few}; the same command goes on from the last turn") from None


def say(line: str) -> None:
    """Print a line at once."""
    print(printable(line), flush=True)
