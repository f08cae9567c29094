"""A run with devices that are somewhere else: its folder on the server, from which it goes on after a kill."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from pydantic import TypeAdapter

from fedcore.config.methods import MethodConfig, configure, current_settings
from fedcore.core.rounds import RoundResult, State
from fedcore.core.threats import require_devices
from fedcore.data.task import CLASSIFICATION, LABEL_KINDS, SEQUENCES
from fedcore.errors import InputError
from fedcore.execute.workers import Inline
from fedcore.field.answers import RemoteHandle, longest
from fedcore.field.plan import Plan, plan_of
from fedcore.field.recipe import Recipe
from fedcore.field.server import Field, Link, Stuck, exchange, federation_of, run_in_field
from fedcore.field.wire import pack, unpack, write_file
from fedcore.nets import net
from fedcore.results import reports
from fedcore.types.federation import Data, Public, Scoring, Threats
from fedcore.types.method import Message, Report, RoundInfo, Scores


def state_bytes(state: State) -> bytes:
    """Return a state of a run in the field, of which the devices' memories are digests alone."""
    messages: Any = state.messages
    distinct = {id(message): message for message in messages.values()}
    number = {key: str(index) for index, key in enumerate(distinct)}
    memories: Any = state.memories
    header = {
        "stage": state.stage, "round": state.round, "delivered": sorted(state.delivered),
        "messages": {name: number[id(message)] for name, message in messages.items()},
        "memories": {name: [memory.digest, memory.nbytes] for name, memory in memories.items()},
    }  # fmt: skip
    server: Any = state.server
    parts = {f"{number[key]} params": message.params for key, message in distinct.items()}
    more = {f"{number[key]} extra": message.extra for key, message in distinct.items()}
    return pack(header, {"server": server, **parts, **more})


def state_of(content: bytes, who: str) -> State:
    """Undo `state_bytes`. Raises InputError for anything else."""
    header, tensors = unpack(content, who)
    try:
        sent = {
            index: Message(tensors[f"{index} params"], tensors[f"{index} extra"])
            for index in {*header["messages"].values()}
        }
        return State(
            tensors["server"],
            {name: sent[index] for name, index in header["messages"].items()},
            {name: RemoteHandle(*memory) for name, memory in header["memories"].items()},
            {}, header["stage"], header["round"], frozenset(header["delivered"]),
        )  # fmt: skip
    except (KeyError, TypeError, AttributeError):
        raise InputError(f"{who}: not the state of a run") from None


MLP: tuple[Mapping[str, Any], ...] = ({"name": "mlp"},)
PLAN, STATE, ABOUT = "plan.json", "state", "about.json"
BEFORE = "before"
"""The state before the last turn."""


@dataclass(frozen=True)
class Study:
    """What the devices' methods come from.

    name, title, size, data, task: of the study, its dataset and its registered model. methods: its rows, each with
    label, name, settings and training. answer: the label of the recommended one, if there is one. seed: its own.
    metric, positive, costs, min_effect, least_test, weigh: what decides, see section run.
    """

    name: str
    title: str
    size: str
    data: str
    task: str
    methods: tuple[Mapping[str, Any], ...]
    seed: int = 0
    answer: str | None = None
    metric: str = "accuracy"
    positive: str | None = None
    costs: Mapping[str, Mapping[str, float]] | None = None
    min_effect: float = 0.01
    least_test: int = 20
    weigh: str = "devices"

    @property
    def configs(self) -> dict[str, MethodConfig]:
        """The rows of the study by their labels."""
        configs = {}
        for method in self.methods:
            label, settings = method["label"], current_settings(method["name"], method["settings"])
            configs[label] = configure(method["name"], settings, method["training"], label=label)
        return configs


