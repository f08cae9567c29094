"""What a run would compute: its steps are looked up in the cache, and none is run.

The loop's walk finds what is cached, and has stand-ins for the rest: references to nothing, whose sizes are those of
models or, in the first stage in which devices send, of what one sends after a single minibatch and is answered alone.
Their keys are in no cache, so that what depends on them counts as not cached either.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from statistics import fmean, median
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

from fedcore.builders import takes
from fedcore.config.methods import MethodConfig
from fedcore.config.request import Job
from fedcore.config.settings import Setting
from fedcore.config.studies import run_section
from fedcore.core.new_device import NEVER, has_model_for_new, score_model, score_new, trains_alone
from fedcore.core.rounds import device_step, receive, to_memories
from fedcore.core.threats import corrupt, repeat
from fedcore.core.together import describe_use, run_on_together
from fedcore.errors import Diverged, InputError
from fedcore.execute.accelerator import find_accelerator, run_on
from fedcore.execute.workers import Inline, Workers
from fedcore.nets import shapes
from fedcore.pipeline.cache import journal
from fedcore.pipeline.cache.journal import Step
from fedcore.pipeline.cache.records import DIVERGED, look_up
from fedcore.pipeline.cache.shared import open_store
from fedcore.pipeline.cache.store import Ref, Store, unflatten
from fedcore.pipeline.orchestration.graph import Graph, nested_on, whole
from fedcore.pipeline.orchestration.task_runs import Outcome
from fedcore.pipeline.record.result import PreparedData, Result
from fedcore.pipeline.run import partitions
from fedcore.pipeline.run.chunks import count_local_steps, rounds
from fedcore.pipeline.run.left_out import compared, federation_without, leaves_out, rows_with_model, score_sites
from fedcore.pipeline.run.run_method import count_examples, deploy_models, prepared_bytes, rates_of, run_method
from fedcore.pipeline.run.step_functions import deploy, score_validation
from fedcore.pipeline.work import build, word_of
from fedcore.report.terminal import CostEstimate, print_forecast, standard
from fedcore.results.answer import GUESSES, STOPPED_AFTER, rows_to_leave_out
from fedcore.results.criterion import Criterion
from fedcore.results.stopping import best, rows_that_cannot_win
from fedcore.types.federation import Federation, Params
from fedcore.types.method import Message, Method, Report, RoundInfo, Stage, StepId

T = TypeVar("T")

RUNS, TURNS = 200, 20_000
"""The most runs of a plan, and the most rounds of devices in one of them, that are looked up in the cache."""


READ, PAUSE = "", 10.0
"""The kind of a step that is read from the cache, and the seconds after which the next one has waited for others."""


def typical_seconds() -> dict[str, float]:
    """Return the median seconds of this project's steps by kind; those of rounds are of one device in one round.

    Those of READ are the mean between two steps of a process that were read one after the other.
    """
    by_kind, last = defaultdict[str, list[float]](list), dict[int, dict[str, Any]]()
    for line in journal.read():
        before, last[line.get("process", 0)] = last.get(line.get("process", 0), {}), line
        if line.get("cached") and before.get("cached") and 0 <= line["time"] - before["time"] < PAUSE:
            by_kind[READ].append(line["time"] - before["time"])
        if line.get("cached") is not False or "wall" not in line:
            continue
        if line["step"] != "rounds":
            by_kind[line["step"]].append(float(line["wall"]) / line.get("calls", 1))
        elif (record := look_up(line["key"])) is not None and DIVERGED not in record["value"]:
            played = unflatten(record["value"], {})["rounds"]
            turns = sum(len({*up, *down}) for up, down, _ in played)
            by_kind["rounds"].append(float(line["wall"]) / max(1, turns))
    return {kind: (fmean if kind == READ else median)(walls) for kind, walls in by_kind.items()}


class StageBytes(NamedTuple):
    """Bytes of a stage: of an update, of the server's answer to the first one, and by how much another one of the same
    round lets it grow (more), and one of an earlier round (earlier).
    """

    up: int
    down: int
    more: int = 0
    earlier: int = 0


class Sent(NamedTuple):
    """Bytes of messages: of the first to each device, and of the stage in which devices first send."""

    first: Mapping[str, int] = {}
    stages: Mapping[int, StageBytes] = {}


@dataclass(frozen=True)
class Plan:
    """What a method needs: its steps by key, and the bytes that all devices send and receive.

    bound: whether some rounds stand for all. reading: the seconds in which what is cached is read.
    """

    steps: Mapping[str, Step]
    traffic: float
    bound: bool = False
    reading: float = 0.0

    def is_cached(self, before: Mapping[str, Step]) -> bool:
        """Tell whether no step is to be computed but those that were needed before."""
        return all(step.cached or key in before for key, step in self.steps.items())


class DryRun(Graph):
    """Walks through steps as `Graph` does, with stand-ins for what is not cached; runs only what takes no time.

    count: of workers. done: the steps that the method needs, as often as it asks for them; the seconds of one that is
    not cached are what it is expected to take, a step of several devices at once that share of a worker's time.
    """

    def __init__(self, store: Store, count: int, accelerator: str | None = None, together: int = 1) -> None:
        super().__init__(store, Inline(), accelerator=accelerator, together=together)
        self.count = count
        self.seconds = typical_seconds()
        self._method: Method | None = None
        self._model = 0  # bytes of the largest device's, at least 1
        self._sent = Sent()  # models where it is not known
        self._inline: dict[str, Any] = {}
        self._sizes: dict[str, Sent] = {}

    def play(
        self, method: Method, fed: Federation, seed: int, every: int, sent: Sent | None = None,
        deploys: bool = True, score: Callable[[Method, Federation, Any], Any] = lambda *run: None,
    ) -> Plan:  # fmt: skip
        """Go through a method's rounds; what was looked up since the last method is part of its plan.

        sent: the bytes of messages, see `message_bytes`. score: called at the end with the last state. Of
        more than TURNS rounds of a device the first ones, a tenth of TURNS, stand for all.
        """
        turns = count_local_steps(method, len(fed.devices))
        if turns > TURNS:
            stages = (replace(stage, rounds=max(1, stage.rounds * TURNS // (10 * turns))) for stage in method.stages)
            method = replace(method, stages=tuple(stages))
        times = turns / count_local_steps(method, len(fed.devices))
        self._model = max(1, *(4 * sum(map(prod, shapes(device.net).values())) for device in fed.devices.values()))
        self._method, self._sent = method, sent or Sent()
        results = []
        with suppress(Diverged):  # as the cache knows
            for result in rounds(method, fed, seed, self, every):
                results.append(result)
            if deploys:
                deploy_models(self, method, fed, result.state)
            score(method, fed, result.state)
        traffic = sum(sum(result.up.values()) + sum(result.down.values()) for result in results)
        longer, done, self.done = {"rounds": times}, self.done, []
        steps = {step.key: replace(step, wall=step.wall * longer.get(step.kind, 1.0)) for step in done}
        reading = self.seconds.get(READ, 0.0) * sum(step.cached for step in done)
        return Plan(steps, traffic * times, turns > TURNS, reading)

    def _run(
        self, fn: Callable[..., Any], calls: Mapping[Any, tuple[Any, ...]], accelerator: str | None = None,
        work: Any = None, sharded: bool = False,
    ) -> dict[Any, Any]:  # fmt: skip
        share = 1 / min(self.count, max(1, sum(map(len, calls.values())) if sharded else len(calls)))

        def body(key: str, *args: Any) -> tuple[Any, float]:
            if not sharded:
                return self._stand_in(key, fn, args), share
            return [self._stand_in(f"{key} {number}", fn, call) for number, call in enumerate(args)], share * len(args)

        return self._map(fn, calls, body, sharded=sharded)

    def run_inline(self, fn: Callable[..., Any], *args: Any, start: bool = False) -> Any:
        def body(key: str, *args: Any) -> tuple[Any, float]:
            if key not in self._inline:  # settings and studies share data
                self._inline[key] = self.store.put(Inline().call(fn, *self.store.get(args)))
            return self._inline[key], 1.0

        return self._map(fn, {"": args}, body)[""]

    def run_nested(
        self, fn: Callable[..., Any], *args: Any, unkeyed: tuple[Any, ...] = (),
        needed: Callable[[Any], Any] = whole, name: Any = None,
    ) -> Any:  # fmt: skip
        method, fed, _, state, every, left = (*args, *unkeyed)[:6]
        self._method, stage = method, method.stages[state.stage]
        number, start, count = state.stage, state.round, max(1, round(stage.fraction * len(fed.devices)))
        answers = [self._answer(number, start + k, count) for k in range(left)]
        sent = [int(stage.fraction * size) if stage.combine else 0 for size in (self._bytes_of(number).up, *answers)]
        up, *downs = (dict.fromkeys(fed.devices, size) for size in sent)
        lacking = fed.devices.keys() - state.delivered
        first = {n: int(stage.fraction * state.messages[n].nbytes) if n in lacking else 0 for n in fed.devices}

        def body(key: str, *args: Any) -> tuple[Any, float]:
            end: Any = Ref(f"{key} server", self._model), dict.fromkeys(fed.devices, Ref(key, answers[-1])), {}, {}
            in_turn, delivered = enumerate([first, *downs[:-1]], 1), [] if stage.combine else [*fed.devices]
            scores: dict[str, Any] = {name: {} for name in fed.devices}
            played: list[Any] = [(up, down, None if (start + k) % every else scores) for k, down in in_turn]
            value = {"state": end, "delivered": delivered, "rounds": played, "reports": [Report()] * left}
            return value, left * count

        return self._map(nested_on(fn, self.accelerator, self.together), {"": args}, body, needed)[""]

    def drop(self, value: Any, keep: Any) -> None:
        pass

    def _compute(
        self, kind: str, keys: Mapping[Any, str], due: Mapping[Any, tuple[Any, ...]], body: Callable[..., Any],
        *options: Any,
    ) -> Iterator[tuple[Any, Outcome]]:  # fmt: skip
        for unit, args in due.items():
            value, work = body(keys[unit], *args)
            yield unit, Outcome(value, work * self.seconds.get(kind, 0.0), 0.0, False)

    def look(self, walk: Callable[[], T]) -> T | None:
        """Return what a walk through steps gives if all of them are cached; they are no part of a plan."""
        done = len(self.done)
        try:
            return self.from_cache(walk)
        finally:
            del self.done[done:]

    def message_bytes(self, row: MethodConfig, fed: Federation, sizes: Mapping[str, int]) -> Sent:
        """Return the bytes of a row's messages, which are as large at every learning rate.

        They are those of all rows whose devices do the same before they send.
        """
        alike = replace(row, training=replace(row.training, lr=1.0))
        begin, stages = first_steps(alike, fed, sizes)
        steps = [(stage.local, stage.attach, stage.combine, stage.rounds > 1) for stage in stages]
        key = self._digest.of((begin, steps, fed, sizes))
        if key not in self._sizes:
            self._sizes[key] = message_bytes(row, fed, sizes, self.store)
        return self._sizes[key]

    def _stand_in(self, key: str, fn: Any, args: tuple[Any, ...]) -> Any:
        """Return what the step of that key returns, with references to nothing, the same whenever it is asked for.

        The step is known by its function: the method's own, or one that the loop calls.
        """
        assert self._method is not None
        while getattr(fn, "func", None) in (run_on, run_on_together):
            fn = fn.args[0]
        own, server = Ref(key, self._model), Ref(f"{key} server", self._model)
        if fn == self._method.begin:
            first = {name: self._sent.first.get(name, self._model) for name in args[0].nets}
            stand_ins = {size: Ref(f"{key} {size}", size) for size in first.values()}
            stand_ins[0] = self.store.put(Message({}))
            return server, {name: stand_ins[size] for name, size in first.items()}
        for stage in self._method.stages:
            if fn == stage.local:
                return server, Ref(key, self._bytes_of(args[3].stage).up)
            if isinstance(stage, Stage) and fn == stage.attach:
                return Ref(key, self._bytes_of(args[2].stage).up)
        if fn is receive:
            turn = args[3]
            answer = Ref(key, self._answer(turn.stage, turn.round, len(turn.units)))
            return server, dict.fromkeys(turn.names, answer), Report()
        if fn is to_memories:
            return {name: Ref(f"{key} {name}", self._model) for name in args[0]}
        if fn is score_model or getattr(fn, "func", fn) is score_validation:
            return {}
        if word_of(fn) == "evaluate":
            return {name: {} for name in args[3]}
        if fn is deploy:
            return own, server
        if getattr(fn, "func", fn) in (corrupt, repeat):
            return Ref(key, args[0].nbytes)
        raise TypeError(f"a plan has no stand-in for step {word_of(fn, *args)!r} ({fn})")

    def _answer(self, stage: int, number: int, updates: int) -> int:
        """Return the bytes of the server's answer in a round of a stage. number: of the round. updates: in a round."""
        sizes = self._bytes_of(stage)
        return sizes.down + sizes.more * (updates - 1) + sizes.earlier * updates * number

    def _bytes_of(self, number: int) -> StageBytes:
        """Return the bytes of a stage: its own, or those of one in which devices do the same, or models."""
        assert self._method is not None
        stages, sent = self._method.stages, self._sent.stages
        does = [self._digest.of((stage.local, getattr(stage, "attach", None))) for stage in stages]
        alike = (sent[k] for k in (number, *sent) if k in sent and does[k] == does[number])
        return next(alike, StageBytes(self._model, self._model))


