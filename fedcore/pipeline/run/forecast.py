"""What a run would compute: its steps are looked up in the cache, and none is run.

The loop runs on an `execute` that finds what is cached, and stands in for the rest with references to nothing, whose
sizes are those of models or, in the first stage in which devices send, of what one sends after a single minibatch.
Their keys are in no cache, so that what depends on them counts as not cached either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import prod
from statistics import median
from typing import Any

from fedcore.config.methods import MethodConfig
from fedcore.config.request import Job
from fedcore.config.settings import Setting
from fedcore.config.studies import run_section
from fedcore.core.evaluation import score
from fedcore.core.new_device import NEVER, trains_alone
from fedcore.core.rounds import receive, to_memories
from fedcore.core.together import accelerate_all
from fedcore.errors import InputError
from fedcore.execute.accelerator import accelerate, find_accelerator
from fedcore.execute.workers import Inline, Workers
from fedcore.nets import shapes
from fedcore.pipeline.cache import journal
from fedcore.pipeline.cache.journal import Step
from fedcore.pipeline.cache.keys import Digest
from fedcore.pipeline.cache.shared import open_store
from fedcore.pipeline.cache.store import Ref, Store, refs, unflatten
from fedcore.pipeline.orchestration.cached_steps import Steps
from fedcore.pipeline.orchestration.records import look_up
from fedcore.pipeline.orchestration.shards import into_shards, nested_on, trains_together, word_of
from fedcore.pipeline.record.result import PreparedData
from fedcore.pipeline.run import partitions
from fedcore.pipeline.run.chunks import rounds
from fedcore.pipeline.run.left_out import federation_without, leaves_out
from fedcore.pipeline.run.message_sizes import message_bytes
from fedcore.pipeline.run.run_method import count_examples, deploy_models, prepared_bytes, rates_of, with_rate
from fedcore.pipeline.run.step_functions import deploy, divide_finally
from fedcore.report.forecast import Expected, print_forecast
from fedcore.results.answer import GUESSES, STOPPED_AFTER
from fedcore.types.federation import Federation
from fedcore.types.method import Message, Method, Report


class History:
    """What this project's journal says of earlier steps: seconds and bytes of one device's, by kind."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lines = [line for line in journal.read() if line.get("cached") is False and "wall" in line]

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Median seconds by kind; those of rounds are of one device in one round."""
        by_kind: dict[str, list[float]] = defaultdict(list)
        for line in self._lines:
            if line["step"] != "rounds":
                by_kind[line["step"]].append(float(line["wall"]) / line.get("calls", 1))
            elif (record := look_up(line["key"])) is not None:
                played = unflatten(record["value"], {})["rounds"]
                turns = sum(len({*up, *down}) for up, down, _ in played)
                by_kind["rounds"].append(float(line["wall"]) / max(1, turns))
        return {kind: median(walls) for kind, walls in by_kind.items()}

    @cached_property
    def disk(self) -> dict[str, float]:
        """Median bytes of blobs by kind."""
        by_kind: dict[str, list[float]] = defaultdict(list)
        for line in self._lines:
            paths = [self.store.path(Ref(digest, 0)) for digest in line.get("blobs", ())]
            size = sum(path.stat().st_size for path in paths if path.is_file())
            by_kind[line["step"]].append(size / line.get("calls", 1))
        return {kind: median(sizes) for kind, sizes in by_kind.items()}


class Lookup:
    """Stands in for Steps (fedcore.pipeline.orchestration.cached_steps), and runs nothing but what takes no time.

    work: kind -> how many device's rounds or steps are not cached, those of several devices at once as fractions of
    `workers`.
    """

    in_parts = True

    def __init__(self, store: Store, workers: int, accelerator: str | None = None, together: int = 1) -> None:
        self.store = store
        self.workers = workers
        self.accelerator = accelerator
        self.together = together if accelerator else 1
        self.done: list[Step] = []
        self.work: dict[str, float] = defaultdict(float)
        self.model = 0
        self.sent: dict[int, int] = {}  # stage -> bytes of a message; models where it is not known
        self._keys: set[str] = set()
        self._digest = Digest()
        self._inline: dict[str, Any] = {}
        self._sizes: dict[str, dict[int, int]] = {}

    def __call__(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        return self._find(fn, "", args, 1.0, partial(self._stand_in, fn=fn, args=args))

    def map(self, fn: Callable[..., Any], calls: Mapping[Any, tuple[Any, ...]], /) -> dict[Any, Any]:
        placed, share = accelerate(fn, self.accelerator), 1 / min(self.workers, max(1, len(calls)))
        values_of: dict[Any, Any] = {}
        if len(shards := into_shards(fn, calls, self.together)) < len(calls):
            if trains_together(fn, self.together):
                placed = accelerate_all(fn, self.accelerator)
            for label, shard in shards.items():
                nothing = partial(self._stand_ins, fn=fn, calls=shard)
                values = self._find(placed, label, tuple(shard.values()), len(shard) * share, nothing, calls=len(shard))
                values_of |= zip(shard, values, strict=True)
            return values_of
        for unit, args in calls.items():
            values_of[unit] = self._find(placed, unit, args, share, partial(self._stand_in, fn=fn, args=args))
        return values_of

    def run_inline(self, fn: Callable[..., Any], *args: Any, start: bool = False, known: Any = None) -> Any:
        def compute(key: str) -> Any:
            if key not in self._inline:  # settings and studies share data
                self._inline[key] = self.store.put(Inline().call(fn, *self.store.get(args)))
            return self._inline[key]

        return self._find(fn, "", args, 1.0, compute)

    def run_nested(
        self, fn: Callable[..., Any], *args: Any, unkeyed: tuple[Any, ...] = (), needed: Callable[[Any], Any]
    ) -> Any:
        method, fed, _, place, _, left = (*args, *unkeyed)[:6]
        stage = method.stages[place[4]]
        turns, message = left * max(1, round(stage.fraction * len(fed.devices))), self._message(place[4])

        def stand_in(key: str) -> dict[str, Any]:
            sent = dict.fromkeys(fed.devices, int(stage.fraction * message) if stage.combine is not None else 0)
            state: Any = Ref(f"{key} server", self.model), dict.fromkeys(fed.devices, Ref(key, message)), {}, {}
            return {"state": state, "delivered": [], "rounds": [(sent, sent, {})] * left, "reports": [Report()] * left}

        return self._find(nested_on(fn, self.accelerator, self.together), "", args, turns, stand_in, needed)

    def set_sizes(self, row: MethodConfig, fed: Federation, examples: Mapping[str, int]) -> None:
        """Find out how large the messages of a row are; they are as large at every learning rate."""
        alike = replace(row, label="", training=replace(row.training, lr=1.0))
        key = self._digest.of(("sizes", alike, fed, examples))
        if key not in self._sizes:
            self._sizes[key] = message_bytes(row, fed, examples, self.store)
        self.sent = self._sizes[key]

    def drop(self, value: Any, but: Any) -> None:
        pass

    def let_go(self, value: Any, but: Any, again: Any, brief: bool) -> None:
        pass

    def note(self, steps: list[Step]) -> None:
        """Count steps that no method has needed yet."""
        self.done += steps
        self._keys |= {step.key for step in steps}

    def forget(self, count: int) -> None:
        """Forget all steps but the first ones."""
        self._keys -= {step.key for step in self.done[count:]}
        del self.done[count:]

    def _find(
        self,
        fn: Any,
        unit: Any,
        args: tuple[Any, ...],
        work: float,
        stand_in: Callable[[str], Any],
        needed: Callable[[Any], Any] = lambda value: value,
        calls: int = 1,
    ) -> Any:
        key, kind = self._digest.of(("step", fn, args)), word_of(fn, *args)
        record = look_up(key)
        value = None if record is None else unflatten(record["value"], {})
        cached = record is not None and all(self.store.holds(ref) for ref in refs(needed(value)))
        if key not in self._keys:  # methods share steps
            self.note([Step(kind, str(unit), key, cached, 0.0, 0.0, (), calls)])
            self.work[kind] += 0 if cached else work
        return value if cached else stand_in(key)

    def _stand_ins(self, key: str, fn: Any, calls: Mapping[Any, tuple[Any, ...]]) -> list[Any]:
        return [self._stand_in(f"{key} {number}", fn, args) for number, args in enumerate(calls.values())]

    def _stand_in(self, key: str, fn: Any, args: tuple[Any, ...]) -> Any:
        """Return what the step of that key returns, with references to nothing, the same whenever it is asked for."""
        one, other = Ref(key, self.model), Ref(f"{key} server", self.model)
        if fn is receive:
            round_info = args[3]
            return other, dict.fromkeys(round_info.names, Ref(key, self._message(round_info.stage))), Report()
        if fn is to_memories:
            return {name: Ref(f"{key} {name}", self.model) for name in args[0]}
        if fn is score:
            return {name: {} for name in args[3]}
        if fn is deploy:
            return one, other
        if len(args) == 3:  # an update with what is attached to it
            return Ref(key, self._message(args[2].stage))
        if len(args) == 2:  # the beginning: the federation without its data, and the seed
            shared_init = getattr(fn, "keywords", {}).get("shared_init", True)
            return other, dict.fromkeys(args[0].nets, one if shared_init else self.store.put(Message({})))
        return other, Ref(key, self._message(args[3].stage))

    def _message(self, stage: int) -> int:
        """Return the bytes of a message of a stage, which the server is taken to answer with as many."""
        return self.sent.get(stage, self.model)


def forecast(
    jobs: Iterable[Job],
    store: Store,
    workers: int,
    accelerator: str | None,
    together: int = 1,
    promoting: Collection[str] = (),
) -> Iterator[Expected]:
    """Yield what each method of the jobs would cost. It reads the data and divides them, as a preview does.

    promoting: the names of jobs of which a model may be promoted, after a final fit; one for each task.
    """
    history, fitted = History(store), set[str]()
    look: Any = Lookup(store, workers, accelerator, together)
    sources: dict[str, Ref] = {}
    tuned: dict[tuple[str, str], dict[str, bool]] = {}  # setting -> label -> whether all of its rates have been tried
    for job, setting in ((each, setting) for each in jobs for setting in each.settings):
        divided = divide(look, sources, job, setting)
        untried = (setting.study, setting.name) not in tuned
        tried = tuned.setdefault((setting.study, setting.name), {})
        rows = [
            rates if tried.get(row.label) else rates[:1]
            for row in setting.methods
            for rates in each_rate(setting, row, untried)
        ]
        fits = job.name in promoting and setting.task not in fitted
        costs: list[Expected] = []
        finals: list[tuple[str, Expected, str]] = []
        without: list[tuple[str, Expected, str]] = []
        for rates in rows:
            try:
                row, cost = best_rate(look, history, job, setting, divided, rates)
            except InputError:
                if job.optional:
                    continue
                raise
            if untried:
                tried[row.label] = tried.get(row.label, True) and cost.cached == cost.steps
            costs.append(replace(cost, method=row.label, traffic=divided.before + cost.traffic))
            if fits and not row.control:
                finals.append(("final", fit_finally(look, history, job.seed, setting, row, divided.data), row.label))
                fitted.add(setting.task)
            if divided.rest is not None and (not row.control or row.label in GUESSES):
                with suppress(InputError):
                    without.append(leave_first_out(look, history, job.seed, divided, row))
        for label, cost in dearest(without, len(divided.fed.devices)):
            costs.append(replace(cost, method=f"{label} without each device"))
        for label, cost in dearest(finals, 1):
            costs.append(replace(cost, method=f"{label}, final fit"))
        yield from (replace(cost, study=job.study, worker=divided.largest + cost.worker) for cost in costs)


@dataclass(frozen=True)
class Divided:
    """A setting's data, divided among devices.

    sizes: device -> its labelled training examples. before: bytes of all devices before the first round. largest: those
    of the largest part of a device's examples. rest: the federation without the first device, where devices are left
    out.
    """

    data: PreparedData
    fed: Federation
    sizes: Mapping[str, int]
    before: float
    largest: int
    rest: Federation | None


def divide(look: Any, sources: dict[str, Ref], job: Job, setting: Setting) -> Divided:
    """Read a setting's data, unless `sources` has them, and divide them."""
    if setting.source not in sources:
        sources[setting.source] = partitions.read_dataset(look.store, setting.data)
    scale = setting.federation["scale"]
    made = partitions.divide_dataset(look, sources[setting.source], setting.federation, job.seed)
    data = PreparedData(sources[setting.source], made)
    fed = partitions.build_federation(look, setting, data)
    job.criterion.require_task(fed.task)
    look.model = max(model_bytes(fed), 1)
    before = len(fed.devices) * sum(prepared_bytes(look.store, data, scale).values())
    largest = max(part.nbytes for part in refs([device.data for device in fed.devices.values()]))
    leaving = leaves_out(job.new_device, look.store, data)
    rest = federation_without(look, fed, data, scale, min(fed.devices))[0] if leaving else None
    return Divided(data, fed, count_examples(look.store, data), before, largest, rest)