@dataclass(frozen=True)
class Setup:
    """What a server knows of its devices before a run.

    nets: sections of settings, of the nets that devices have in turn. recipe: how devices prepare their rows; None:
    they bring examples. study: where methods and the answer come from. scoring: what is measured beside what always is.
    task: the name of what labels are. threats: the server's bound on what devices send, as in a simulation.
    """

    devices: tuple[str, ...]
    shape: tuple[int, ...]
    classes: int
    nets: tuple[Mapping[str, Any], ...] = MLP
    recipe: Recipe | None = None
    study: Study | None = None
    scoring: Scoring = field(default_factory=Scoring)
    task: str = CLASSIFICATION.name
    threats: Threats | None = None

    def public(self) -> Public:
        """Return what a method may know before it begins: no test set, since there is none."""
        steps = LABEL_KINDS[self.task] is SEQUENCES
        built = [net(shape=self.shape, classes=self.classes, per_step=steps, **section) for section in self.nets]
        of = {"multilabel": (0, self.classes), "sequence_labelling": (0, self.shape[0])}.get(self.task, (0,))
        exact = LABEL_KINDS[self.task].predicts_classes
        y = torch.zeros(of, dtype=torch.int64 if exact else torch.float32)
        none = Data(torch.zeros(0, *self.shape), y)
        nets = {name: built[i % len(built)] for i, name in enumerate(sorted(self.devices))}
        return Public(nets, none, self.classes, none)


SETUP = TypeAdapter(Setup)


def write_setup(server: Path, setup: Setup) -> None:
    """Write a setup into a server's kit."""
    setup.public()  # refuses an unknown net
    write_file(server / "setup.json", SETUP.dump_json(setup))


def read_setup(server: Path) -> Setup:
    """Read what `write_setup` wrote. Raises InputError for a folder without it."""
    try:
        setup = SETUP.validate_json((server / "setup.json").read_bytes())
        named = setup.devices and setup.nets and all("name" in of for of in setup.nets)
        twice = len({*setup.devices}) < len(setup.devices)
        if not named or twice or min(setup.classes, *setup.shape) < 1 or setup.task not in LABEL_KINDS:
            raise ValueError
    except (OSError, ValueError):
        raise InputError(f"{server}: not a server's startup kit; fedcore field init makes them") from None
    if setup.recipe is not None:
        setup.recipe.check()
    return setup


class Metered:
    """A link that counts the bytes which travel to and from each device, of calls that are answered."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.down: Counter[str] = Counter()
        self.up: Counter[str] = Counter()

    def send(self, name: str, call: bytes, seconds: float) -> bytes | None:
        """Return a device's answer, see :class:`fedcore.field.server.Link`."""
        answer = self.link.send(name, call, seconds)
        if answer is not None:
            self.down[name] += len(call)
            self.up[name] += len(answer)
        return answer