@dataclass
class CachedRuns:
    """The runs of one setting, in the order of a run, as far as the cache has them.

    criterion: what decides now. leave_out: whether devices are left out in turn. best: label -> the row at the learning
    rate that is best. tried: the first seed's runs at each. whole: whether no run is missing so far, so that what
    depends on all of them is known.
    """

    dry_run: DryRun
    criterion: Criterion
    leave_out: bool
    results: list[Result] = field(default_factory=list)
    tried: list[Result] = field(default_factory=list)
    best: dict[str, MethodConfig] = field(default_factory=dict)
    whole: bool = True

    def add(self, job: Job, setting: Setting, partitioned: "PartitionedSetting", rows: list[MethodConfig]) -> None:
        """Look up a row at its learning rates."""
        session: Any = SimpleNamespace(
            steps=self.dry_run, store=self.dry_run.store, counting=lambda *_: nullcontext(), print_line=lambda _: None
        )
        of_job = partial(run_method, session, setting, partitioned.data, partitioned.fed)
        walks = (partial(of_job, row, job.seed, job.size, setting.every, job.extra_figures) for row in rows)
        results = list[Result]()
        for walk in walks:
            with suppress(Diverged):
                if (result := self.dry_run.look(walk)) is None:
                    self.whole = False
                    return
                results.append(result)
        if not results:
            return
        chosen = results[best({number: of.table for number, of in enumerate(results)}, self.criterion)]
        self.tried += results if chosen.row.label not in self.best else []
        self.best[chosen.row.label] = chosen.row
        self.results.append(chosen)

    def stopped(self, job: Job) -> frozenset[str]:
        """Return the rows that a job does not run, since they cannot win."""
        first = [*dict.fromkeys(result.seed for result in self.results)][:STOPPED_AFTER]
        if not job.stop_rows or not self.whole or len(first) < STOPPED_AFTER:
            return frozenset()
        results = [of for of in self.results if of.seed in first]
        return rows_that_cannot_win(*compared(results), self.criterion, self._able() if self.leave_out else None)

    def without(self) -> frozenset[str]:
        """Return the rows that are trained without each device; none unless all runs are known."""
        known = self.leave_out and self.whole and self.results
        return rows_to_leave_out(*compared(self.results), self._able(), self.criterion) if known else frozenset()

    def _able(self) -> frozenset[str]:
        """Return the rows with a model for a new device, as far as some learning rate was asked."""
        found = (self.dry_run.look(partial(rows_with_model, self.dry_run, [of])) for of in self.tried)
        return frozenset[str]().union(*filter(None, found))


