"""Champions: the version of a registered model that predictions use, for each dataset and label.

A run proposes a version: alias `candidate`. Where rows are held out by a stable hash, it challenges the champion on
today's test rows (fedcore/pipeline/record/challenge.py). Elsewhere it is better than the champion if its metric is
better than the champion's on the same held-out data (equal digests of data and partition), by more than the standard
error over devices of the differences by device. Otherwise it is not, and on other data the two are not comparable.

Only :func:`promote` sets the alias `champion`; the version before stays as `previous`.

A version of a study's run is promoted by its final fit (fedcore/pipeline/run/final_fit.py), a version of its own whose
method has trained on the rows that tested the first one. A score on these would mean nothing, so that the scores of the
studies' runs are compared.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Run, RunData
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from fedcore.config.settings import Setting
from fedcore.core.metrics import ACCURACY, METRICS, recorded
from fedcore.errors import InputError
from fedcore.pipeline.files import SETTING
from fedcore.pipeline.record import challenge, models, registry, seals, tracked
from fedcore.pipeline.record.challenge import DATA, HOLD_OUT, INCOMPARABLE, PARTITION
from fedcore.pipeline.record.contents import DEVICES, read_device_table, score
from fedcore.pipeline.record.database import EXPERIMENT
from fedcore.pipeline.record.registry import CANDIDATE, CHAMPION, FAMILY, PROPOSAL, STUDY_RUN, Proposal, study_run
from fedcore.pipeline.record.result import CERTAIN, Evidence, Origin, Rule, name_study
from fedcore.results.criterion import half_width
from fedcore.results.summary import SPLITS

METRIC = "fedcore.metric"
"""The tag of a run that names the metric by which its study decides."""
RULE = "fedcore.rule"
"""The tag of a run that has the label of that metric, and what else decides, where these are not the usual ones."""
MODEL = "fedcore.model"
"""The tag of a run that names the registered model of which its models can be a version."""
SERVES_NEW = "fedcore.serves_new"
"""The tag of a run: yes where all devices have one model, which a new device can use."""

SCORES = {"test": "own test", "shared": "shared test", "val": "val"}
"""The splits of a version's run that a list of versions shows -> their columns."""
OF_MEANS = r"\b(weigh = \w+|least_test = \d+)(, )?"
"""What a rule says of means; the rest, label and costs, belongs to the configuration of a run."""
OF_SEED = ("seed", "threshold", "federation.devices")
"""The settings of a run that another seed of its method may have otherwise."""


@dataclass(frozen=True)
class Listed:
    """A version, or a run that is none, in a list. name: as `fedcore promote` takes it. scores: by SCORES.

    key: equal for the seeds of a method in one request. shown: whether it is in use or of a study's last request.
    serves_new: whether it has one model, which a device that did not train can use; earlier records do not say.
    role: its aliases, and of which version it is the final fit. run: its id; "" of a final fit, which has no scores.
    """

    name: str
    key: object
    shown: bool
    of: Mapping[str, str]
    scores: Sequence[float | None]
    serves_new: str
    role: str
    run: str


def final_fit_of(client: MlflowClient, version: ModelVersion) -> ModelVersion | None:
    """Return the version that is a version's final fit, if there is one whose run is complete; of several the last."""
    versions = client.search_model_versions(f"name = '{version.name}'")
    fits = [other for other in versions if other.tags.get(STUDY_RUN) == version.run_id and is_complete(client, other)]
    return max(fits, key=lambda fit: int(fit.version), default=None)


def is_complete(client: MlflowClient, version: ModelVersion) -> bool:
    """Tell whether a version's run was written to its end."""
    try:
        return str(client.get_run(version.run_id).info.status) == "FINISHED"
    except MlflowException:  # deleted for good
        return True


def alias(client: MlflowClient, name: str, word: str) -> ModelVersion | None:
    """Return the version that an alias names, or None."""
    try:
        return client.get_model_version_by_alias(name, word)
    except MlflowException:
        return None


