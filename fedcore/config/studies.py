"""Studies: questions as data, each with a grid of settings."""

import itertools
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from annotated_types import Ge, Le
from pydantic import AfterValidator, BeforeValidator, Field

from fedcore.builders import parameters, suggestion, unknown_value
from fedcore.config import sections
from fedcore.config.methods import MethodConfig
from fedcore.config.params import change
from fedcore.config.settings import Setting, slug
from fedcore.config.signatures import Section, check
from fedcore.core.metrics import METRICS, MetricName
from fedcore.errors import COSTS, InputError
from fedcore.methods import builder
from fedcore.results.answer import GUESSES
from fedcore.results.claims import DEVICES, Claim, Gate
from fedcore.results.criterion import LEAST_TEST, MIN_EFFECT, Criterion, Weighting, criterion
from fedcore.results.threshold import DECIDED
from fedcore.results.validity import Ceiling
from fedcore.types.ranges import Positive


def _check_address(address: str) -> str:
    parts = re.fullmatch(r"(tcp|tls)://\S+:(\d{1,5})", address)
    if not parts or not 0 < int(parts[2]) < 2**16:
        raise ValueError("must be the address of a Dask scheduler, such as tcp://10.0.0.5:8786 or tls://10.0.0.5:8786")
    return address


def check_url(url: str) -> str:
    """Refuse an address in which a password may stand: it would stand in logs and records, too."""
    _, marked, rest = url.partition("://")
    if not url or (marked and (not rest.strip("/") or urlsplit(url).password or re.search("::|[?#]", url))):
        raise ValueError("must be a folder or one URL such as s3://bucket/prefix, without a password or options")
    return url


def _check_list(seeds: Any) -> Any:
    """Refuse a number: whether it would be one seed, or so many, is not clear."""
    if isinstance(seeds, int | str):
        raise ValueError("must be a list, for example [0,1,2]")
    if isinstance(seeds, list) and any(seeds.count(seed) > 1 for seed in seeds):
        raise ValueError("must name each seed once")
    return seeds


Seeds = Annotated[list[Annotated[int, Ge(0)]], Field(min_length=1), BeforeValidator(_check_list)]

Address = Annotated[str, AfterValidator(_check_address)]

OF_STUDY = ("run.every", "run.lr_factors")
"""The settings of section run that a study may change."""

NewDeviceFrom = Literal["left_out", "shared", "auto"]
MOST_LEFT_OUT = 20
"""The most devices that are left out where the study leaves it to the data."""

Recent = Literal["auto", "none"] | Annotated[int, Ge(1)]

POINTS = 2000
"""The most settings of a study: each takes a row of the record, and of every table and page."""


class Deciding(Section):
    """What section run says for all studies, and a study for itself where section run is silent.

    Args:
        metric: what decides answer, ranks and page (fedcore docs metric); "auto": balanced accuracy where one class has
            more than .8 of the examples, else accuracy; None: accuracy.
        least_test: a device with fewer test examples, or with test examples of one class, has no part in means over
            devices; 0: all have; None: 20.
        new_device: where the answer for a new device is from: "left_out": each device in turn is left out of training,
            and the best rows are scored on all its labelled rows; "shared": the shared test set, new rows of all
            devices; "auto": "left_out" where the data name their devices, at most 20, and none is all test rows,
            else "shared"; None: "shared".
        stop_rows: "auto": a row that cannot win by the first three seeds' validation data is not run with further ones
            (:mod:`fedcore.results.stopping`); "none": all rows run with all seeds; None: "none".
    """

    metric: MetricName | Literal["auto"] | None = None
    least_test: Annotated[int, Ge(0)] | None = None
    new_device: NewDeviceFrom | None = None
    stop_rows: Literal["auto", "none"] | None = None


class Size(Section):
    """set: the study's settings in this size. grid: settings of which every combination is run.

    The values of a grid are settings of its key, or names or numbers that each stand for several settings.
    """

    set: dict[str, Any] = Field(default_factory=dict)
    grid: dict[str, list[Any] | dict[str | float, dict[str, Any]]] = Field(default_factory=dict)


