"""The complete settings of one point of a study's grid, checked before anything is computed."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedcore.config.methods import MethodConfig
from fedcore.core.threats import split_threats
from fedcore.data import Dataset, load
from fedcore.partition import Partition, partition
from fedcore.types.federation import Threats


def model_name_of(data_name: str, labels: Iterable[str | None]) -> str:
    """Return the registered name of the model of labels of data, with a digest if it loses letters."""
    words = "-".join(filter(None, [data_name, *labels]))
    name = re.sub(r"[^A-Za-z0-9]+", "-", words)
    return (name if words.isascii() else f"{name}-{_digest(words)}").lstrip("-")


@dataclass(frozen=True)
class Setting:
    """One point of a study's grid, ready to run: name, data, federation, net and methods.

    every: the number of rounds between evaluations. scoring: metric, positive and costs of section run, where models
    are measured by more than they always are. metric: the name of what decides, or auto. rates: label -> the learning
    rates to try, for the methods that are tuned. threshold: the label
    that is predicted from a probability on that validation rows decide; None: the most probable class is predicted.
    """

    study: str
    name: str
    point: dict[str, Any]
    data: dict[str, Any]
    federation: dict[str, Any]
    net: dict[str, Any]
    methods: tuple[MethodConfig, ...]
    every: int
    scoring: dict[str, Any] = field(default_factory=dict)
    metric: str = "accuracy"
    threshold: str | None = None
    rates: dict[str, list[float]] = field(default_factory=dict)

    @property
    def slug(self) -> str:
        return slug(self.name)

    @property
    def nets(self) -> list[dict[str, Any]]:
        """The settings of the nets that devices have in turn."""
        return [{key: value for key, value in self.net.items() if key != "variants"}, *self.net.get("variants", ())]

    @property
    def threats(self) -> Threats | None:
        """How devices misbehave, if they do."""
        behaviour, _ = split_threats(self.federation)
        return Threats(**behaviour) if behaviour else None

    @property
    def data_name(self) -> str:
        """The name of the dataset, or of the user's own file or folder."""
        return Path(str(self.data["path"])).stem if "path" in self.data else str(self.data["name"]).rpartition(":")[2]

    @property
    def model_name(self) -> str:
        """The name of the registered model: that of the data, and the label, or labels."""
        label = self.data.get("label")
        return model_name_of(self.data_name, label if isinstance(label, list | tuple) else [label])

    @property
    def source(self) -> str:
        """The words of all settings that say where the data are and how they are read."""
        return json.dumps(self.data, sort_keys=True)

    def read_data(self, seed: int) -> tuple[Dataset, Partition]:
        """Read the data and divide them among devices."""
        dataset = load(**self.data)
        return dataset, partition(dataset, seed=seed, **partition_arguments(self.federation))

    @property
    def content(self) -> dict[str, Any]:
        """The settings that determine which data are read; their location aside."""
        return {key: value for key, value in self.data.items() if key not in ("root", "download")}

    @property
    def dataset(self) -> str:
        """A name for the dataset that these settings read, valid in a path."""
        text = json.dumps(self.content, sort_keys=True)
        return f"{slug(self.data['name'])}-{_digest(text)}"


def partition_arguments(federation: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of a federation's settings that :func:`fedcore.partition.partition` takes, by its names."""
    _, section = split_threats(federation)
    return {"name" if key == "partition" else key: value for key, value in section.items() if key != "scale"}


def slug(name: str) -> str:
    """Return a setting's name, valid in a path; with a digest where letters are lost, by which names may differ."""
    return re.sub(r"[^A-Za-z0-9.=+-]+", "_", name) + ("" if name.isascii() else f"-{_digest(name)}")


def apart(names: Iterable[str], plain: Callable[[str], str] = slug) -> dict[str, str]:
    """Return what a function makes of each name, with a digest where two would be one but for upper and lower case."""
    made = {name: plain(name) for name in names}
    counts = Counter(word.casefold() for word in made.values())
    return {name: f"{word}-{_digest(name)}" if counts[word.casefold()] > 1 else word for name, word in made.items()}


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