def study_version(client: MlflowClient, version: ModelVersion) -> ModelVersion | None:
    """Return the version of the study's run whose score stands for a version; None if it is gone."""
    if registry.FINAL_FIT_OF not in version.tags:
        return version
    versions = client.search_model_versions(f"run_id = '{study_run(version)}'")
    return versions[0] if versions else None


def mark_candidate(
    client: MlflowClient, version: ModelVersion, rule: Rule | None = None, evidence: Evidence = CERTAIN
) -> Proposal:
    """Give a version the alias `candidate`; returns its comparison with the champion, which its tags keep.

    One that the answer does not recommend does not replace a candidate of a whole study by a part, nor one of more
    seeds, on the same data; a tag says whether it is recommended.
    """
    before = alias(client, version.name, CANDIDATE)
    seeds = max(evidence.seeds, int(version.tags.get(registry.SEEDS, 0)))
    whole = evidence.whole or (registry.SEEDS in version.tags and registry.rank(version)[0])
    for tag, value in {registry.SEEDS: str(seeds), registry.WHOLE: str(whole).lower()}.items():
        client.set_model_version_tag(version.name, version.version, tag, value)
    version = client.get_model_version(version.name, version.version)
    same = before is not None and before.tags.get(DATA) == version.tags.get(DATA)
    weaker = before is not None and registry.rank(before) > registry.rank(version)
    if before and same and weaker and not evidence.shown and before.version != version.version:
        return Proposal(version, alias(client, version.name, CHAMPION), "", "", before)
    proposal = compare(client, version, rule)
    client.set_model_version_tag(version.name, version.version, registry.SHOWN, evidence.tag)
    proposal = replace(proposal, version=client.get_model_version(version.name, version.version))
    client.set_registered_model_alias(version.name, CANDIDATE, version.version)
    return keep(client, proposal)


def keep(client: MlflowClient, proposal: Proposal) -> Proposal:
    """Write a comparison with the champion to the version's tags; returns it."""
    version, champion = proposal.version, proposal.champion
    kept = {PROPOSAL: str(proposal), registry.BETTER: proposal.better, registry.WHY: proposal.why}
    for tag, value in {**kept, registry.AGAINST: "none" if champion is None else str(champion.version)}.items():
        client.set_model_version_tag(version.name, str(version.version), tag, value)
    return proposal


def last_comparison(client: MlflowClient, version: ModelVersion) -> Proposal:
    """Return a candidate's comparison with the champion as its tags keep it; anew if the champion is another now."""
    return registry.standing_proposal(version, alias(client, version.name, CHAMPION)) or compare(client, version)


