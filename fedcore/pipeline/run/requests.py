"""A request on its way through a flow: its jobs, what computes them, the settings that are ready, and the results."""

import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pandas as pd
from prefect import get_run_logger, runtime
from prefect.events import emit_event

from fedcore.config import nightly
from fedcore.config.methods import MethodConfig
from fedcore.config.papers import read_papers
from fedcore.config.params import change, read
from fedcore.config.request import Job, Request, plan_jobs
from fedcore.config.settings import Setting
from fedcore.config.studies import run_section, title_for
from fedcore.core.threats import require_devices
from fedcore.errors import Diverged, InputError, message_of, printable
from fedcore.nets.registry import chosen
from fedcore.pipeline import alerts, environment
from fedcore.pipeline.cache import journal
from fedcore.pipeline.cache.shared import prune
from fedcore.pipeline.cache.store import Ref, Store
from fedcore.pipeline.orchestration import schedule
from fedcore.pipeline.orchestration.session import Session, open_run_session
from fedcore.pipeline.orchestration.task_runs import shorten
from fedcore.pipeline.record import tracked
from fedcore.pipeline.record.result import Evidence, Origin, PreparedData, PromotionCandidate, Result, rule_of
from fedcore.pipeline.record.writer import RecordWriter
from fedcore.pipeline.run import history, left_out, outputs, partitions, repeat, run_method
from fedcore.pipeline.run.chunks import count_local_steps
from fedcore.pipeline.work import build, edited
from fedcore.results.answer import GUESSES, STOPPED_AFTER, answer
from fedcore.results.chance import LINEAR, PROBE, TRIED, UNWEIGHTED, seen_by_probes, with_found
from fedcore.results.criterion import Criterion
from fedcore.results.left_out import probe
from fedcore.results.stopping import SoFar, best, rows_that_cannot_win, validation_value
from fedcore.results.summary import join_words
from fedcore.types.federation import Federation


@dataclass(frozen=True)
class ReadySetting:
    """A job's setting whose data are read and divided. setting: without the methods that these data refuse.

    leave_out: whether each device is left out of training in turn, once all methods have run.
    """

    job: Job
    setting: Setting
    data: PreparedData
    federation: Federation
    leave_out: bool = False

    def local_steps(self, row: MethodConfig) -> int:
        """Return the number of local steps of a method."""
        return count_local_steps(build(row, self.federation.public.nets), len(self.federation.devices))


