"""The models that runs proposed, and the champion among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fedcore.errors import InputError

if TYPE_CHECKING:
    from mlflow import MlflowClient


@click.command()
@click.argument("model", required=False)
@click.option("--version", help="Promote this one: a number, candidate or previous.")
@click.option("--list", "listed", is_flag=True, help="List every version: its method, source, accuracy and alias.")
def promote(model: str | None, version: str | None, listed: bool) -> None:
    """Show the models that runs proposed, or make one the champion, which `fedcore predict` uses.

    \b
    fedcore promote                        each dataset's champion and candidate, and which is better
    fedcore promote digits                 promotes the candidate, unless it is not better
    fedcore promote digits --list          every version
    fedcore promote digits --version 12    promotes any version
    """
    if model is None and (version is not None or listed):
        raise InputError("--version and --list: need a model; fedcore promote lists them")
    if version is not None and listed:
        raise InputError("--list: not with --version")
    from fedcore.cli.project import enter_project

    enter_project()
    from fedcore.pipeline.record import registry

    known = registry.read()
    if model is not None and known is not None:  # a wrong name is refused before imports that take seconds
        registry.require(known, model, None if listed else version or registry.CANDIDATE)
    from fedcore.pipeline.record import promotion
    from fedcore.pipeline.record.runs import Record

    client = Record().client
    if model is None:
        names = promotion.names(client)
        print(*(summary(client, name) for name in names), sep="\n")
        if not names:
            print("no model is registered; run fedcore run")
    elif listed:
        list_versions(client, model)
    else:
        chosen = promotion.find(client, model, version or registry.CANDIDATE)
        verdict = promotion.compare(client, chosen)
        if version is None and verdict.better in ("no", "not comparable"):
            raise InputError(f"{verdict}; to promote it all the same, add --version {chosen.version}")
        promotion.promote(client, chosen)
        print(f"{verdict.promoted}: models:/{chosen.name}@{registry.CHAMPION}")


def list_versions(client: MlflowClient, model: str) -> None:
    """Print a line for each version of a registered model."""
    from fedcore.pipeline.record import promotion, registry
    from fedcore.report.terminal import print_table

    registry.require(promotion.all_versions(client), model)
    print_table(promotion.COLUMNS, promotion.version_table(client, model))
    print(f"to promote one: fedcore promote {model} --version NUMBER")


def summary(client: MlflowClient, name: str) -> str:
    """Return a registered model's champion and candidate, and which is better, as a line."""
    from fedcore.pipeline.record import promotion, registry

    champion, candidate = (promotion.alias(client, name, word) for word in (registry.CHAMPION, registry.CANDIDATE))
    if candidate is None:
        return f"{name}: nothing was proposed"
    shown = "none" if champion is None else f"version {champion.version} ({promotion.describe(champion)})"
    return f"{name}: champion {shown}\n  {promotion.compare(client, candidate)}"