def best_rate(
    look: Any, history: History, job: Job, setting: Setting, divided: Divided, rates: list[MethodConfig]
) -> tuple[MethodConfig, Expected]:
    """Return a row with the learning rate whose steps are cached, which is the best; else with the first one.

    Raises InputError where the data or the nets do not allow the method.
    """
    first = rates[0].build(divided.fed.public.nets, divided.sizes, divided.fed.task)
    look.set_sizes(rates[0], divided.fed, divided.sizes)
    done = len(look.done)
    cost = expect(look, history, first, divided.fed, job.seed, setting.every)
    steps = look.done[done:]
    for row in rates[1:] if cost.cached < cost.steps else []:
        look.forget(done)
        method = row.build(divided.fed.public.nets, divided.sizes)
        other = expect(look, history, method, divided.fed, job.seed, setting.every)
        if other.cached == other.steps:
            return row, other
    look.forget(done)
    look.note(steps)
    return rates[0], cost


def leave_first_out(
    look: Any, history: History, seed: int, divided: Divided, row: MethodConfig
) -> tuple[str, Expected, str]:
    """Return the row's kind, what it would cost without the first device, and its label, see `dearest`."""
    assert divided.rest is not None
    method = row.build(divided.rest.public.nets, {name: divided.sizes[name] for name in divided.rest.devices})
    cost = expect(look, history, method, divided.rest, seed, NEVER, deploys=False)
    return row.label if row.control else "alone" if trains_alone(method) else "combines", cost, row.label