def run_with_devices(
    link: Link, setup: Setup, config: MethodConfig, seed: int, folder: Path, *, seconds: float, least: int,
    notify: Callable[[str], None] = lambda line: None, away: set[str] | None = None,
) -> Iterator[RoundResult]:  # fmt: skip
    """Run a method turn by turn; each turn's state is in `folder`, from whose last one a run goes on.

    folder: its name is the run's. seconds: that devices have for a step. least: how many must answer. away: devices
    that are not waited for, see :func:`fedcore.field.server.ask`. A turn after which most devices can take no step is
    taken back, if one update was much longer than the others: without its device, if `least` others answer.

    Raises InputError if another run has that name, and for devices that refuse, unless `least` others agree.
    """
    public, meter, away = setup.public(), Metered(link), set[str]() if away is None else away
    plan = plan_run(setup, config, seed, folder)
    method, _ = plan.build()
    about = read_about(folder)
    try:
        if not (folder / PLAN).is_file():
            plan, prepare = exchange(meter, plan, seconds, least, notify, away)
            about = {**about, "prepare": prepare}
        kit = folder.parents[1] if (folder.parents[1] / "authority.crt").is_file() else None
        recipe, scored = plan.read_recipe(), setup.scoring
        classes = [*map(str, range(setup.classes))] if recipe is None else recipe.schema.classes
        if recipe is not None and recipe.label_scale is not None:
            scored = replace(scored, label_scale=recipe.label_scale)
        fed = replace(federation_of(public), scoring=scored, task=setup.task, threats=setup.threats)
        field = Field(
            meter, plan, fed, seconds, notify, kit, away, about.get("aside", []), about.get("devices", {})
        )  # fmt: skip
        try:
            joined = field.join(least)
        finally:
            about = _keep(folder, field, about)  # also what left devices before others refused
        if method.check is not None:
            method.check(joined)
        count = sum(joined.values())
        notify(f"{len(joined)} of {len(public.nets)} devices joined, with {count} training examples")
        while True:
            state_file = folder / STATE
            state = state_of(state_file.read_bytes(), str(state_file)) if state_file.is_file() else None
            try:
                for turn in run_in_field(field, seed, state=state, least=least):
                    at = turn.round_info
                    about = _keep(folder, field, about)  # who has joined late
                    if not (folder / PLAN).is_file():
                        plan.write(folder / PLAN)
                    found = reports.name_classes([cast(Report, turn.report)], classes)
                    for warning in reports.words(found, reports.WARNING):
                        field.say_once(warning)
                    record = {**_record(turn, meter), "lengths": field.lengths}
                    write_file(folder / f"turn-{at.stage}-{at.round}.json", json.dumps(record, default=float).encode())
                    (folder / BEFORE).unlink(missing_ok=True)
                    if state_file.is_file():
                        (folder / BEFORE).hardlink_to(state_file)
                    write_file(state_file, state_bytes(turn.state))  # last: without its state a turn is played again
                    yield turn
                return
            except Stuck:
                if (taken := _take_back(folder)) is None:
                    raise
                liar, turn_of_liar = taken
                notify(
                    f"the last round is taken back: no device can go on from it, and the update of {liar} was too long"
                )
                field.aside.add(liar)
                back = {**about.get("taken_back", {}), liar: turn_of_liar}
                about = _keep(folder, field, {**about, "taken_back": back})
    finally:
        _keep_rest(folder, meter)


def plan_run(setup: Setup, config: MethodConfig, seed: int, folder: Path) -> Plan:
    """Return the plan of a run. Raises InputError for what no device can bring, before any is waited for."""
    public = setup.public()
    wanted = plan_of(config, public.nets, seed, folder.name, setup.shape, setup.classes, setup.recipe, setup.task)
    method, _ = wanted.build()
    require_devices(method, setup.threats, len(public.nets))
    plan = _claim(folder, wanted)
    Inline().call(method.begin, public, seed)
    return plan


def _keep(folder: Path, field: Field, about: dict[str, Any]) -> dict[str, Any]:
    """Write down what devices said when they joined, and who is set aside, if that is new; return it with the rest."""
    folder.mkdir(parents=True, exist_ok=True)
    new = {**about, "devices": {**field.facts}, "aside": sorted(field.aside)}
    if new != about:
        write_file(folder / ABOUT, json.dumps(new).encode())
    return new


def read_about(folder: Path) -> dict[str, Any]:
    """Return what devices said of themselves, and the bytes that no turn has; empty for a run without any."""
    path = folder / ABOUT
    about: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return about


def _keep_rest(folder: Path, meter: Metered) -> None:
    """Write down the bytes since the last turn of a run that ends, of one that devices refuse, too."""
    if meter.up:
        about, rest = read_about(folder), read_rest(folder)
        for name, count in meter.up.items():
            up, down = rest.get(name, (0, 0))
            rest[name] = up + count, down + meter.down[name]
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / ABOUT, json.dumps({**about, "rest": rest}).encode())


def read_rest(folder: Path) -> dict[str, tuple[int, int]]:
    """Return each device's bytes up and down that are of no turn of a run, since it ended before the next one."""
    return {name: (up, down) for name, (up, down) in read_about(folder).get("rest", {}).items()}


