"""The models that runs proposed, and the champion among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fedcore.errors import InputError
from fedcore.pipeline.record import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

SPARE = ("net", "study", "new devices", "val", "setting")
"""Columns of the list of versions that are a line above it if all its lines agree, and else go if names do not fit."""


@click.command()
@click.argument("model", required=False)
@click.option("--version", help="Promote this one: a number, candidate or previous.")
@click.option("--run", help="Promote the models of this run, as --list names it; they become a version.")
@click.option(
    "--list", "listed", is_flag=True,
    help="List the methods of the last studies, with means over seeds, and how to promote each.",
)  # fmt: skip
@click.option("--seeds", is_flag=True, help="List every version, and each run of the last studies.")
@click.option(
    "--no-final-fit", is_flag=True,
    help="Promote the model of the study as it is, without training its method once more on all rows of the devices.",
)  # fmt: skip
def promote(
    model: str | None, version: str | None, run: str | None, listed: bool, seeds: bool, no_final_fit: bool
) -> None:
    """Show the models that runs proposed, or make one the champion. `fedcore predict` uses the champion.

    A study holds rows out, to test its models. A promotion therefore trains the method once more, on all labelled rows
    of each device, and promotes these models. It says first how long that takes, which is longer than in the study.

    \b
    fedcore promote                          each dataset's champion and candidate, and which is better
    fedcore promote digits                   promotes the candidate, unless it is not better
    fedcore promote digits --list            each method of the last studies: means over seeds
    fedcore promote digits --seeds           every version, and which ones are final fits
    fedcore promote digits --version 12      promotes any version
    fedcore promote digits --run 3fa9c2d1    promotes the models of a run that was not proposed
    fedcore promote digits --no-final-fit    promotes the model that the study tested
    """
    listed = listed or seeds
    if model is None and (version is not None or run is not None or no_final_fit):
        raise InputError("--version, --run and --no-final-fit: need a model; fedcore promote lists them")
    if listed and (version is not None or run is not None or no_final_fit):
        raise InputError("--list and --seeds: not with --version, --run or --no-final-fit")
    if version is not None and run is not None:
        raise InputError(f"--run = {run!r}: not with --version, which names a model that is registered")
    from fedcore.cli.project import enter_with_record, open_template

    enter_with_record()
    as_it_is = no_final_fit or version == registry.PREVIOUS  # what was the champion once comes back as it was
    catalogue = registry.read()
    if model is None and listed:
        names = [*(catalogue or ())]
        if len(names) != 1:
            command, option = f"fedcore promote {' or '.join(names) or 'MODEL'}", "--seeds" if seeds else "--list"
            raise InputError(f"{option} needs a model: {command} {option}")
        (model,) = names
    if model is not None and catalogue is not None:  # a wrong name is refused before imports that take seconds
        registry.require(catalogue, model, None if listed or run else version or registry.CANDIDATE)
    if model is None and catalogue is not None and (lines := champions(catalogue)):
        print(*lines, sep="\n")
        return
    if model is not None and not listed and not as_it_is:
        open_template()  # in case that it has to train
    from fedcore.config.params import read
    from fedcore.pipeline.record import promotion, tracked
    from fedcore.pipeline.record.result import rule_of
    from fedcore.pipeline.record.runs import Record

    record = Record()
    client = record.client
    if model is None:
        rule = rule_of(read())

        def compare(version: registry.AnyVersion) -> registry.Proposal:
            found = promotion.compare(client, client.get_model_version(version.name, version.version), rule)
            return promotion.keep(client, found)  # `fedcore status` says it then

        print(*(champions(promotion.all_versions(client), compare) or ()), sep="\n")
    elif listed:
        list_versions(client, model, seeds)
    else:
        chosen = (
            record.register_run(model, run) if run else promotion.find(client, model, version or registry.CANDIDATE)
        )
        verdict = promotion.compare(client, chosen, rule_of(read()))
        if version is None and run is None and not (verdict.accepted or verdict.of_champion):
            raise InputError(f"{verdict}; to promote it all the same, add --version {chosen.version}")
        promotion.require_own_net(chosen)
        in_field = chosen.tags.get(registry.SIMULATED) == "false"  # its rows are not here to train on once more
        final = None if as_it_is or in_field else final_fit(client, model, chosen)
        promotion.promote(client, final or chosen, verdict)
        line = verdict.promoted(final)
        print(f"{line}: models:/{chosen.name}@{registry.CHAMPION}")
        if tracked.kept(model) and tracked.has_remote():
            print(f"for clones: git add {tracked.CHAMPIONS}, commit, and dvc push")


def champions(
    catalogue: Mapping[str, registry.Versions],
    compare: Callable[[registry.AnyVersion], registry.Proposal] | None = None,
) -> list[str] | None:
    """Return a line for each registered model: its champion, and whether the candidate is better.

    compare: for a candidate whose tags keep no comparison with this champion; without it None is returned then.
    """
    lines = []
    for name, versions in catalogue.items():
        champion, candidate = versions.find(registry.CHAMPION), versions.find(registry.CANDIDATE)
        if candidate is None:
            lines.append(f"{name}: nothing was proposed; {registry.AT_THE_END}")
            continue
        proposal = registry.standing_proposal(candidate, champion) or (compare and compare(candidate))
        if proposal is None:
            return None
        if champion is None:
            lines.append(proposal.advice)
        else:
            lines.append(f"{name}: champion version {champion.version} ({registry.describe(champion)})\n  {proposal}")
    return lines or ["no model is registered; run fedcore run, or wait for one that still records"]


def final_fit(client: MlflowClient, model: str, version: ModelVersion) -> ModelVersion | None:
    """Return a version's final fit, which is made unless it is there; None if the version is one itself."""
    from fedcore.pipeline.record import promotion

    if registry.FINAL_FIT_OF in version.tags:
        return None
    if promotion.final_fit_of(client, version) is None:
        from fedcore.cli.project import flow
        from fedcore.pipeline.orchestration.session import prefect_server

        with prefect_server():
            flow("final_fit", "final_fit")(model, str(version.version))
    return promotion.final_fit_of(client, version)


def list_versions(client: MlflowClient, model: str, seeds: bool = False) -> None:
    """Print a line for each method of a registered model; seeds: for each version and run."""
    from fedcore.pipeline.record.promotion import all_versions, version_table
    from fedcore.report.terminal import print_table

    registry.require(all_versions(client), model)
    if not (rows := version_table(client, model, seeds)):
        raise InputError(f"model = {model!r}: its versions and runs were deleted")
    columns = {head: [row[head] for row in rows] for head in rows[0]}
    alike = {head: columns.pop(head)[0] for head in (*SPARE, "metric") if len({*columns[head]}) == 1}
    if line := ", ".join(f"{head} {cell}" for head, cell in alike.items() if cell != "-"):
        print(line)
    rules = [*dict.fromkeys(cell for cell in columns.get("metric", ()) if ";" in cell)]
    marks = {rule: "*" * number for number, rule in enumerate(rules, 1)}
    if marks:
        columns["metric"] = [f"{cell.partition(';')[0]} {marks.get(cell, '')}".rstrip() for cell in columns["metric"]]
    print_table([*columns], zip(*columns.values(), strict=True), spare=SPARE)
    print(*(f"{mark} = {rule}\n" for rule, mark in marks.items()), sep="", end="")
    other = next((row for row in rows if registry.CHAMPION not in row["role"]), rows[0])
    print(f"to promote one, add its first cell: fedcore promote {model} {other['promote']}")
