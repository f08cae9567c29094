"""A script's description of a federation (a dataset, its partition, the devices' nets) and of methods with settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from inspect import cleandoc, isfunction, signature
from os import PathLike, fspath
from typing import Any, Literal

import pandas as pd
import torch

from fedcore import nets
from fedcore.builders import CONTEXT, NET_CONTEXT, PARTITION_CONTEXT, call, describe, parameters, settings_of
from fedcore.config.methods import MethodConfig, configure, require_trains
from fedcore.config.sections import federation_settings, in_script, start_settings
from fedcore.config.signatures import check, method_help, model, setting_lines, stand_for
from fedcore.core.threats import split_threats
from fedcore.core.training import Training
from fedcore.data import Dataset, schema_of
from fedcore.data.prepare import fit_schema, prepare
from fedcore.data.schema import Schema
from fedcore.data.task import SEQUENCES, label_kind_of
from fedcore.errors import InputError
from fedcore.execute.workers import one_thread
from fedcore.methods import METHODS, builder
from fedcore.nets import NETS
from fedcore.nets.builders_by_path import describe_net
from fedcore.nets.copies import template
from fedcore.nets.custom import custom
from fedcore.nets.inputs import largest_integer, require_integers, takes_integers
from fedcore.nets.weights import with_weights
from fedcore.partition import PARTITIONS, Partition, final_partition, server_examples, splits, training
from fedcore.partition import partition as divide
from fedcore.partition.examples import label_scale
from fedcore.partition.new_devices import leave_out, new_examples, new_sites
from fedcore.partition.tables import counts
from fedcore.types.federation import Data, Device, Federation, Net, Scoring, Splits, Threats
from fedcore.types.method import HeldOut, Method


@dataclass(frozen=True)
class Partitioner:
    """How to divide examples among devices, and its settings, see :mod:`fedcore.partition.schemes`."""

    name: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Architecture:
    """A net without the data's shape and classes. make: (*, shape, classes, **settings) -> Net.

    start: the file that it starts from, if it does.
    """

    name: str
    make: Callable[..., Net]
    settings: Mapping[str, Any]
    start: Mapping[str, Any] = field(default_factory=dict)

    def of(self, dataset: Dataset) -> Net:
        """Return the net for a dataset's examples."""
        several = schema_of(dataset).several
        needed = nets.as_data_need(self.make, self.name, dataset.task is SEQUENCES, several)
        shape, classes = tuple(dataset.train.x.shape[1:]), len(dataset.classes)
        net = self.make(shape=shape, classes=classes, **needed, **self.settings)
        return with_weights(net, **self.start, shape=shape) if self.start else net


@cache
def partitioner(name: str) -> Callable[..., Partitioner]:
    """Return the function that takes the settings of that partition, by position or by name."""
    all_settings = settings_of(divide)
    context = (*PARTITION_CONTEXT, "devices", "domains")
    own = [key for key in signature(PARTITIONS[name]).parameters if key not in context]
    takes = {key: all_settings[key] for key in own if key in all_settings}

    def make(*values: Any, **settings: Any) -> Partitioner:
        named = _by_name(name, list(takes), values, settings)
        check(model(make), name, named)
        return Partitioner(name, named)

    lines = setting_lines(divide)
    section = ["", "Args:", *(lines[key] for key in takes)] if takes else []
    doc = "\n".join([cleandoc(PARTITIONS[name].__doc__ or ""), *section])
    return stand_for(PARTITIONS[name], make, name, doc, takes, by_position=True)


def net(which: str | Callable[..., Any], /, **settings: Any) -> Architecture:
    """Describe the devices' architecture.

    Args:
        which: the name of a net, "package.module:Class" or your own class (an nn.Module: fedcore docs own_net).
            Its shape and its classes come from the data.
        settings: the net's, and `weights`, `frozen` and `rank` of one that starts from a file
            (:func:`fedcore.nets.weights.with_weights`).

    Raises:
        InputError: for a setting that it does not take.
    """
    if isinstance(which, str):
        name, make = which, nets.maker(which)
    else:
        name, make = getattr(which, "__name__", repr(which)), custom(which)
    path = settings.get("weights")
    own = {**settings, "weights": fspath(path)} if isinstance(path, PathLike) else settings
    start, takes = start_settings(name, make, own), settings_of(make, NET_CONTEXT)
    for key in [key for key, value in own.items() if is_dataclass(value) and key not in takes]:
        own |= vars(own.pop(key))  # its fields are the settings
    try:
        return Architecture(name, make, dict(check(model(make, NET_CONTEXT), name, own)), start)
    except InputError as error:
        if not isfunction(which) or all(of.kind is not of.VAR_KEYWORD for of in signature(which).parameters.values()):
            raise
        how = f"def mine(classes): return {name}(num_classes=classes)"
        raise InputError(f"{error}; what it takes by ** write into a function of your own: {how}") from None