def forecast(
    jobs: Iterable[Job], store: Store, workers: int, accelerator: str | None, together: int = 1
) -> Iterator[CostEstimate]:
    """Yield what each method of the jobs would cost. It reads the data and divides them, as a preview does.

    A step that several methods share is the first one's. Rows that may be trained without each device come last: which
    row is best of its kind is known once all have run, and one whose steps are all cached has been it; otherwise the
    most expensive row stands for it. Where all runs are cached their results say what is best by
    what decides now: the learning rates, the rows that stop, and those that are trained without each device. Of more
    than RUNS runs a study's first seed that is not cached, from the second on, stands for all later ones.
    """
    dry_run, sources, seen = DryRun(store, workers, accelerator, together), dict[str, Ref](), dict[str, Step]()
    tuned: dict[tuple[str, str], dict[str, bool]] = {}  # setting -> label -> whether all of its rates have been tried
    cached: dict[tuple[str, str], CachedRuns] = {}
    last: list[tuple[CachedRuns, str, int, bool, list[tuple[MethodConfig, Plan]]]] = []

    def cost(study: str, label: str, plan: Plan, before: float = 0.0) -> CostEstimate:
        new = [step for key, step in plan.steps.items() if key not in seen]
        unknown = frozenset(step.kind for step in new if not step.cached) - frozenset(dry_run.seconds)
        cached, uncached = sum(step.cached for step in new), sum(step.wall for step in new if not step.cached)
        anew = sum(step.wall for step in new)
        seconds, traffic = anew if plan.bound else plan.reading + uncached, before + plan.traffic
        return CostEstimate(study, label, len(new), cached, seconds, traffic, unknown, plan.bound, anew=anew)

    def costs(job: Job, setting: Setting) -> Iterator[CostEstimate]:
        partitioned = divide(dry_run, sources, job, setting)
        untried = (setting.study, setting.name) not in tuned
        tried = tuned.setdefault((setting.study, setting.name), {})
        runs = CachedRuns(dry_run, job.criterion, partitioned.rest is not None)
        runs = cached.setdefault((setting.study, setting.name), runs)
        without: dict[str, list[tuple[MethodConfig, Plan]]] = defaultdict(list)
        stopped = runs.stopped(job)
        for row in (row for row in setting.methods if row.label not in stopped):
            others = [replace(row, training=replace(row.training, lr=rate)) for rate in rates_of(setting, row)]
            if not untried:
                others = [row, *(other for other in others if tried.get(row.label) and other.training != row.training)]
                others = [runs.best[row.label]] if row.label in runs.best else others
            for rates in [[rate] for rate in others] if untried else [others]:
                try:
                    asks = untried and rates[0] is others[0]  # once, with the first seed
                    chosen, plan = best_rate(dry_run, job, setting, partitioned, rates, seen, asks)
                except InputError as refused:
                    if not job.optional:
                        raise
                    yield CostEstimate(job.study, row.label, 0, 0, 0.0, 0.0, frozenset(), refused=str(refused))
                    continue
                if untried:
                    tried[row.label] = tried.get(row.label, True) and plan.is_cached(seen)
                of_row = cost(job.study, row.label, plan, partitioned.before)
                seen.update(plan.steps)
                yield of_row
                if partitioned.rest is not None and (not row.control or row.label in GUESSES):
                    with suppress(InputError):
                        kind, plan = leave_first_out(dry_run, job.seed, partitioned, chosen)
                        without[kind].append((chosen, plan))
            with suppress(InputError):  # it is refused above
                runs.add(job, setting, partitioned, others)
        last.extend((runs, job.study, len(partitioned.fed.devices), False, of) for of in without.values())

    for alike in by_seed(jobs):
        for number, job in enumerate(alike):
            before, later = len(last), len(alike) - number
            rows = [row for setting in job.settings for row in costs(job, setting)]
            if number and later > 1 and not all(row.is_cached for row in rows):
                rows = [row.times(later, bound=True) for row in rows]
                last[before:] = [(runs, study, count * later, True, of) for runs, study, count, _, of in last[before:]]
                for setting in job.settings:
                    cached[setting.study, setting.name].whole = False
                yield from rows
                break
            yield from rows
    needed = {id(runs): runs.without() for runs in cached.values()}
    for runs, study, count, bound, candidates in last:
        each = [
            (row.label, cost(study, f"{row.label} without each device", plan).times(count, bound), plan)
            for row, plan in candidates
            if row == runs.best.get(row.label, row)
        ]
        dearest = max(each, key=lambda of: (of[1].steps == of[1].cached, of[1].seconds))
        for _, of, plan in [of for of in each if of[0] in needed[id(runs)]] if needed[id(runs)] else [dearest]:
            seen.update(plan.steps)
            yield replace(of, without=count)