class Run:
    """One run of a request.

    results: for each job those of its methods, in order. refusals: by study and label, why a row has no result; "" if
    it was not typed. changed: the paths of data that are no longer those that DVC tracks.
    """

    def __init__(
        self, request: Request, params: dict[str, Any], jobs: list[Job], session: Session, writer: RecordWriter
    ) -> None:
        self.request = request
        self.params = params
        self.jobs = jobs
        self.papers = read_papers(params["studies"])
        self.session = session
        self.writer = writer
        self.results: dict[str, list[Result]] = {job.name: [] for job in jobs}
        self._ready: list[ReadySetting] = []
        self._datasets: dict[str, Ref] = {}
        self.refusals: dict[tuple[str, str], str] = {}
        self.changed: set[str | None] = set()
        self._tuned: dict[tuple[str, str, str], Result] = {}  # with the best learning rate, of the first seed
        self._left_out: set[tuple[str, str, str]] = set()  # study, setting, row: without a result in some seed
        self._stopped: dict[tuple[str, str], frozenset[str]] = {}
        self._so_far: defaultdict[tuple[str, str], SoFar] = defaultdict(SoFar)
        self._first: dict[tuple[str, str], dict[str, Result]] = {}
        self._ends: defaultdict[str, list[tuple[float, int, int]]] = defaultdict(list)  # time, runs, those written
        self._flow_run: str | None = runtime.flow_run.id
        self._cached: dict[str, bool] = {}  # for each method that was run, whether all of its steps were cached

    def prepare(self) -> list[ReadySetting]:
        """Read all data, divide them and build all methods, so that bad input is reported before any training."""
        self._ready = ready = [self._prepare(job, setting) for job in self.jobs for setting in job.settings]
        first = {job.study: job.seed for job in reversed(self.jobs)}
        count = 0
        for of in ready:
            if of.job.seed == first[of.job.study]:
                self._say_unused(of)
            for row in of.setting.methods:
                tries = len(run_method.rates_of(of.setting, row)) if of.job.seed == first[of.job.study] else 1
                count += tries * of.local_steps(row)
        self.session.expect_steps(count)
        rows = [(row, of) for of in ready for row in of.setting.methods] if edited() else []
        for name in sorted({name for row, of in rows for name in edited(build(row, of.federation.public.nets))}):
            self.session.print_line(f"  edited task: {name} takes part in these results")
        return ready

    def _say_unused(self, ready: ReadySetting) -> None:
        """Say if no net of a setting has the `widths` that are typed or in the grid, since its data choose others."""
        setting, typed = ready.setting, self.request.changes
        if "net.widths" in {**typed, **setting.point} and all(net["name"] == "auto" for net in setting.nets):
            name = chosen(partitions.read_prepared(self.session.store, ready.data)[0].train.x.shape[1:])
            line = f"net.widths = {setting.net['widths']}: not used, since net.name=auto takes {name} for these data"
            if name != "mlp":
                self.session.print_line(f"  {ready.job.name}, {setting.name}: {line}", level=logging.WARNING)

    def _prepare(self, job: Job, setting: Setting) -> ReadySetting:
        if self.request.prepared:  # by the earlier stages of `dvc repro`
            dataset = partitions.import_dataset(self.session.store, outputs.data_folder(setting))
            folder = outputs.partition_folder(setting, job.seed)
            data = PreparedData(dataset, partitions.import_partition(self.session.store, folder))
        else:
            data = self._divide(job, setting)
        federation = partitions.build_federation(self.session.steps, setting, data)
        job.criterion.require_task(federation.task)
        accepted, sizes = [], run_method.count_examples(self.session.store, data)
        for method in setting.methods:
            try:
                built = build(method, federation.public.nets, sizes, federation.task)
                require_devices(built, federation.threats, len(federation.devices))
            except InputError as refused:
                self.leave_out(job, setting.name, method, refused)
            else:
                accepted.append(method)
        leave_out = left_out.leaves_out(job.new_device, self.session.store, data)
        return ReadySetting(job, replace(setting, methods=tuple(accepted)), data, federation, leave_out)

    def _divide(self, job: Job, setting: Setting) -> PreparedData:
        """Read the data, once in a run and its preview, and divide them among devices."""
        store, source = self.session.store, setting.source
        shown = source in self.request.loaded  # by the preview, of the first setting and seed
        if source not in self._datasets:
            self._datasets[source] = partitions.read_dataset(store, setting.data, self.request.loaded.pop(source, None))
        dataset = self._datasets[source]
        parts = partitions.divide_dataset(self.session.steps, dataset, setting.federation, job.seed)
        prepared = PreparedData(dataset, parts)
        first = job.seed == self.jobs[0].seed
        for line in () if shown else partitions.notes(store, prepared, setting.federation, first):
            self.session.print_line(f"  {job.name}, {setting.name}: {line}")
        return prepared

    def run_method(self, ready: ReadySetting, method: MethodConfig) -> Result | None:
        """Run a method on a setting, round after round in cached steps; None if it refuses the data, or cannot win."""
        self._say_left(ready)
        row_key = ready.job.study, ready.setting.name, method.label
        if row_key in self._left_out or method.label in self._stop_rows(ready):
            self.session.advance(ready.local_steps(method))
            return None
        self._begin(ready)
        try:
            if row_key not in self._tuned:
                self._tuned[row_key] = self._tune(ready, method)
            tuned = self._tuned[row_key]
            return tuned if tuned.seed == ready.job.seed else self._run(ready, tuned.row)
        except InputError as refused:
            self.leave_out(ready.job, ready.setting.name, method, refused)
            return None

    def _say_left(self, ready: ReadySetting) -> None:
        """Where a seed begins, say how long the seeds that are left take, as the last one: to train, and to record."""
        names = [job.name for job in self.jobs if job.study == ready.job.study]
        ends, begun = self._ends[ready.job.study], names.index(ready.job.name)
        if len(ends) > begun:
            return
        runs, unwritten = sum(len(self.results[name]) for name in names), self.writer.left
        ends.append((time.monotonic(), runs, runs - unwritten))
        if begun < 2:  # the first one has the start-up, and tries learning rates
            return
        seconds, rows, written = (b - a for a, b in zip(ends[-2], ends[-1], strict=True))
        left = len(names) - begun  # the record takes less where it need not wait for training
        low, high = sorted([left * seconds / 60, written and (left * rows + unwritten) * seconds / written / 60])
        if written and high >= 1:
            new = ", before what a new device takes" * ready.leave_out
            span = " to ".join(dict.fromkeys(f"{max(1, minutes):.0f}" for minutes in (low, high)))
            self.session.print_line(f"  {begun} of {len(names)} seeds done, about {span} min left{new}")

    def _begin(self, ready: ReadySetting) -> None:
        """Before learning rates are tried, run a setting's first two rows once, and say which leads."""
        setting_key = ready.job.study, ready.setting.name
        rows = [row for row in ready.setting.methods if not row.control][:2]
        tried = any(len(run_method.rates_of(ready.setting, row)) > 1 for row in rows)
        if setting_key in self._first or not tried or not self._says_so_far(ready):
            return
        self._first[setting_key] = {}
        provisional = SoFar()
        for row in rows:
            try:
                self._first[setting_key][row.label] = result = self._run(ready, row)
            except InputError:  # it is said in the row's turn
                continue
            self._say_leader(ready, result, provisional, "; learning rates are still to be tried")

    def _run(self, ready: ReadySetting, method: MethodConfig) -> Result:
        """Run a method with one learning rate: in a flow run of its own, unless all is cached or it is a control."""
        job, setting = ready.job, ready.setting
        run = partial(
            run_method.run_method, self.session, setting, ready.data, ready.federation, method, job.seed, job.size,
            setting.every, job.extra_figures,
        )  # fmt: skip
        result = self.session.from_cache(run)
        label, rates = method.label, run_method.rates_of(setting, method)
        if len(rates) > 1:
            label = f"{label} at learning rate {method.training.lr:g}"
        self._cached[f"{label}, {setting.name}, seed {job.seed}"] = result is not None
        if result is not None or method.control:
            return result or run()

        def publish() -> Result:
            outputs.publish_result(result := run())
            return result

        data = {"dataset": ready.data.dataset.digest, "partition": ready.data.partition.digest}
        return self.session.run_in_flow(label, setting.name, job.seed, method.flat(), data, ready.federation, publish)

    def _tune(self, ready: ReadySetting, method: MethodConfig) -> Result:
        """Run a method with each of its learning rates, if it has several, and return the best with its result."""
        rates = run_method.rates_of(ready.setting, method)
        results, diverged = {}, None
        first = self._first.get((ready.job.study, ready.setting.name), {}).pop(method.label, None)
        for rate in rates:
            try:
                done = first if first and rate == method.training.lr else None
                training = replace(method.training, lr=rate)
                results[rate] = done or self._run(ready, replace(method, training=training))
            except Diverged as error:
                diverged = error
        if diverged is not None and not results:
            raise diverged
        rate = best({rate: result.table for rate, result in results.items()}, ready.job.criterion)
        if len(rates) == 1:
            return results[rate]
        listing = ", ".join(f"{rate:g}" for rate in rates)
        self.session.print_line(f"  {method.label}: learning rate {rate:g}, best of {listing} on validation rows")
        tried = {rate: results[rate].table if rate in results else None for rate in rates}
        return replace(results[rate], tried=tried)

    def _stop_rows(self, ready: ReadySetting) -> frozenset[str]:
        """Return the labels of rows that cannot win, once the first seeds have run, and print them once."""
        job, setting_key = ready.job, (ready.job.study, ready.setting.name)
        first = [other.name for other in self.jobs if other.study == job.study][:STOPPED_AFTER]
        if not job.stop_rows or job.name in first:
            return frozenset()
        if setting_key not in self._stopped:
            results = [r for name in first for r in self.results[name] if r.setting.name == ready.setting.name]
            able = left_out.rows_with_model(self.session.steps, results) if ready.leave_out else None
            stopped = rows_that_cannot_win(*left_out.compared(results), job.criterion, able)
            self._stopped[setting_key] = stopped
            if stopped:
                names = join_words(sorted(stopped))
                self.session.print_line(f"  stopped after {STOPPED_AFTER} seeds (run.stop_rows): {names} cannot win")
        return self._stopped[setting_key]

    def leave_out_devices(self) -> None:
        """Score the rows that the answer for a new device compares on each device, trained without it.

        First it is asked why models fail: where no row has learnt, simple models say whether the columns tell anything;
        where these do, some row has not and columns are not scaled, or the best one misses a rare class, it runs once
        more with a remedy.
        """
        by_setting = {(ready.job.study, ready.setting.name): ready for ready in self._ready}
        for ready in by_setting.values():
            jobs = [job.name for job in self.jobs if job.study == ready.job.study]
            runs = [r for job in jobs for r in self.results[job] if r.setting.name == ready.setting.name]
            if not runs:
                continue
            runs = self._ask_why(runs, ready.job.criterion)
            if ready.leave_out:
                runs = left_out.leave_out(self.session, runs, ready.job.criterion)
            scored = {r.config: r for r in runs}
            for job in jobs:
                self.results[job] = [scored.get(r.config, r) for r in self.results[job]]

    def _ask_why(self, runs: list[Result], criterion: Criterion) -> list[Result]:
        """Return one setting's results, with what a probe found, and what a remedy gains on validation data."""
        table = pd.concat([result.table for result in runs], ignore_index=True)
        found = answer(table, frozenset(result.row.label for result in runs if result.row.control), criterion)
        first, *others = runs
        unscaled = bool(found.causes) and run_method.is_unscaled(self.session.store, first)
        mends, gained = found.misses_rare or unscaled, dict[str, float]()
        if found.nothing_learns:
            probed = probe(first.fed.devices, first.fed.classes, self.session.steps)
            first = replace(first, table=with_found(first.table, PROBE, probed))
            mends = bool(seen_by_probes(first.table))  # it scales the columns itself
        if mends:
            of = next((result for result in runs if result.row.label == found.advice.judged), None)
            if of is not None and not unscaled and of.row.label.startswith(UNWEIGHTED):  # it takes no class weights
                able = [r for r in runs if not r.row.control and r.seed == first.seed]
                able = [r for r in able if not r.row.label.startswith(UNWEIGHTED)]
                of = max(able, key=lambda r: validation_value(r.table, criterion) or 0.0, default=None)
            same = [r for r in runs if of is not None and r is not of and r.seed == of.seed]
            guesses = [r for r in same if r.row.label in GUESSES]
            alone = [r for r in same if r.row.label == found.advice.alone]
            gained = run_method.try_remedy(self.session, of, found, criterion, unscaled, guesses, alone) if of else {}
        if not any(LINEAR in what for what in gained):
            gained |= run_method.doubt_gain(self.session, runs, found, criterion)
        return [replace(first, table=with_found(first.table, TRIED, gained)), *others]

    def leave_out(self, job: Job, name: str, method: MethodConfig, refused: InputError) -> None:
        """Leave a row out of a setting in all seeds, so that none is judged by those in which it did well.

        Prints once why; raises the error again if the study needs all of its rows. A row that diverged is left out of
        any study that has another one beside controls.
        """
        others = {row.label for setting in job.settings for row in setting.methods if not row.control}
        if not job.optional and not (isinstance(refused, Diverged) and others - {method.label}):
            raise refused
        self._left_out.add((job.study, name, method.label))
        for seed in (other.name for other in self.jobs if other.study == job.study):
            kept = [r for r in self.results[seed] if (r.setting.name, r.row.label) != (name, method.label)]
            self.results[seed] = kept
        if (job.study, method.label) not in self.refusals:
            reason = str(refused).removeprefix(f"{method.label}: ").removesuffix(f" (method {method.label})")
            self.session.print_line(f"  {method.label} is left out: {reason}", level=logging.WARNING)
            self.refusals[job.study, method.label] = reason if method.label in (self.request.methods or ()) else ""

    def record(self, ready: ReadySetting, result: Result) -> None:
        """Keep a result, write it to the record, and print it in a line."""
        title = title_for(ready.job.title, [len(ready.federation.devices)])
        path = ready.setting.data.get("path")
        md5 = None if path in self.changed else tracked.data_digest(path)
        thread = {"flow_run": self._flow_run, "data_md5": md5}
        seeds = [job.seed for job in self.jobs if job.study == ready.job.study]
        command = self.request.words(ready.job, {seeds[0], min(seeds), ready.job.seed}, result.row.label)
        tags = {k: str(v) for k, v in thread.items() if v}
        result = replace(result, criterion=ready.job.criterion, thread=tags, command=command)
        self.writer.save(self.session.store, result, title, result.computed)
        self.results[ready.job.name].append(result)
        # `dvc repro` ends each study with its answer; the page has every row.
        line = run_method.summary_line(result, ready.job.criterion, seeds)
        self.session.print_line(line, terminal=not self.request.prepared)
        if not result.row.control and self._says_so_far(ready):
            self._say_leader(ready, result, self._so_far[ready.job.study, ready.setting.name])

    def _say_leader(self, ready: ReadySetting, result: Result, so_far: SoFar, more: str = "") -> None:
        """Print which rows lead with the first of several seeds, if this row has come to lead."""
        leader = run_method.leader_of(result, ready.job.criterion)
        for line in so_far.add(leader, run_method.combines(result), more) if leader else ():
            self.session.print_line(line, terminal=not self.request.prepared)

    def _says_so_far(self, ready: ReadySetting) -> bool:
        """Tell whether this is the first of several seeds."""
        seeds = [job.name for job in self.jobs if job.study == ready.job.study]
        return len(seeds) > 1 and ready.job.name == seeds[0]

    def propose(self, configs: Mapping[str, Evidence]) -> list[tuple[Origin, PromotionCandidate]]:
        """Propose models; returns those whose final fit is to be promoted, with what made them.

        First their training rows are compared with those of the champion.
        """
        proposed = [result for results in self.results.values() for result in results if result.config in configs]
        for result in {result.setting.model_name: result for result in proposed}.values():
            self.writer.check_drift(self.session.store, result)
        origins = {result.config: result.origin for result in proposed}
        candidates = self.writer.propose(configs, rule_of(self.params), self.request.promote, self.request.final_fit)
        return [(origins[candidate.config], candidate) for candidate in candidates]