def each_rate(setting: Setting, row: MethodConfig, untried: bool) -> list[list[MethodConfig]]:
    """Return a row with each of its learning rates, its own first: a list for each, or while all are tried one list."""
    rates = [with_rate(row, rate) for rate in rates_of(setting, row)]
    return (
        [[other] for other in rates]
        if untried
        else [[row, *(other for other in rates if other.training.lr != row.training.lr)]]
    )


def fit_finally(
    look: Any, history: History, seed: int, setting: Setting, row: MethodConfig, study: PreparedData
) -> Expected:
    """Return what a final fit of a row would cost: all its rounds on all rows, as :mod:`fedcore.pipeline.run.final_fit`
    has it. Seconds of this project's steps, which trained on a study's rows, grow with the rows.
    """
    fed = partitions.build_federation(look, setting, study)
    held_out = row.build(fed.public.nets).held_out
    divided = look.run_inline(partial(divide_finally, held_out=held_out), study.dataset, study.partition)
    final = PreparedData(study.dataset, divided)
    before, rows = (sum(count_examples(look.store, each).values()) for each in (study, final))
    fed = partitions.build_federation(look, setting, final, final_fit=held_out)
    method = row.build(fed.public.nets, count_examples(look.store, final))
    expected = expect(look, history, method, fed, seed, max(stage.rounds for stage in method.stages))
    return replace(expected, seconds=expected.seconds * rows / max(before, 1))