def by_seed(jobs: Iterable[Job]) -> list[list[Job]]:
    """Return jobs, of which one may stand for all later ones: of more than RUNS runs those of a study."""
    by_study, whole = dict[str, list[Job]](), [*jobs]
    if sum(len(setting.methods) for job in whole for setting in job.settings) <= RUNS:
        return [[job] for job in whole]
    for job in whole:
        by_study.setdefault(job.study, []).append(job)
    return [*by_study.values()]


@dataclass(frozen=True)
class PartitionedSetting:
    """A setting's data, divided among devices.

    data: its references. sizes: device -> its labelled training examples. before: bytes of all devices before the first
    round. rest: where devices are left out, the federation without the first one, and the examples of that one. score:
    scores the models of a method, a federation and a last state further; asks: whether to ask if there is one for a new
    device.
    """

    data: PreparedData
    fed: Federation
    sizes: Mapping[str, int]
    before: float
    rest: tuple[Federation, Ref] | None
    score: Callable[[bool, Method, Federation, Any], Any]


def divide(dry_run: Any, sources: dict[str, Ref], job: Job, setting: Setting) -> PartitionedSetting:
    """Read a setting's data, unless `sources` has them, and divide them."""
    store, scale = dry_run.store, setting.federation["scale"]
    if setting.source not in sources:
        sources[setting.source] = partitions.read_dataset(store, setting.data)
    partition = partitions.divide_dataset(dry_run, sources[setting.source], setting.federation, job.seed)
    data = PreparedData(sources[setting.source], partition)
    fed = partitions.build_federation(dry_run, setting, data)
    job.criterion.require_task(fed.task)
    before = len(fed.devices) * sum(prepared_bytes(store, data, scale).values())
    rest = None
    if leaves_out(job.new_device, store, data):
        rest, done = federation_without(dry_run, fed, data, scale, min(fed.devices)), dry_run.done
        done += [replace(done[-1], key=f"{done[-1].key} {number}") for number in range(1, len(fed.devices))]

    def score(asks: bool, method: Method, whole: Federation, state: Any) -> None:
        score_sites(dry_run, data, scale, method, whole, state)
        if setting.threshold is not None:
            positive = partitions.read_prepared(store, data)[0].classes.index(setting.threshold)
            models = deploy_models(dry_run, method, whole, state)[0]
            dry_run(partial(score_validation, positive=positive), models, dict(whole.devices))
        if rest and asks:
            cached = all(step.cached for step in dry_run.done)
            has_model_for_new(method, whole, state, dry_run)  # unless another learning rate was better
            dry_run.done = [step for step in dry_run.done if step.cached or not cached]

    return PartitionedSetting(data, fed, count_examples(store, data), before, rest, score)