@cache
def architecture(name: str) -> Callable[..., Architecture]:
    """Return the function that takes the settings of that net; the widths of an MLP also by position."""
    maker = nets.maker(name)
    takes = settings_of(maker, NET_CONTEXT)

    def make(*values: Any, **settings: Any) -> Architecture:
        widths = {"widths": values} if name == "mlp" and values else _by_name(name, [], values, {})
        return net(name, **widths, **settings)

    return stand_for(maker, make, name, method_help(maker, {}, NET_CONTEXT), takes)


@dataclass(frozen=True, eq=False)
class DividedDataset:
    """A dataset and its partition, drawn anew for each seed as in the pipeline.

    final: the examples that a final fit holds out; None: this is no federation of one, see `for_final_fit`.
    """

    dataset: Dataset
    partitioner: Partitioner
    settings: Mapping[str, Any]
    nets: tuple[Net, ...]
    scale: str
    name: str
    threats: Threats | None = None
    final: tuple[HeldOut, ...] | None = None
    _last: dict[int, tuple[Partition, Federation, list[int]]] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        """Say how the data are divided, and on which nets; nothing is divided for it."""
        has_count = "devices" in signature(PARTITIONS[self.partitioner.name]).parameters  # else the data say how many
        count = f"{self.settings['devices']} devices by " if has_count else ""
        nets = " and ".join(dict.fromkeys(map(describe_net, self.nets)))
        kinds = () if self.threats is None else fields(self.threats)
        changed = {of.name: value for of in kinds if (value := getattr(self.threats, of.name)) != of.default}
        threats = f"\n{call('Threats', changed)}" if changed else ""
        scheme = call(self.partitioner.name, self.partitioner.settings)
        return f"{self.name}: {count}{scheme}, {nets}\n{self.dataset!r}{threats}"

    def partition(self, seed: int = 0) -> Partition:
        """Return the partition, see :class:`fedcore.partition.Partition`."""
        return self._divided(seed)[0]

    def federation(self, seed: int = 0) -> Federation:
        """Return the devices with their examples, and the shared test set."""
        return self._divided(seed)[1]

    def for_final_fit(self, held_out: tuple[HeldOut, ...] = ()) -> DividedDataset:
        """Return the same federation whose devices train on all their labelled examples.

        held_out: what they do not, see :func:`fedcore.partition.final_partition`. Nothing tests their models.
        """
        return replace(self, final=held_out, _last={})

    def counts(self, seed: int = 0) -> pd.DataFrame:
        """Return the examples of each device and class, see :func:`fedcore.partition.tables.counts`."""
        return counts(self.dataset, self.partition(seed))

    def schema(self, seed: int = 0) -> Schema:
        """Return how examples are prepared, see :mod:`fedcore.data.schema`."""
        trains = training(self.partition(seed))
        return fit_schema(self.dataset, trains, self.scale)

    def left_out(self, device: str, seed: int = 0) -> tuple[Federation, Data]:
        """Return the federation without a device, and its labelled examples, prepared by `fit_new`.

        Those whose id trains or validates on another device are left out, see
        :func:`fedcore.partition.new_devices.leave_out`.
        """
        with one_thread():
            partition, rows, _ = leave_out(self.dataset, self.partition(seed), device)
            nets = {name: of.net for name, of in self.federation(seed).devices.items() if name != device}
            return self._build(partition, nets), self._new(partition, rows)

    def new_sites(self, seed: int = 0) -> dict[str, Data]:
        """Return the examples of the sites whose rows are all marked test, prepared by `fit_new`."""
        with one_thread():
            partition = self.partition(seed)
            sites = new_sites(self.dataset, partition)
            return {name: self._new(partition, rows) for name, rows in sites.items()}

    def _new(self, partition: Partition, rows: Any) -> Data:
        """Return examples of a device that took no part."""
        data = new_examples(self.dataset, partition, rows, self.scale)
        return unscaled(data) if any(takes_integers(template(net)) for net in self.nets) else data

    def _divided(self, seed: int) -> tuple[Partition, Federation, list[int]]:
        """Return the partition and the federation of the rows as they are now, and how often each was changed."""
        if seed not in self._last or self._last[seed][2] != self._changes(self._last[seed][1]):
            self._last.clear()
            with one_thread(), in_script():
                partition = divide(self.dataset, name=self.partitioner.name, seed=seed, **self.settings)
                if self.final is not None:
                    partition = final_partition(self.dataset, partition, self.final)
                kinds = {name: self.nets[i % len(self.nets)] for i, name in enumerate(partition.names)}
                built = self._build(partition, kinds)
                self._last[seed] = partition, built, self._changes(built)
        return self._last[seed]

    def _changes(self, built: Federation) -> list[int]:
        """Return how often each tensor of the dataset and of what was built of it was changed in place."""
        own, of_devices = self.dataset, [part for of in built.devices.values() for part in vars(of.data).values()]
        every = filter(None, (own.train, own.test, own.server, built.test, built.server_data, *of_devices))
        return [0 if of.is_inference() else of._version for data in every for of in (data.x, data.y)]

    def _build(self, partition: Partition, nets: Mapping[str, Net]) -> Federation:
        """Return the federation of a partition. nets: of its devices."""
        parts_of, shared = splits(self.dataset, partition, self.scale)
        if self.final is not None and "shared" not in self.final:
            shared = Data(shared.x[:0], shared.y[:0])
        own = server_examples(self.dataset, partition, self.scale)
        embedding = [module for module in map(template, self.nets) if takes_integers(module)]
        for module in embedding:
            for examples in (self.dataset.train.x, shared.x):
                if len(examples):
                    require_integers(module, largest_integer(examples), self.scale)
        if embedding:
            parts_of = {who: Splits(*(unscaled(part) for part in vars(own).values())) for who, own in parts_of.items()}
            shared, own = unscaled(shared), unscaled(own)
        devices = {name: Device(name, nets[name], parts_of[name]) for name in parts_of}
        scoring = Scoring(label_scale=label_scale(self.dataset, partition))
        classes, task = len(self.dataset.classes), self.dataset.task.name
        return Federation(devices, shared, classes, own, self.threats, scoring, task)