class Study(Deciding):
    """A question as data: which settings, methods and seeds answer it.

    Args:
        title: the question; its word {devices} stands for their number.
        methods: rows of the comparison: label -> changes to the method's section (`method` if the label is none).
        sizes: name -> settings, and a grid of settings.
        tuned: further rows: label -> rows of `methods`, of which the best on validation data stands under the label in
            each setting and seed.
        link: bytes per second of a device's link, for the seconds of a transfer.
        claims: a paper's statements, as rules.
        valid: what must hold for the claims to be tested.
        ceiling: from which mean on rows are too good for a claim that one is better; "auto": by a rule; None: never.
        converged: whether claims about the end are tested only where no row that they compare still gains.
        x_axis: the key of the grid along which the page draws accuracy.
        optional: a row whose method refuses the data or the net is left out, with the reason; otherwise the run ends.
        figures: further figures of every setting, for the first seed (fedcore docs studies).
    """

    title: str
    methods: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]
    sizes: dict[str, Size]
    tuned: dict[str, Annotated[list[str], Field(min_length=2)]] = Field(default_factory=dict)
    link: Positive | None = None
    claims: list[Claim] = Field(default_factory=list)
    valid: list[Gate] = Field(default_factory=list)
    ceiling: Ceiling = "auto"
    converged: bool = False
    x_axis: str | None = None
    optional: bool = False
    figures: list[Literal["transport", "similarity", "alignment", "features", "soft_targets", "links"]] = Field(
        default_factory=list
    )


class Run(Deciding):
    """The studies, size, seeds and resources of a run that names no others.

    Args:
        studies, size, seeds: what is run: names, one of the studies' sizes, and whole numbers.
        every: rounds between evaluations; a study may have its own.
        lr_factors: learning rates to try, as factors of each method's: it takes the one that is best on validation data
            with the first seed; one that is typed or in the grid is not tuned; a study may have its own.
        workers: processes of this machine, at most four per core, or 32; None: one per core.
        engine: what computes steps: these processes, or a Dask cluster.
        cluster: the address of the cluster's scheduler; None: a cluster of its own.
        store: the folder or URL of the results of steps; None: the project's state.
        states: "long": of the memories with which a longer run goes on where this one ends, those stay that take over
            30 s to compute again; "all": all stay.
        accelerator: "auto": steps of devices run on a GPU if there is one, where a step has a billion multiplications;
            "none": always on the CPU.
        together: devices that train together in one step on a GPU, as the rows of one matrix; 1: one after another. It
            changes nothing on the CPU. Results depend on it by some 1e-6.
        positive: the label that f1, precision, recall and average_precision are of.
        costs: of metric cost: true label -> predicted label -> cost; what is not listed costs nothing. Models predict
            the class of least expected cost.
        min_effect: the least difference in the metric that matters: a fraction, nats, or cost per row.
        weigh: "devices": each device counts alike in means; "examples": by its expected test rows.
        threshold: "half": models predict the most probable class, with costs the cheapest; "validation": of two classes
            they predict `positive` from the probability on that is best for the metric on the devices' validation rows.
            Scores are of "half". With costs there is no threshold.
        recent: which test rows decide whether a candidate is better than the champion. "none": all. "auto": once the
            training rows have drifted from the champion's, those that came since. A number: those that came since the
            champion's, where there are so many.
    """

    studies: Annotated[list[str], Field(min_length=1)]
    size: str
    seeds: Seeds
    every: Annotated[int, Ge(1)] = 1
    lr_factors: Annotated[list[Positive], Field(max_length=9)] = Field(default_factory=list)
    workers: Annotated[int, Ge(1)] | None = None
    engine: Literal["local", "dask"] = "local"
    cluster: Address | None = None
    store: Annotated[str, AfterValidator(check_url)] | None = None
    states: Literal["long", "all"] = "long"
    accelerator: Literal["auto", "none"] = "auto"
    together: Annotated[int, Ge(1), Le(4096)] = 1
    positive: str | None = None
    costs: dict[str, dict[str, Annotated[float, Ge(0)]]] | None = Field(default=None, examples=[f"'run.costs={COSTS}'"])
    min_effect: Positive = MIN_EFFECT
    weigh: Weighting = "devices"
    threshold: Literal["half", "validation"] = "half"
    recent: Recent = "auto"

    def of(self, study: Study) -> Self:
        """Return the section for a study, which says what the section leaves open; costs say what decides."""
        silent = {key: getattr(study, key) for key in Deciding.model_fields if getattr(self, key) is None}
        if self.costs:
            silent.pop("metric", None)
        return self.model_copy(update=silent)

    @property
    def criterion(self) -> Criterion:
        """What decides; raises InputError for settings that do not go together."""
        least = LEAST_TEST if self.least_test is None else self.least_test
        return criterion(self.metric, self.positive, self.costs, self.min_effect, least, self.weigh)