def best_rate(
    dry_run: DryRun, job: Job, setting: Setting, partitioned: PartitionedSetting, rates: list[MethodConfig],
    seen: Mapping[str, Step], asks: bool,
) -> tuple[MethodConfig, Plan]:  # fmt: skip
    """Return a row with the learning rate whose steps are cached, which is the best; else with the first one.

    Raises InputError where the data or the nets do not allow the method.
    """
    nets, sizes, task = partitioned.fed.public.nets, partitioned.sizes, partitioned.fed.task
    plans: list[tuple[MethodConfig, Plan]] = []
    for row in rates:
        method = build(row, nets, sizes, task)
        sent = dry_run.message_bytes(rates[0], partitioned.fed, sizes)
        score = partial(partitioned.score, asks)
        plan = dry_run.play(method, partitioned.fed, job.seed, setting.every, sent, score=score)
        plans.append((row, plan))
        if plan.is_cached(seen):
            return plans[-1]
    return plans[0]


def leave_first_out(dry_run: DryRun, seed: int, partitioned: PartitionedSetting, row: MethodConfig) -> tuple[str, Plan]:
    """Return the kind of a row, of which one is trained without each device, and what it needs without the first."""
    assert partitioned.rest is not None
    rest, examples = partitioned.rest
    method = build(row, rest.public.nets, {name: partitioned.sizes[name] for name in rest.devices})
    sent = dry_run.message_bytes(row, partitioned.fed, partitioned.sizes)
    score = partial(score_new, execute=dry_run, net=next(iter(rest.devices.values())).net, examples={"": examples})
    plan = dry_run.play(method, rest, seed, NEVER, sent, deploys=False, score=score)
    return row.label if row.control else "alone" if trains_alone(method) else "combines", plan