def compare(client: MlflowClient, version: ModelVersion, rule: Rule | None = None) -> Proposal:
    """Compare a version with the champion of its registered model.

    rule: of the challenge on today's data, for a version whose rows are held out by a hash. Others, and without it, are
    compared by the scores of the studies' runs.
    """
    champion = alias(client, version.name, CHAMPION)
    if champion is None or study_run(champion) == study_run(version):
        return Proposal(version, champion, "", "")
    metric = recorded(client.get_run(study_run(version)).data.tags.get(METRIC, "accuracy"))
    if rule is not None and version.tags.get(HOLD_OUT):
        candidate, rival = (study_version(client, either) for either in (version, champion))
        if candidate is None or rival is None:
            return Proposal(version, champion, INCOMPARABLE, "the version of its study is gone")
        ours, theirs = read_origin(client, candidate).setting, setting_of(client, rival)
        for key in ("name", "label"):
            if theirs and (today := ours.data.get(key)) != (then := theirs.data.get(key)):
                return Proposal(version, champion, INCOMPARABLE, f"data.{key} is {today!r}, the champion's {then!r}")
        criterion = replace(rule.criterion, metric=metric, positive=ours.scoring.get("positive"), auto=False)
        drifted = champion.tags.get(registry.BEFORE_DRIFT)
        verdict, why = challenge.compare(candidate, rival, rule, criterion, ours.scoring, drifted)
        with suppress(MlflowException):  # the champion's run is deleted
            decided = METRICS.get(client.get_run(rival.run_id).data.tags.get(METRIC), metric)
            why += f"; the champion's study was decided by {decided.words}" * (decided != metric)
        return Proposal(version, champion, verdict, why)
    for tag in (DATA, PARTITION):  # of what its run held out
        if version.tags.get(tag) != champion.tags.get(tag):
            return Proposal(version, champion, INCOMPARABLE, f"its {tag.rpartition('.')[2]} is another")
    if not metric.always:
        own, theirs = (setting_of(client, either) for either in (version, champion))
        if own and theirs and own.scoring != theirs.scoring:
            return Proposal(version, champion, INCOMPARABLE, "it is judged by another metric, label or costs")
    tables = [read_device_table(read_artifact(client, study_run(either), DEVICES)) for either in (version, champion)]
    for split, where in SPLITS.items():
        column = f"{split}/{metric.column}"
        if all(column in table for table in tables):
            change = metric.sign * (tables[0][column] - tables[1][column]).dropna().astype(float)
            if len(change):
                half = half_width(float(change.std()), len(change), 0.0) if len(change) > 1 else 0.0
                mean, better = float(change.mean()), float(change.mean()) > half + 1e-12
                size = f"{metric.difference(mean)} {metric.unit}".strip()
                size += f" of {metric.words}" * (metric.name != "accuracy") + f" on {where} data"
                reason = f"{size} (95 % interval {metric.interval(mean - half, mean + half)})"
                return Proposal(version, champion, "yes" if better else "no", reason)
    return Proposal(version, champion, INCOMPARABLE, "there are no test data")


def require_own_net(version: ModelVersion) -> None:
    """Refuse a version whose net, of the user's own, cannot be loaded from what it keeps, or predicts otherwise."""
    try:
        folder = challenge.files_of(version)
    except InputError:  # its models stay on their devices, or nothing is there
        return
    if models.modules_of(folder):
        models.load(folder)


def promote(client: MlflowClient, version: ModelVersion, proposal: Proposal | None = None) -> None:
    """Make a version the champion, and keep its files for DVC; the champion before becomes `previous`.

    proposal: its comparison with the champion before, or that of its study's version.
    """
    before = alias(client, version.name, CHAMPION)
    if before is not None and before.version == version.version:
        return
    require_own_net(version)
    studied = study_version(client, version)
    if shown := (proposal or Proposal(studied or version, before, "", "")).shown:
        client.set_model_version_tag(version.name, version.version, registry.SHOWN, shown)
        with suppress(MlflowException):  # its run is deleted; otherwise a clone reads it there
            client.set_tag(version.run_id, registry.SHOWN, shown)
    if before is not None:
        client.set_registered_model_alias(version.name, registry.PREVIOUS, before.version)
    client.set_registered_model_alias(version.name, CHAMPION, version.version)
    runs: list[tuple[Run, Path | None]] = []
    with suppress(InputError, MlflowException):  # of an earlier version, or deleted
        if studied is not None:
            runs.append((client.get_run(studied.run_id), challenge.files_of(studied) / "data" / models.FOLDER))
            runs += [(client.get_run(version.run_id), None)] * (version.run_id != studied.run_id)
    with suppress(InputError):  # its models stay on their devices, or nothing is there
        if failed := tracked.keep_champion(version.name.removeprefix(FAMILY), challenge.files_of(version), runs):
            sys.stderr.write(f"fedcore: {failed}\n")


def all_versions(client: MlflowClient) -> dict[str, registry.Versions]:
    """Return this record's versions by model, wherever it is (fedcore/pipeline/record/registry.py reads a file)."""
    found = client.search_registered_models(f"name LIKE '{FAMILY}%'", max_results=1000)
    catalogue = {}
    for model in sorted(found, key=lambda model: model.name):
        versions = mlflow.search_model_versions(filter_string=f"name = '{model.name}'")
        numbers = {
            str(of.version): registry.Version(model.name, str(of.version), of.run_id, tags=of.tags) for of in versions
        }
        aliases = {word: str(number) for word, number in model.aliases.items()}
        catalogue[model.name.removeprefix(FAMILY)] = registry.Versions(numbers, aliases)
    return catalogue