def unscaled(data: Data) -> Data:
    """Return examples for a net with an embedding, which looks whole numbers up: bytes are no pixels then."""
    return Data(data.x.float(), data.y) if data.x.dtype == torch.uint8 else data


def federate(
    dataset: Dataset,
    partitioner: Partitioner | None = None,
    *,
    net: Architecture | Sequence[Architecture] | None = None,
    scale: Literal["none", "device", "common"] = "none",
    name: str = "data",
    **settings: Any,
) -> DividedDataset:
    """Describe a federation: the dataset is divided when a method runs, with the run's seed.

    Args:
        dataset: from `load` or `from_arrays`.
        partitioner: how examples are divided, e.g. `dirichlet(0.5)`, which is the default; `iid()` where labels are no
            classes.
        net: of all devices, or several that they have in turn; an MLP by default.
        scale: "device": each device standardises features by its own training examples; "common": by the mean and
            deviation of all devices' training examples, from numbers that each sends once (fedcore docs missing).
        name: of the dataset in tables.
        settings: those of :func:`fedcore.partition.partition`: devices, val, test, shared_test, examples,
            shared_examples, domains, unlabelled, hidden, drop_small; and those of `fedcore.types.federation.Threats`:
            hostile, attack, strength, drop, deadline, bound, beyond.

    Raises:
        InputError: for a setting that is unknown or out of range.
    """
    require_defaults("federate")
    if not isinstance(dataset, Dataset):
        must = "must be a dataset: load('digits'), or from_arrays(x, y)"
        raise InputError(f"federate.dataset = {describe(dataset)}: {must}")
    default = Partitioner("dirichlet" if dataset.task.has_classes else "iid", {})
    chosen = partitioner if partitioner is not None else default
    if not isinstance(chosen, Partitioner):
        word, names = describe(chosen) if callable(chosen) else repr(chosen), ", ".join(PARTITIONS)
        raise InputError(
            f"federate.partitioner = {word}: must be one of {names} with its settings in brackets, e.g. dirichlet(0.5) "
            "or by_device()"
        )
    if twice := sorted(set(chosen.settings) & set(settings)):
        raise InputError(f"federate.{twice[0]}: is already set in {chosen.name}")
    complete = check(federation_settings(), "federate", {**chosen.settings, **settings, "scale": scale}).model_dump()
    behaviour, divided = split_threats(complete)
    scale, threats = divided.pop("scale"), Threats(**behaviour)
    nets: list[Any] = [*net] if isinstance(net, list | tuple) else [net or architecture("mlp")()]
    for item in nets:
        if not isinstance(item, Architecture):
            must = "must be a net with its settings, such as mlp(64, 32) or net(MyNet)"
            raise InputError(f"federate.net = {describe(item)}: {must}")
    built = tuple(item.of(dataset) for item in nets)
    return DividedDataset(dataset, chosen, divided, built, scale, name, threats or None)