def first_steps(row: MethodConfig, fed: Federation, sizes: Mapping[str, int]) -> tuple[Callable[..., Any], list[Stage]]:
    """Return what a row begins with, and its stages up to the first in which devices send; none if pairs come first.

    They take a single minibatch in place of their epochs, also in ST-LF's pretraining and where a server trains, as
    FedASA's its auxiliary model, or gaussian_distillation's the net of its draws.
    """
    short = {key: 1 for key in row.settings if key in ("pretrain_steps", "steps", "epochs")}
    short |= {key: row.settings.get("batch", 1) for key in row.settings if key == "draws"}
    once = replace(row, training=replace(row.training, steps=1, patience=None), settings={**row.settings, **short})
    method, stages = build(once, fed.public.nets, sizes), list[Stage]()
    for stage in method.stages:
        if not isinstance(stage, Stage):
            break
        stages.append(stage)
        if stage.combine is not None:
            return method.begin, stages
    return method.begin, []


def message_bytes(row: MethodConfig, fed: Federation, sizes: Mapping[str, int], store: Store) -> Sent:
    """Return the bytes of first messages and of the first stage in which devices send, unless that is one of pairs.

    The device with the most examples takes these steps. The server answers it alone, again in a second round if there
    is one, and beside another device that sends the same. An answer that a server cannot give counts as large as the
    first one, and that as the update.
    """
    begin, stages = first_steps(row, fed, sizes)
    server, messages = Inline().call(begin, store.get(fed.public), 0)
    of_first = {name: message.nbytes for name, message in messages.items()}
    if not stages:
        return Sent(of_first)
    name = max(sizes, key=lambda name: sizes[name])
    device = store.get(fed.devices[name])
    memory: Params = {}
    for number, stage in enumerate(stages):
        step = StepId(0, number, 0, name)
        memory, update = Inline().call(device_step(stage), memory, messages[name], device, step)
    combine: Any = stage.combine

    def ask(server: Params, message: Message, turn: int, *names: str) -> tuple[Params, Message]:
        info, sent = RoundInfo(0, number, turn, names, names), dict.fromkeys(names, message)
        updates, kept = dict.fromkeys(names, update), sent if takes(combine, "sent") else None
        after, new, _ = Inline().call(receive, combine, server, updates, info, fed.public.nets, kept)
        return after, new.get(name, message)

    down, more, earlier = update.nbytes, 0, 0
    with suppress(InputError):
        after, answer = ask(server, messages[name], 0, name)
        down = answer.nbytes
        if stage.rounds > 1:
            earlier = ask(after, answer, 1, name)[1].nbytes - down
        more = ask(server, messages[name], 0, *[name, *sorted(sizes.keys() - {name})][:2])[1].nbytes - down
    return Sent(of_first, {number: StageBytes(update.nbytes, down, more, earlier)})


def print_plan(params: Mapping[str, Any], jobs: Iterable[Job]) -> None:
    """Print what a run of the jobs would compute."""
    run, jobs = run_section(params), [*jobs]
    stops = any(sum(job.stop_rows for job in jobs if job.study == study.study) > STOPPED_AFTER for study in jobs)
    store, accelerator = open_store(run.store), find_accelerator(run.accelerator)
    if accelerator:
        standard().print(describe_use(accelerator, run.together), markup=False)
    workers = Workers(run.workers).count
    rows = forecast(jobs, store, workers, accelerator, run.together)
    runs = sum(len(setting.methods) for job in jobs for setting in job.settings)
    print_forecast(rows, stops, beside=journal.beside_steps(workers), runs=runs)
