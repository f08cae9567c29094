"""What a run computed, as JSON: its setting, method and seed, enough to compute it again.

It is a request, not a result: whoever reads it computes the digest of the configuration and compares it with the run's,
so that nothing that has changed since passes for the same.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from fedcore.config.methods import MethodConfig, configure, current_settings
from fedcore.config.sections import complete_federation, data_settings, net_settings
from fedcore.config.settings import Setting
from fedcore.pipeline.record.result import Result
from fedcore.types.method import Threshold


@dataclass(frozen=True)
class Origin:
    """setting: with no methods. row: the method. config: the digest of the configuration; data: that of the dataset.

    threshold: the one that its validation rows chose.
    """

    setting: Setting
    row: MethodConfig
    seed: int
    size: str
    config: str
    data: str
    threshold: Threshold | None = None


def origin_of(result: Result) -> Origin:
    """Return what made a result."""
    return Origin(
        result.setting, result.row, result.seed, result.size, result.config, result.prepared.dataset.digest,
        result.threshold,
    )  # fmt: skip


def to_json(origin: Origin, command: Sequence[str] = ()) -> bytes:
    """Return an origin as JSON, with the words of the command that computes it."""
    setting, row = origin.setting, origin.row
    card = {
        "study": setting.study, "setting": setting.name, "point": setting.point, "size": origin.size, "seed":
        origin.seed, "every": setting.every, "data": setting.data, "federation": setting.federation, "net": setting.net,
        "scoring": setting.scoring, "metric": setting.metric, "config": origin.config, "dataset": origin.data, "method":
        {"label": row.label, "name": row.name, "training": row.training.settings(), "settings": dict(row.settings)},
    }  # fmt: skip
    if command:
        card["command"] = list(command)
    if setting.threshold is not None:
        card["threshold"] = {"of": setting.threshold, "chosen": origin.threshold and asdict(origin.threshold)}
    return (json.dumps(card, indent=1) + "\n").encode()


def from_json(content: bytes) -> Origin:
    """Undo :func:`to_json`; raises InputError for settings that are no longer known."""
    card = json.loads(content)
    of, decided = card["method"], card.get("threshold", {})
    setting = Setting(
        card["study"], card["setting"], card["point"], data_settings(card["data"]),
        complete_federation(card["federation"]), net_settings(card["net"]), (), card["every"],
        card["scoring"], card["metric"], decided.get("of"),
    )  # fmt: skip
    row = configure(of["name"], current_settings(of["name"], of["settings"]), of["training"], label=of["label"])
    threshold = Threshold(**decided["chosen"]) if decided.get("chosen") else None
    return Origin(setting, row, card["seed"], card["size"], card["config"], card["dataset"], threshold)