@contextmanager
def open_record() -> Iterator[RecordWriter]:
    """Open the record; at the end, keep the history, and tell the user, automations and alerts what was proposed."""
    settings = nightly.read()
    if tracked.is_new_clone():
        outputs.open_clone()
    flow_run = runtime.flow_run.id  # None in stage compare of `dvc repro`
    with journal.running(flow_run) if flow_run else nullcontext():
        with RecordWriter() as writer:
            yield writer
        history.append(writer.history)
        lines = [proposal.line for proposal in writer.proposed]
        with repeat.printed():
            print(*(f"{line}\n" for line in lines), sep="", end="")
        if lines and flow_run:
            for line in lines:
                get_run_logger().info(line)
            outcomes = [{"outcome": line} for line in lines]
            outputs.publish("champion", outcomes, "which model is in use, or was compared with it")
    tidy_up(settings.keep)
    for proposal in writer.proposed:
        if proposal.event is not None:
            project = {"prefect.resource.id": f"fedcore.project.{environment.HOME.name}"}
            emit_event(f"fedcore.{proposal.event}", project, payload={"text": proposal.line})
            alerts.notify(settings.alerts, proposal.event, proposal.line)
    alerts.notify_disk(settings.alerts)
    if writer.count:
        journal.note_run(writer.count)