def _take_back(folder: Path) -> tuple[str, dict[str, Any]] | None:
    """Undo a run's last turn if one device's update was much longer than the others'; return its name and the turn."""
    state_file, before = folder / STATE, folder / BEFORE
    if not state_file.is_file():
        return None
    turns = {_at(path): path for path in folder.glob("turn-*-*.json")}
    last = turns[max(turns)]
    turn = json.loads(last.read_text("utf-8"))
    if (liar := longest(turn.get("lengths") or {"": 0.0})) is None:
        return None
    if before.is_file():
        before.replace(state_file)
    else:
        state_file.unlink()
    last.unlink()
    return liar, turn


def _claim(folder: Path, plan: Plan) -> Plan:
    """Return the plan of the run in a folder, which is this one but for the numbers that devices share, or this one."""
    path = folder / PLAN
    if not path.is_file():
        return plan
    stored = Plan.read(path)
    recipe = plan.read_recipe()
    if recipe is not None and (old := stored.read_recipe()) is not None and recipe.lacks is not None:
        plan = replace(plan, recipe=replace(recipe, shared=old.shared, label_scale=old.label_scale).to_mapping())
    if plan.to_json() != stored.to_json():
        raise InputError(f"--name {folder.name}: is another run, with another method or settings; give another name")
    return stored


def _record(turn: RoundResult, meter: Metered) -> dict[str, Any]:
    report = cast(Report, turn.report)
    wire = {name: [meter.up.pop(name, 0), meter.down.pop(name, 0)] for name in turn.round_info.names}
    return {
        "units": turn.round_info.units, "absent": turn.absent, "up": dict(turn.up), "down": dict(turn.down),
        "wire": wire, "scores": turn.scores, "words": dict(report.words), "counts": reports.counts([report]),
    }  # fmt: skip


@dataclass(frozen=True)
class StoredRun:
    """What a server has kept of a run.

    turns: so far, without their states. state: after the last one. devices: what each said when it joined, numbers of
    its examples and a digest that tells whether they are those of another run. prepare: the bytes of the numbers that
    they exchanged before. wire: device -> bytes up and down that travelled, each with its frame of words. sent: the
    bytes up and the scores of each turn, also of those that were taken back.
    """

    plan: Plan
    turns: tuple[RoundResult, ...]
    state: State
    devices: Mapping[str, Mapping[str, Any]]
    prepare: Mapping[str, Mapping[str, float]]
    wire: Mapping[str, tuple[int, int]]
    sent: tuple[tuple[Mapping[str, int], Scores], ...]


def read_run(folder: Path) -> StoredRun:
    """Return what is kept of a run. Raises InputError for a folder without a turn."""
    try:
        plan = Plan.read(folder / PLAN)
        state = state_of((folder / STATE).read_bytes(), str(folder))
        about = read_about(folder)
        files = {_at(path): path for path in folder.glob("turn-*-*.json")}
        rounds: dict[tuple[int, int], Any] = {at: json.loads(files[at].read_text("utf-8")) for at in sorted(files)}
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: no run with a turn ({error})") from None
    names = tuple(plan.nets)
    turns = tuple(
        RoundResult(
            RoundInfo(plan.seed, *at, tuple(u if isinstance(u, str) else (u[0], u[1]) for u in of["units"]), names),
            state, of["up"], of["down"], of["scores"], Report(words=of.get("words", {}), counts=of.get("counts")),
            tuple(of["absent"]),
        )
        for at, of in rounds.items()
    )  # fmt: skip
    played = [*rounds.values(), *about.get("taken_back", {}).values()]
    travelled = [*(of["wire"] for of in played), read_rest(folder)]
    wire = {
        name: (sum(of.get(name, (0, 0))[0] for of in travelled), sum(of.get(name, (0, 0))[1] for of in travelled))
        for name in names
    }
    sent = tuple((of["up"], of["scores"] or {}) for of in played)
    return StoredRun(plan, turns, state, about.get("devices", {}), about.get("prepare", {}), wire, sent)


def _at(path: Path) -> tuple[int, int]:
    """Return the stage and the round of a turn's file."""
    _, stage, number = path.stem.split("-")
    return int(stage), int(number)