def version_table(client: MlflowClient, model_name: str, seeds: bool = False) -> list[dict[str, str]]:
    """Return column -> text for each method of the last studies and in use, with its means in the last answer.

    Where no answer on just its seeds is in the record, they are over its runs, which keep the rule of their first.
    seeds: for each version, the oldest first, and then for each run of the last studies whose models are no version,
    and that of local training beside the candidate.
    """
    of_model = all_versions(client)[model_name]
    versions = sorted(of_model.numbers.values(), key=lambda version: int(version.version))
    rows, data, champion = dict[str, Listed](), dict[str, RunData](), of_model.find(CHAMPION)
    for version in versions:
        try:
            data[version.run_id] = client.get_run(version.run_id).data
        except MlflowException:  # deleted for good
            data[version.run_id] = RunData()
        named = sorted(word for word, number in of_model.aliases.items() if number == version.version)
        if CANDIDATE in named and champion and study_run(champion) == version.run_id:  # in use, as its final fit
            named.remove(CANDIDATE)
        row = _listed(f"--version={version.version}", version.tags, data[version.run_id], named, version.run_id)
        of_study = rows.get(study_run(version), row)
        rows[version.run_id] = replace(row, key=of_study.key)
    answered = dict[frozenset[str], RunData]()
    runs, of = {}, f"tags.`{MODEL}` = '{registry.registered(model_name)}' and tags."
    queries, candidate = [f"{of}latest = 'true'"], of_model.find(CANDIDATE)
    tags = data[study_run(candidate)].tags if candidate and study_run(candidate) in data else {}
    if "requests" in tags:
        beside = f"requests LIKE '%{tags['requests'].split()[0]}%' and tags.`fedcore.seed` = '{tags['fedcore.seed']}'"
        queries.append(f"{of}{beside} and tags.`fedcore.method` = 'local_only'")
    if experiment := client.get_experiment_by_name(EXPERIMENT):
        found = (client.search_runs([experiment.experiment_id], query, max_results=1000) for query in queries)
        runs = {run.info.run_id: run for some in found for run in some if run.info.run_id not in data}
        query = "tags.kind = 'method' and tags.latest = 'true'"
        methods = [] if seeds else client.search_runs([experiment.experiment_id], query, max_results=1000)
        answered = {frozenset(of.data.tags["runs"].split()): of.data for of in methods if RULE in of.data.tags}
    for run in sorted(runs.values(), key=lambda run: run.info.start_time):
        row = _listed(f"--run={run.info.run_id[:8]}", run.data.tags, run.data, [], run.info.run_id)
        rows[run.info.run_id] = replace(row, shown=True)
    groups = dict[object, list[Listed]]()
    for each in rows.values():
        groups.setdefault(each.name if seeds else each.key, []).append(each)
    shown = [group for group in groups.values() if seeds or any(each.shown for each in group)]
    return [_cells(group, seeds, answered) for group in shown or groups.values()]


def _listed(name: str, tags: Mapping[str, str], data: RunData, aliases: list[str], run: str) -> Listed:
    final = [f"final fit of {tags[registry.FINAL_FIT_OF]}"] if registry.FINAL_FIT_OF in tags else []
    metric = recorded(tags.get(METRIC, ACCURACY.name))
    study = name_study(tags.get("fedcore.study", "-"), tags.get("fedcore.size", "small"))
    named = {key: tags.get(f"fedcore.{key}", "-") for key in ("method", "seed", "setting", "data")}
    net = " ".join(data.params[key] for key in ("net.name", "net.widths", "net.units") if key in data.params) or "-"
    of = {**named, "net": net, "study": study, "metric": metric.name}
    settings = frozenset(item for item in {**data.params, **of}.items() if item[0] not in OF_SEED)
    of["rule"] = "" if final else tags.get(RULE, "")  # which a final fit has, but no score
    scores = [score(data.metrics, split, metric.name) for split in SCORES]
    latest, role = data.tags.get("latest") == "true", ", ".join([*aliases, *final])
    key = settings if latest else name
    return Listed(name, key, latest or bool(aliases), of, scores, tags.get(SERVES_NEW, "-"), role, "" if final else run)