def expect(
    look: Any, history: History, method: Method, fed: Federation, seed: int, every: int, deploys: bool = True
) -> Expected:
    """Return what a method would cost; whose it is, is not yet said."""
    done, look.work = len(look.done), defaultdict(float)
    traffic = play(method, fed, seed, look, every, deploys)
    steps = look.done[done:]
    left = [step for step in steps if not step.cached]
    return Expected(
        "", "", len(steps), len(steps) - len(left),
        sum(work * history.seconds.get(kind, 0.0) for kind, work in look.work.items()),
        sum(history.disk.get(step.kind, look.model) * step.calls for step in left), traffic,
        3 * look.model * len(fed.devices),  # each device's memory, message and update
        4 * look.model,  # its gradient and two of Adam
        frozenset(step.kind for step in left) - frozenset(history.seconds),
    )  # fmt: skip


def dearest(rows: Iterable[tuple[str, Expected, str]], devices: int) -> Iterator[tuple[str, Expected]]:
    """Yield the rows that may be trained without each device, with the cost of all devices: one of each kind.

    For a final fit there is one "device".

    rows: kind, cost without the first device, label. Which row is best is known once all have run: one whose steps
    are all cached has been it, otherwise the dearest stands for it.
    """
    kinds: dict[str, list[tuple[Expected, str]]] = defaultdict(list)
    for kind, one, label in rows:
        kinds[kind].append((one, label))
    for kind, candidates in kinds.items():
        if kind in (*GUESSES, "alone", "combines", "final"):
            one, label = max(candidates, key=lambda pair: (pair[0].steps == pair[0].cached, pair[0].seconds))
            yield label, replace(
                one, steps=one.steps * devices, cached=one.cached * devices, seconds=one.seconds * devices,
                disk=one.disk * devices, traffic=one.traffic * devices,
            )  # fmt: skip