def require_defaults(where: str) -> None:
    """Refuse what a script has set for all tensors of PyTorch. where: the function that the user called."""
    kind, place = torch.get_default_dtype(), torch.get_default_device()
    if (kind, place.type) != (torch.float32, "cpu"):
        raise InputError(
            f"{where}: PyTorch's defaults are {kind} on {place}; fedcore needs torch.set_default_dtype(torch.float32) "
            "and torch.set_default_device('cpu'), and takes a GPU by accelerator"
        )


def _by_name(where: str, names: list[str], values: Sequence[Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings given by position or by name, by name."""
    if len(values) > len(names):
        raise InputError(f"{where}: takes {len(names)} settings by position, has {len(values)}")
    positional = dict(zip(names, values, strict=False))
    if twice := sorted(set(positional) & set(settings)):
        raise InputError(f"{where}.{twice[0]}: is given twice")
    return positional | dict(settings)


def federation_of(fed: DividedDataset | Federation, seed: int) -> Federation:
    """Return the devices with their examples, divided with the seed where they are not yet."""
    if isinstance(fed, DividedDataset):
        return fed.federation(seed)
    embedding = [*filter(takes_integers, {template(device.net) for device in fed.devices.values()})]

    def ready(data: Data) -> Data:
        prepared = prepare(unscaled(data) if embedding else data)
        for module in embedding if len(data) else ():
            require_integers(module, largest_integer(prepared.x), "none")
        return prepared

    devices = {
        name: replace(device, data=Splits(*map(ready, vars(device.data).values())))
        for name, device in fed.devices.items()
    }
    test, server_data = ready(fed.test), ready(fed.server_data)
    return replace(fed, devices=devices, test=test, server_data=server_data, task=task_name(fed))


def task_name(fed: DividedDataset | Federation) -> str:
    """Return the name of what labels are."""
    if isinstance(fed, DividedDataset):
        return fed.dataset.task.name
    return next((label_kind_of(device.data.train.y).name for device in fed.devices.values()), fed.task)


def method(
    which: str | Callable[..., Method],
    /,
    *,
    training: Training | Mapping[str, Any] | None = None,
    label: str | None = None,
    **settings: Any,
) -> MethodConfig:
    """Describe a method with its settings.

    Args:
        which: its name, "package.module:function", or your own builder (docs/adding-a-method.md).
        training: how devices train: a :class:`fedcore.core.training.Training`, or a dict of the settings that differ.
        label: its name in tables; the method's by default.
        settings: the method's own; the others have the defaults of its signature.

    Raises:
        InputError: naming the method and the setting, for a setting that is unknown or out of range.
    """
    build = builder(which) if isinstance(which, str) else which
    name = getattr(build, "__name__", "method")
    if label is not None and (not isinstance(label, str) or "label" in parameters(build)):
        why = "must be a text, the name in tables; call a setting of the builder otherwise"
        raise InputError(f"{name}.label = {label!r}: {why}")
    if training is not None and not isinstance(training, Training | Mapping):
        raise InputError(f"{name}.training = {training!r}: must be a Training, or a dict of its settings")
    defaults = getattr(build, "training_defaults", {})
    if isinstance(training, Training):  # all of it counts, but for a start that nobody asked for
        training = {key: value for key, value in vars(training).items() if key != "shared_init" or value}
    require_trains(build, f"{name}.training", training or {})
    return configure(
        which, settings, {**defaults, **(training or {})}, label=label or name, training_key=f"{name}.training"
    )


@cache
def config_of(name: str) -> Callable[..., MethodConfig]:
    """Return the function that takes the settings of the method of that name."""
    build = builder(name)

    def make(
        *, training: Training | Mapping[str, Any] | None = None, label: str | None = None, **settings: Any
    ) -> MethodConfig:
        return method(name, training=training, label=label, **settings)

    shared = {
        "training": "how devices train, or a dict of what changes in it, see `fedcore.method`.",
        "label": "the method's name in tables; its own by default.",
    }
    kinds = {"training": (Training | Mapping[str, Any] | None, None), "label": (str | None, None)}
    return stand_for(build, make, name, method_help(build, shared), settings_of(build, CONTEXT) | kinds)


def settings_functions() -> dict[str, Callable[[str], Callable[..., Any]]]:
    """Return, for each method, partition and net, a function that returns the function of its settings."""
    kinds = ((NETS, architecture), (PARTITIONS, partitioner), (METHODS, config_of))
    return {name: function for names, function in kinds for name in names}