def tidy_up(keep: nightly.Keep) -> None:
    """Delete what nightly.yaml says that a project keeps no longer. What goes wrong is a line, and the run is done."""
    try:
        if keep.cache is not None:
            prune(environment.STEPS, Store(environment.BLOBS), keep.cache)
        if keep.record is not None:
            from fedcore.pipeline.record import retention  # takes MLflow, which a flow's process does without

            retention.prune(keep.record)
    except Exception as error:  # another flow runs, the record is locked, ...
        print(f"nothing more is deleted now: {message_of(error)}")


@contextmanager
def open_run(request: Request, writer: RecordWriter) -> Iterator[Run]:
    """Open a run of a request: its store, the engine that computes its steps, and its session.

    Raises InputError for a study without any result.
    """
    with schedule.refusing():
        params, jobs = plan_jobs(request)
    settings = [setting for job in jobs for setting in job.settings]
    opened = open_run_session("federate", run_section(params), settings, writer.warm_up)
    with opened as session:  # what is refused from here on may pass: a store that does not answer, a file half written
        run = Run(request, params, jobs, session, writer)
        writer.typed = request.typed
        for path in {setting.data.get("path") for setting in settings}:
            if not request.prepared and tracked.has_changed(path):
                run.changed.add(path)
                session.print_line(f"  {path} has changed since DVC tracked it. To let DVC keep it: dvc add {path}")
        try:
            yield run
        except InputError as refused:
            session.log.info(printable(str(refused)))  # a warning would be printed, too
            raise
        for job in jobs:
            if not run.results[job.name]:
                raise InputError(f"study {job.study}: no method allows these data; the reasons are above")
        session.print_line(steps := run_method.tally(session.steps.done))
        again = [replace(step, cached=True) for step in session.steps.done]
        repeat.note(run_method.tally(again) + "\n\n")
        names = [f"* {name}" for name, cached in run._cached.items() if cached]
        title = f"Wholly from the cache: {len(names)} of {len(run._cached)} runs of methods"
        kinds = run_method.tally(session.steps.done, kinds=True).partition("; ")[2]
        lines = [steps, "", kinds, "", title, "", *names]
        outputs.publish("from the cache", "\n".join(lines), "which methods computed nothing")


def name_run() -> str:
    """Return a flow run's name: its studies, size and seeds, and the settings and methods that were typed."""
    request = Request.model_validate(runtime.flow_run.parameters)
    try:
        section = run_section(change(read(), {k: v for k, v in request.changes.items() if k.startswith("run.")}))
    except InputError:  # which the run says: here it would crash
        return "refused settings"
    seeds = sorted(request.seeds or section.seeds)
    whole = seeds == list(range(seeds[0], seeds[-1] + 1))
    listing = f"{seeds[0]} to {seeds[-1]}" if whole and len(seeds) > 2 else ", ".join(map(str, seeds))
    studies = " + ".join(request.studies or section.studies)
    name = f"{studies}, {request.size or section.size}, seed{'s' * (len(seeds) > 1)} {listing}"
    name += f", {request.typed}" * bool(request.changes)
    return shorten([f"{name}:", ", ".join(request.methods)] if request.methods else [name])