def expected_seconds(steps: Steps, workers: int, method: Method, fed: Federation, seed: int) -> float:
    """Return the seconds of a method's steps that are not in the cache, without the kinds that have never run here."""
    look: Any = Lookup(steps.store, workers, steps.accelerator, steps.together)
    look.model = max(model_bytes(fed), 1)
    play(method, fed, seed, look, max(stage.rounds for stage in method.stages))
    known = History(steps.store).seconds
    return float(sum(work * known.get(kind, 0.0) for kind, work in look.work.items()))


def play(method: Method, fed: Federation, seed: int, look: Any, every: int, deploys: bool = True) -> int:
    """Go through a method's rounds; returns the bytes that all devices send and receive."""
    played = list(rounds(method, fed, seed, look, every))
    if deploys:
        deploy_models(look, method, fed, played[-1].state)
    return sum(sum(result.up.values()) + sum(result.down.values()) for result in played)


def model_bytes(fed: Federation) -> int:
    """Return the bytes of the largest device's model."""
    return max(4 * sum(map(prod, shapes(device.net).values())) for device in fed.devices.values())


def print_plan(params: Mapping[str, Any], jobs: Iterable[Job], final_fit: bool = False) -> None:
    """Print what a run of the jobs would compute. final_fit: of a model that it promotes."""
    run = run_section(params)
    store, accelerator, jobs = open_store(run.store), find_accelerator(run.accelerator), [*jobs]
    least = {job.study: min(other.seed for other in jobs if other.study == job.study) for job in jobs}
    promoting = [f"{study}-{seed}" for study, seed in least.items() if final_fit]
    stops = any(sum(job.stop_rows for job in jobs if job.study == study) > STOPPED_AFTER for study in least)
    rows = forecast(jobs, store, Workers(run.workers).count, accelerator, run.together, promoting)
    print_forecast(rows, final_fit, stops)
