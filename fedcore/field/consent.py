"""What a device's owner agrees to: methods, what may leave the device, modules, and how much work.

The server is never asked. A run that is outside of it is refused on the device, before anything of it is built.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedcore.builders import CONTEXT, settings_of, suggestion
from fedcore.config.methods import configure
from fedcore.core.training_settings import Training
from fedcore.errors import InputError
from fedcore.field.modules import load_module
from fedcore.field.plan import VERSIONS, Plan
from fedcore.field.recipe import NUMBERS
from fedcore.methods import METHODS, builder
from fedcore.nets import params_of
from fedcore.nets.copies import template
from fedcore.nets.tables import without_numbers
from fedcore.types.federation import Net, Params

KINDS = {
    "model": "a model, a part of one, or how training changed it",
    "class_hits": "for each class, its validation examples and how many of them are right",
    "labels": "how many examples of each label it has", "counts": "how many examples of each label it has",
    "soft": "for each label, the sum of the logits of its examples, and their number",
    "prototypes": "for each label, the mean features of its examples",
    "path": "its number of steps times the learning rate",
    "gaussian": "for each class, the mean of its examples, with principal directions and variances",
    "gram": "sums of products of inputs, or of features, of its examples",
    "cross": "sums of products of layers' inputs and outputs over its examples",
    "outputs": "for each hidden unit, three sums over its examples",
    "targets": "for each class, the sum of the features of its examples",
    "axes": "the largest directions of its features", "residual": "the rest of its features' squares",
    "squares": "the sum of its labels' squares, where they are no classes",
    "stack": "sums of products of all models' logits over its validation examples",
    "report": "its model's error, its numbers of labelled and of all examples",
    "classifier": "to the other device of a pair: a classifier that tells their examples apart",
    "buffer": "to the other device of a pair: the statistics of that classifier's batch norms",
    "noise": "to the other device of a pair: where the pair's common random numbers stand",
    "error": "that classifier's error on its examples",
    "differ": "how often each two of the received models disagree on its examples",
    "trees": "decision trees: the thresholds of its columns, and sums over the examples in each node",
    "features": "features of some of its examples", "attention": "the weights of the models that it received",
    "rows": "its training examples: only in a simulation",
}  # fmt: skip
"""What can leave a device, by the kind of its tensors: "model" for one named like one of the net, else its name's first
part. `rows` never leave a real one."""

_PAIRS = "report classifier buffer noise error model differ"
_METHODS = {
    "class_hits model": "best_local half_best no_alignment lmf code_ot",
    "model": (
        "fedavg fedprox label_smoothing scaffold ditto fedopt feddyn moon pfedme apfl fedala perfedavg fedper fedrep "
        "fedbabu fedbn fixed_depth fedasa"
    ),
    "model path": "fednova",
    "model soft": "dfl dfl_diagonal",
    "soft": "fd",
    "model labels": "fedgen ensemble",
    "model labels stack": "stack",
    "model labels gaussian": "gaussian_distillation personal_distillation",
    "counts prototypes": "fedproto",
    "counts": "majority",
    "gram model outputs": "regmean",
    "gram cross model": "pleas",
    "gram targets axes residual squares": "analytic",
    "report model": "rnd_psi psi_fedavg single_match",
    "report model features attention": "psi_fada",
    _PAIRS: "st_lf avg_degree rnd_alpha fedavg_alpha least_bound least_error most_similar",
    f"{_PAIRS} features attention": "fada",
    "trees": "xgb_bagging",
    "rows": "pooled",
    "": "local_only analytic_local majority_per_device best_source xgb_local",
}
KINDS_OF = {method: tuple(kinds.split()) for kinds, methods in _METHODS.items() for method in methods.split()}
"""The kinds of what each method sends: its row in docs/privacy.md."""

_ALLOWED = re.compile(r"(?P<method>\w+)(\((?P<key>[\w.]+)=(?P<value>[^()]+)\))?")
_MODULE = re.compile(r"(\w+)=([0-9a-f]{64})")


@dataclass(frozen=True)
class Limits:
    """How much work a device does for a server.

    Args:
        steps: minibatches of local training in a visit, epochs times batches.
        parameters: of a net.
        number: any other whole number in a run's settings: rounds, a width, a depth, how many nets.
        runs: whose memories are kept.
        minutes: of a visit, after which the device's process ends.
        devices: that must be in a masked sum.
    """

    steps: int = 100_000
    parameters: int = 50_000_000
    number: int = 20_000
    runs: int = 100
    minutes: float = 60.0
    devices: int = 3


@dataclass(frozen=True)
class Consent:
    """What an owner agrees to.

    methods: the allowed ones, each with the settings that it must have. numbers: whether medians, means and variances
    of columns may leave the device. modules: name -> SHA-256. sends: some of KINDS; None: those of each method.
    """

    methods: Mapping[str, Mapping[str, str]]
    numbers: bool = False
    modules: Mapping[str, str] = field(default_factory=dict)
    sends: frozenset[str] | None = None
    limits: Limits = Limits()

    def check(self, plan: Plan, name: str) -> None:
        """Refuse a run that the owner did not agree to, and one of other versions or without this device.

        What it may run of the owner's own modules is imported.
        """
        module = plan.method.partition(":")[0]
        exists = plan.method in METHODS or (":" in plan.method and module in plan.modules)
        if not exists or not (plan.method in self.methods or module in self.modules):
            allowed = ", ".join(sorted({*self.methods, *self.modules}))
            raise InputError(f"method {plan.method}: not allowed on {name}; allowed: {allowed}")
        settings = {**plan.settings, **{f"training.{key}": value for key, value in plan.training.items()}}
        for key, value in self.methods.get(plan.method, {}).items():
            if (planned := _word(settings.get(key))) != value:
                raise InputError(f"method {plan.method}: {key} = {planned} is not allowed on {name}, {value} is")
        if dict(plan.versions) != VERSIONS:
            raise InputError(f"versions: the server has {_said(plan.versions)}, {name} has {_said(VERSIONS)}")
        if name not in plan.nets:
            raise InputError(f"run {plan.run}: {name} is not one of its devices")
        for own, digest in plan.modules.items():
            if self.modules.get(own) != digest:
                raise InputError(f"module {own}: not allowed on {name} with the SHA-256 {digest}")
            load_module(own, digest)
        self._check_size(plan, name)

    def _check_size(self, plan: Plan, name: str) -> None:
        config = configure(plan.method, plan.settings, plan.training)  # 1e9 as a float is a number of epochs, too
        training = {**config.training.settings(), "epochs": 1, "steps": 1}
        parts = {
            "settings": config.settings, "training": training, "net": plan.kinds,
            "shape": plan.shape, "classes": plan.classes, "nets": list(plan.nets),
        }  # fmt: skip
        for part, value in parts.items():
            if (largest := max(_numbers(value), default=0)) > self.limits.number:
                raise InputError(f"{part}: {largest} is more than --max-number {self.limits.number} of {name}")
        for net in plan.kinds_of_nets():
            if (count := count_parameters(net)) > self.limits.parameters:
                raise InputError(
                    f"net: {count} parameters, more than --max-parameters {self.limits.parameters} of {name}"
                )

    def check_steps(self, plan: Plan, name: str, examples: int) -> None:
        """Refuse more minibatches in a visit than the owner allows."""
        epochs, batch, steps = (plan.training.get(key) for key in ("epochs", "batch", "steps"))
        count = steps if steps is not None else (epochs or 1) * -(-examples // max(1, batch or 1))
        if count > self.limits.steps:
            raise InputError(
                f"training: {count} minibatches in a round, more than --max-steps {self.limits.steps} of {name}"
            )

    def check_sent(self, method: str, net: Net, name: str, *parts: Params) -> None:
        """Refuse that anything leaves the device to which its owner did not agree."""
        agreed = {*KINDS_OF.get(method, self.sends or ())}
        agreed &= agreed if self.sends is None else self.sends
        names = params_of(template(net))
        kinds = {"model" if key in names else key.partition("/")[0] for part in parts for key in part}
        for kind in sorted(kinds - agreed):
            may = ", ".join(sorted(agreed)) or "nothing"
            raise InputError(f"method {method}: {kind} may not leave {name}; its owner agrees to {may}")


def consent_of(allowed: Collection[str], sends: Collection[str] | None = None, limits: Limits = Limits()) -> Consent:
    """Return the consent of options.

    allowed: "fedavg", "fedavg(secure_aggregation=true)", "fedavg(training.batch=16)", "numbers", or "module=SHA-256".
    sends: kinds; None: those of each method. Raises InputError for anything else.
    """
    methods: dict[str, dict[str, str]] = {}
    modules: dict[str, str] = {}
    for entry in allowed:
        if module := _MODULE.fullmatch(entry):
            modules[module[1]] = module[2]
        elif entry != NUMBERS:
            match = _ALLOWED.fullmatch(entry)
            if match is None or match["method"] not in METHODS:
                raise InputError(f"--allow {entry}: not a method of fedcore, nor module=SHA-256, nor {NUMBERS}")
            wanted = methods.setdefault(match["method"], {})
            if key := match["key"]:
                training = (f"training.{name}" for name in settings_of(Training))
                settings = [*settings_of(builder(match["method"]), CONTEXT), *training]
                if key not in settings:
                    raise InputError(f"--allow {entry}: {key}: no such setting{suggestion(key, settings)}")
                wanted[key] = match["value"]
    known = [kind for kind in KINDS if kind != "rows"]
    for kind in sends or ():
        if kind not in known and not modules:  # a method of one's own has its own words
            raise InputError(f"--sends {kind}: must be one of {', '.join(known)}")
    return Consent(methods, NUMBERS in allowed, modules, None if sends is None else frozenset(sends), limits)


def describe(consent: Consent) -> list[str]:
    """Return what the owner agrees to, a line for each method: this is what a device shows before it joins."""
    lines = ["numbers: the medians, means and variances of its columns"] if consent.numbers else []
    for method, wanted in sorted(consent.methods.items()):
        kinds = [kind for kind in KINDS_OF[method] if consent.sends is None or kind in consent.sends]
        only = "".join(f", only with {key} = {value}" for key, value in wanted.items())
        lines.append(f"{method}{only}: " + ("; ".join(KINDS[kind] for kind in kinds) or "nothing leaves the device"))
    return lines


def count_parameters(net: Net) -> int:
    """Return the number of parameters of a net, without the memory for them."""
    return sum(tensor.numel() for tensor in without_numbers(net.build).parameters())


def _numbers(value: Any) -> Iterator[int]:
    """Yield all whole numbers in a value, and the lengths of its parts."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        yield len(value)
        for part in value:
            yield from _numbers(part)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield abs(value)


def _word(value: Any) -> str:
    """Return a setting as it is typed."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _said(versions: Mapping[str, str]) -> str:
    return " and ".join(f"{part} {number}" for part, number in versions.items())
