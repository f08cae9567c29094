"""Scenarios: a user's work with the project, each in its own folder; tests inspect the results."""

from collections.abc import Callable
from typing import Any

from scenarios.bad_input import Refused, refused
from scenarios.bucket import Bucket, bucket
from scenarios.data import Mine, Tables, machines, mine, tables
from scenarios.deployment import Deployed, deployed
from scenarios.installed import Installed, installed
from scenarios.kills import Kill, Killed, Long, Sampled, killed, long, sampled
from scenarios.names import Named, named
from scenarios.parts import Hurt, hurt
from scenarios.pictures import Own, documented, own
from scenarios.place import Place, empty_record, lone, probed, serve
from scenarios.stages import Repro, repro
from scenarios.upgraded import Upgraded, upgraded

__all__ = [
    "SCENARIOS", "Bucket", "Deployed", "Hurt", "Installed", "Kill", "Killed", "Long", "Mine", "Named", "Own", "Place",
    "Refused", "Repro", "Sampled", "Tables", "Upgraded", "documented", "empty_record", "lone", "machines", "serve",
]  # fmt: skip

SCENARIOS: dict[str, Callable[[Place], Any]] = {
    "installed": installed, "repro": repro, "deployed": deployed, "tables": tables, "mine": mine, "refused": refused,
    "killed": killed, "hurt": hurt, "long": long, "sampled": sampled, "own": own, "bucket": bucket,
    "upgraded": upgraded, "named": named, "probed": probed,
}  # fmt: skip
"""Scenarios in the order of their start, the longest first."""