def title_for(title: str, devices: Iterable[int]) -> str:
    """Return a study's title with the number of devices, one for each setting, such as 12 or 4 to 16."""
    counts = {*devices}
    least, most = min(counts), max(counts)
    return title.replace("{devices}", str(least) if least == most else f"{least} to {most}")


def run_section(params: Mapping[str, Any]) -> Run:
    """Return the checked section run."""
    run = check(Run, "run", params.get("run", {}))
    if run.cluster is not None and run.engine != "dask":
        raise InputError(f"run.cluster = {run.cluster!r}: is for run.engine = 'dask', not {run.engine!r}")
    most = max(32, 4 * (os.cpu_count() or 1))
    if run.engine == "local" and run.workers is not None and run.workers > most:
        raise InputError(f"run.workers = {run.workers}: at most {most} processes on this machine, four per core")
    return run


def metric_name(run: Run) -> str:
    """Return the name of the metric that decides, auto where the data say which."""
    return "auto" if run.criterion.auto else run.criterion.metric.name


def threshold_label(run: Run) -> str | None:
    """Return the label whose probability is compared with a threshold, if validation rows are to choose one."""
    if run.threshold == "half" or run.costs:
        return None
    if run.positive is None:
        raise InputError("run.threshold = 'validation': needs run.positive, the label that is predicted from it on")
    if (name := metric_name(run)) not in (*DECIDED, "auto"):
        classes = "classification" in METRICS[name].labels
        of = "" if classes else f"run.metric = {name!r}: is for labels that are no single class; "
        why = f"is for a metric that depends on it, {', '.join(DECIDED)}; not {name}"
        raise InputError(f"{of}run.threshold = 'validation': {why}")
    return run.positive


def find_study(params: Mapping[str, Any], name: str, key: str = "study") -> Study:
    """Return a checked study. Raises InputError, with the key that names it, for an unknown name."""
    studies = params.get("studies", {})
    if name not in studies:
        others = "" if "code" in studies else "; the papers' studies are in a clone of fedcore"
        raise InputError(f"{unknown_value(key, name, studies)}{others}")
    study = check(Study, f"studies.{name}", studies[name])
    for label, size in study.sizes.items():
        for key in DEVICES.keys() & size.grid:
            raise InputError(
                f"studies.{name}.sizes.{label}.grid.{key}: not allowed, it means {DEVICES[key]} in claims; "
                "use another name"
            )
    for label, rows in study.tuned.items():
        if label in study.methods:
            raise InputError(f"studies.{name}.tuned.{label}: is a row of methods as well; use another label")
        for row in rows:
            if row not in study.methods:
                raise InputError(f"studies.{name}.tuned.{label}: {row!r} is not a row in methods")
    named = [("claims", claim.rule, claim.labels - {*study.tuned}) for claim in study.claims]
    for where, rule, labels in [*named, *(("valid", gate.require, gate.labels) for gate in study.valid)]:
        for label in labels - {*study.methods}:
            raise InputError(
                f"studies.{name}.{where}: {rule!r} names {label!r}, but the study has no such row in methods"
            )
    keys = {key for size in study.sizes.values() for key in size.grid} | {*DEVICES}
    for gate in study.valid:
        for key in gate.where.keys() - keys:  # such a gate would never be asked, and never close
            raise InputError(f"studies.{name}.valid: where names {key!r}, which no grid has{suggestion(key, keys)}")
    return study