def _cells(group: Sequence[Listed], seeds: bool, answered: Mapping[frozenset[str], RunData]) -> dict[str, str]:
    """Return the cells of a line: of a version or run, or of all seeds of a method, whose first one it names.

    answered: a method's numbers in the last answer, by the runs of its seeds.
    """
    first, of, metric = group[0], group[0].of, recorded(group[0].of["metric"])
    scored = {each.of["seed"]: each.scores for each in reversed(group)}  # a final fit, which has none, is a later one
    means = [None if None in values else fmean(values) for values in zip(*scored.values(), strict=True)]
    rules = [each.of["rule"] for each in group if each.of["rule"]][-1:]  # runs of before have none
    if data := answered.get(frozenset(each.run for each in group if each.run)):
        means = [score(data.metrics, split, metric.name) for split in SCORES]
        rules = [*(re.sub(OF_MEANS, "", rule).strip(",; ") for rule in rules), data.tags[RULE]]
    texts = ["-" if mean is None else metric.value(mean) for mean in means]
    counted = {"seed": of["seed"]} if seeds else {"seeds": str(len(scored))}
    named = {"promote": first.name, "method": of["method"], "net": of["net"], **counted}
    measured = "; ".join(filter(None, [metric.words, *rules])).replace("least_test = 0", "all devices count")
    named |= {"study": of["study"], "setting": of["setting"], "metric": measured}
    roles = [each.role if each is first else f"{each.name}: {each.role}" for each in group if each.role]
    scores = dict(zip(SCORES.values(), texts, strict=True))
    return {**named, **scores, "new devices": first.serves_new, "role": "; ".join(roles)}


def find(client: MlflowClient, model_name: str, word: str) -> ModelVersion:
    """Return a version by its number or alias; raises InputError, which names what there is."""
    registry.require(all_versions(client), model_name, word)
    name = registry.registered(model_name)
    return client.get_model_version(name, word) if word.isdigit() else client.get_model_version_by_alias(name, word)


def read_origin(client: MlflowClient, version: ModelVersion) -> Origin:
    """Return what made a version of a study's run. Raises InputError if the record does not say."""
    try:
        content = read_artifact(client, version.run_id, SETTING)
    except (MlflowException, OSError):
        raise InputError(
            f"version {version.version} of {version.name}: its run has no {SETTING}, so that nothing can repeat it; "
            "run its study again, or promote it as it is with --no-final-fit"
        ) from None
    return Origin.from_json(content)


def setting_of(client: MlflowClient, version: ModelVersion) -> Setting | None:
    """Return the settings of a version's study; None if the record does not say, or says what is no longer known."""
    try:
        return Origin.from_json(read_artifact(client, study_run(version), SETTING)).setting
    except (MlflowException, OSError, InputError, KeyError, TypeError, ValueError):
        return None


def read_artifact(client: MlflowClient, run: str, name: str) -> bytes:
    """Return a file of a run. Raises InputError unless it is this user's, in this project."""
    return (seals.own_folder(client.get_run(run).info.artifact_uri, f"run {run}") / name).read_bytes()


def find_files(client: MlflowClient, asked: str | None) -> tuple[str, str, Path]:
    """Return the name, the words and the files of a version that this project registered, see `registry.choose`."""
    model_name, word = registry.choose(all_versions(client), asked)
    version = find(client, model_name, word)
    return model_name, registry.title(version), challenge.files_of(version)