def grid_points(
    params: Mapping[str, Any], study_name: str, size_name: str, changes: Mapping[str, Any], methods: Sequence[str] = ()
) -> list[Setting]:
    """Return the points of a study's grid, ready to run.

    params < the study's `set` < a grid point < changes (typed by the user, so that they win; a change of a grid key
    leaves a single point). methods: labels of the study, or names of methods with a section; all rows if empty. The
    study's controls that always guess are run whether they are among them or not.
    """
    study = find_study(params, study_name, "run.studies")
    if size_name not in study.sizes:
        raise InputError(f"run.size = {size_name!r}: study {study_name} has sizes {', '.join(study.sizes)}")
    size = study.sizes[size_name]
    always = [label for label in GUESSES if label in study.methods and methods]
    rows = {label: study.methods.get(label, {}) for label in dict.fromkeys([*methods, *always]) or study.methods}
    names = [str(row.get("method", label)) for label, row in rows.items()]
    for name in names:
        builder(name)  # a wrong name is reported before the settings that no method of this name takes
    custom = {name.rpartition(":")[2]: name for name in names if ":" in name}
    points = []
    axes = [_axis(key, values, changes) for key, values in size.grid.items()]
    if (count := math.prod(map(len, axes))) > POINTS:
        raise InputError(
            f"studies.{study_name}.sizes.{size_name}.grid: has {count} settings, at most {POINTS} are allowed"
        )
    combinations = [*itertools.product(*axes)]
    _check_places(
        f"studies.{study_name}.sizes.{size_name}.grid", ({key: word for key, word, _ in of} for of in combinations)
    )
    for values in combinations:
        point = {key: word for key, word, _ in values}
        at_point = {key: value for _, _, settings in values for key, value in settings.items()}
        for key in [*size.set, *at_point]:
            if key.startswith("run.") and key not in OF_STUDY:
                may = " and ".join(OF_STUDY)
                raise InputError(f"studies.{study_name}: {key} applies to all studies; a study may set {may} only")
        typed = {key: value for key, value in changes.items() if key not in point}
        merged = params
        for layer in (size.set, at_point, typed):  # the only merge of layers; a later one wins
            merged = change(merged, layer, custom)
        run, by_user = run_section(merged).of(study), sections.by_section(changes)
        metric, positive = run.criterion.metric, run.positive
        scoring = {"metric": metric.name, "positive": positive if metric.of_positive else None, "costs": run.costs}
        trained = sections.by_section({**size.set, **at_point}).get("training", {})
        check(sections.shared_settings(), sections.SHARED, merged.get(sections.SHARED, {}))
        configs = tuple(sections.method_config(merged, label, row, trained, by_user) for label, row in rows.items())
        labels = [config.label for config in configs]
        if twice := [label for label in labels if labels.count(label) > 1]:
            raise InputError(f"methods: there are two rows {twice[0]!r}; give one another label in a study")
        points.append(
            Setting(
                study_name, _name(point), point, sections.data_settings(merged["data"]),
                sections.complete_federation(merged["federation"]), sections.net_settings(merged["net"]), configs,
                run.every, {} if metric.always else scoring, metric_name(run), threshold_label(run),
                learning_rates(configs, run.lr_factors, sections.by_section({**at_point, **changes})),
            )
        )  # fmt: skip
    return points


def learning_rates(
    methods: Iterable[MethodConfig], factors: Sequence[float], fixed: Mapping[str, Any]
) -> dict[str, list[float]]:
    """Return the learning rates to try by label, for the methods that train with one that no section in `fixed` has."""
    if len(factors) < 2 or "lr" in fixed.get("training", {}):
        return {}
    return {
        method.label: [factor * method.training.lr for factor in factors]
        for method in methods
        if "training" in parameters(method.builder)
        and "lr" not in fixed.get(str(method.name).rpartition(":")[2], {}).get("training", {})
    }


def _axis(key: str, values: Sequence[Any] | Mapping[Any, Any], changes: Mapping[str, Any]) -> list[Any]:
    """Return the values along one axis of a grid: (key, name of the value, settings)."""
    if isinstance(values, Mapping):
        named = [(key, name, settings) for name, settings in values.items() if changes.get(key, name) == name]
        if not named:
            raise unknown_value(key, changes[key], values)
        return named
    return [(key, value, {key: value}) for value in ([changes[key]] if key in changes else values)]


def _check_places(where: str, points: Iterable[dict[str, Any]]) -> None:
    """Refuse points that have one folder, also if only where upper and lower case are one."""
    places: dict[str, dict[str, Any]] = {}
    for point in points:
        if (other := places.setdefault(slug(_name(point)).casefold(), point)) is point:
            continue
        if (key := next((key for key in point if point[key] != other[key]), None)) is None:
            raise InputError(f"{where}: has the setting {_name(point)!r} twice; take one away")
        how = f"give values names that differ in letters or digits: {key}: {{NAME: {{{key}: {point[key]}}}, ...}}"
        raise InputError(f"{where}: {_name(other)!r} and {_name(point)!r} would share a folder; {how}")


def _name(point: Mapping[str, Any]) -> str:
    """Return a name for a point of a grid."""
    return " ".join(f"{key.rpartition('.')[2]}={value_word(value)}" for key, value in point.items()) or "base"


def value_word(value: Any) -> str:
    """Return a value of a grid in short."""
    if isinstance(value, list | tuple):
        return "+".join(map(value_word, value))
    return short if isinstance(value, int | float) and float(short := f"{value:g}") == value else str(value)
