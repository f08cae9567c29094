r"""Distillation on Gaussian draws: one exchange, one net, and no data at the server.

Each device sends its model and, for each class of which it has enough examples, a Gaussian of them: the mean, a few
principal directions and the variances. The server draws examples from the Gaussians and trains a fresh net on them. A
draw's target is half its label and half the answer of the ensemble of all models, weighted by counts of labels
(:mod:`fedcore.methods.one_shot.ensembles`). Nets may differ: each architecture gets its own.

`personal_distillation` is the same with personal answers on devices that have validation examples: the row of a user
who asks for nothing.

    x = mu + sum_k sqrt(lambda_k) e_k v_k + sqrt(rho) h        e_k, h: standard normal, h as large as x

mu is the mean of n examples and v_k, lambda_k are the q leading principal directions and variances (with 1/n): the SVD
U S V' of x - mu, lambda = S^2 / n. rho spreads the variance that is left over all inputs, so that draws have the
examples' mean and total variance, and the covariance V diag(lambda) V' + rho I. q = min(rank, n - 1).

A device makes a Gaussian of each class of which it has `minimum` examples; with less of every class, one of all its
examples if they are as many. Labels of the draws of the latter are not known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import one_hot

from fedcore import nets
from fedcore.builders import needs_classes
from fedcore.core.messages import initial_messages, to_weights
from fedcore.core.training import LogitGrad, Training, descend, flatten_net, minibatches, plain_step, predict, train
from fedcore.data.task import mix_probabilities
from fedcore.errors import InputError
from fedcore.methods.one_shot.ensembles import COUNTS, Voting, elect, gather_counts, send_model, with_personal_answers
from fedcore.nets import key
from fedcore.nets.inputs import require_quantities
from fedcore.types.federation import Data, Device, Net, Params, by_word
from fedcore.types.method import Message, Method, Model, Report, RoundInfo, Stage, StepId, Update, step_word
from fedcore.types.ranges import Count, Positive, Share

__all__ = ["gaussian_distillation", "personal_distillation"]

CHUNK = 8192
"""Draws that the ensemble answers at a time; bounds memory."""

GAUSSIAN = "gaussian/"
"""Prefix of the entries of an update that hold Gaussians: "gaussian/<label>/<part>"."""

ALL = -1
"""The label of a Gaussian of all classes together."""


@dataclass(frozen=True)
class Sketches:
    """Settings of the Gaussians and of the net that learns from them.

    Args:
        rank: most principal directions of a class, from 1.
        minimum: fewest examples of a class for which a device sends a Gaussian, from 2.
        draws: drawn examples, shared among classes by counts of labels, from 1.
        hard: share of the label in a draw's target, from 0 to 1; the ensemble's answer has the rest.
        epochs: of the net's training, by Adam with a cosine schedule, from 1.
        batch: draws in a minibatch of it, from 1.
        lr: its learning rate, above 0.
    """

    rank: Count = 15
    minimum: Annotated[int, Ge(2)] = 20
    draws: Count = 60_000
    hard: Share = 0.5
    epochs: Count = 10
    batch: Count = 128
    lr: Positive = 0.001

    @property
    def training(self) -> Training:
        return Training("adam", self.lr, schedule="cosine", batch=self.batch, epochs=self.epochs)


@needs_classes("sends a Gaussian of each label")
def gaussian_distillation(
    *,
    nets: Mapping[str, Net],
    training: Training,
    sketches: Sketches,
    weights: Voting = "counts",
    personal: bool = False,
) -> Method:
    """One net is distilled from Gaussian draws of the devices' classes, after one round.

    Args:
        sketches: the Gaussians, and the net that learns from them.
        weights: of the ensemble's votes, as for `ensemble`: "counts", "size", "even" or "entropy".
        personal: each device corrects the answer by its own labels' frequencies and mixes it with its own model's, as
            is best on its validation examples.
    """
    require_quantities("gaussian_distillation", nets)
    local = partial(send_sketch, personal=personal, rank=sketches.rank, minimum=sketches.minimum)
    server = partial(distil, nets=nets, sketches=sketches, weights=weights, personal=personal)
    stages = (Stage(partial(train, training=training), None), Stage(local, server))
    begin = partial(initial_messages, shared_init=training.shared_init)
    built = Method(begin, stages, deploy_distilled, check=partial(check_sizes, minimum=sketches.minimum))
    return with_personal_answers(built) if personal else built


@needs_classes("sends a Gaussian of each label")
def personal_distillation(*, nets: Mapping[str, Net], training: Training, sketches: Sketches) -> Method:
    """`gaussian_distillation` with `personal: true`: a device without validation data runs the common net alone.

    Args:
        sketches: the Gaussians, and the net that learns from them.
    """
    return gaussian_distillation(nets=nets, training=training, sketches=sketches, personal=True)


def check_sizes(sizes: Mapping[str, int], *, minimum: int) -> None:
    """Refuse data of which no device may tell anything."""
    if max(sizes.values()) < minimum:
        raise InputError(f"minimum = {minimum}: no device has as many labelled examples; lower it")


@step_word("sketch")
def send_sketch(
    memory: Params, message: Message, device: Device, step_id: StepId, *, personal: bool, rank: int, minimum: int
) -> tuple[Params, Update]:
    """Send the model, the counts of labels and the Gaussians."""
    memory, update = send_model(memory, message, device, step_id, personal=personal)
    classes = len(update.extra[COUNTS])
    return memory, replace(update, extra=update.extra | sketch(device.data.train, classes, rank, minimum))


def distil(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, nets: Mapping[str, Net],
    sketches: Sketches, weights: Voting, personal: bool,
) -> tuple[Params, Mapping[str, Message], Report]:  # fmt: skip
    """Draw examples, ask the ensemble and train a fresh net of each architecture; one Gaussian is needed."""
    gaussians, counts = {name: read_sketch(update.extra) for name, update in updates.items()}, gather_counts(updates)
    check_sizes(dict(zip(updates, counts.sum(1).tolist(), strict=True)), minimum=sketches.minimum)
    x, y = draw(gaussians, counts, sketches.draws, round_info.generator("draws"))
    voters, votes = elect(updates, weights)
    chunks = torch.split(x, CHUNK)
    parts = [[predict(updates[name].params, nets[name], chunk) for name in voters] for chunk in chunks]
    answers = torch.cat([mix_probabilities(part, to_weights(votes), 1.0, None) for part in parts])
    targets = targets_of(y, answers.exp(), sketches.hard)
    extra = {COUNTS: counts.sum(0)} if personal else {}
    kinds = {key(nets[name]): nets[name] for name in round_info.names}
    messages = {k: Message(learn(net, x, targets, sketches.training, round_info), extra) for k, net in kinds.items()}
    report = report_classes(gaussians, counts, sketches.minimum)
    return server, {name: messages[key(nets[name])] for name in round_info.names}, report


def report_classes(gaussians: Mapping[str, Mapping[int, object]], counts: Tensor, minimum: int) -> Report:
    """Warn of classes of which no device tells."""
    sketched = {label for parts in gaussians.values() for label in parts}
    missing = [f"{{{c}}}" for c in counts.sum(0).nonzero()[:, 0].tolist() if c not in sketched]
    if ALL in sketched or not missing:
        return Report()
    return Report(words={"warning": f"no device has {minimum} examples of class {', '.join(missing)}: not drawn"})


def deploy_distilled(memory: Params, message: Message) -> Model:
    """Run the net that the server trained; before that the device's own, or the initial one."""
    return Model((message.params if COUNTS in message.extra else memory or message.params,))


@dataclass(frozen=True)
class Gaussian:
    """A Gaussian of examples x (*shape): mean (*shape), axes v (q, *shape), variances lambda (q,), residual rho ()."""

    mean: Tensor
    axes: Tensor
    variances: Tensor
    residual: Tensor

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Return draws (N, *shape) float32."""
        e = torch.randn(count, len(self.axes), generator=generator)
        h = torch.randn(count, *self.mean.shape, generator=generator)
        return (
            h.mul_(self.residual.sqrt()).add_(self.mean).add_(torch.tensordot(e * self.variances.sqrt(), self.axes, 1))
        )


def gaussian(x: Tensor, rank: int) -> Gaussian:
    """Return the Gaussian of at least two examples x (N, *shape), all numbers float32.

    The decomposition is that of the smaller of the two products of x - mu with itself, in float64.
    """
    flat = x.flatten(1).double()
    mean = flat.mean(0)
    centred, n, size, q = flat - mean, len(flat), flat.shape[1], min(rank, len(flat) - 1, flat.shape[1])
    wide = n <= size
    values, vectors = torch.linalg.eigh(centred @ centred.T if wide else centred.T @ centred)
    variances, vectors = values[-q:].flip(0).clamp(min=0) / n, vectors[:, -q:].flip(1)
    axes = torch.nn.functional.normalize(centred.T @ vectors if wide else vectors, dim=0).T
    residual = ((centred.square().sum() / n - variances.sum()) / size).clamp(min=0)
    shape = x.shape[1:]
    return Gaussian(mean.reshape(shape).float(), axes.reshape(q, *shape).float(), variances.float(), residual.float())


def sketch(data: Data, classes: int, rank: int, minimum: int) -> Params:
    """Return the entries of the Gaussians that a device sends of its labelled examples; see the module."""
    x, counts = data.inputs(), torch.bincount(data.y, minlength=classes)
    parts = {k: x[data.y == k] for k in range(classes) if counts[k] >= minimum}
    if not parts and len(data) >= minimum:
        parts = {ALL: x}
    return {
        f"{GAUSSIAN}{label}/{name}": tensor
        for label, examples in parts.items()
        for name, tensor in vars(gaussian(examples, rank)).items()
    }


def read_sketch(extra: Params) -> dict[int, Gaussian]:
    """Undo `sketch`: label -> Gaussian."""
    return {int(label): Gaussian(**parts) for label, parts in by_word(GAUSSIAN, extra).items()}


def draw(
    sketches: Mapping[str, Mapping[int, Gaussian]], counts: Tensor, number: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return draws x (N, *shape) float32, not clipped, and their labels y (N,), ALL where not known.

    sketches: device -> label -> Gaussian, at least one. counts: (C, K), examples in the order of the devices.
    """
    gaussians = [(label, gaussian) for parts in sketches.values() for label, gaussian in parts.items()]
    x = torch.empty(number, *gaussians[0][1].mean.shape)
    weights = draw_weights([*map(list, sketches.values())], counts)
    which = torch.multinomial(weights, number, replacement=True, generator=generator)
    for i, (_, gaussian) in enumerate(gaussians):
        drawn = (which == i).nonzero()[:, 0]
        x[drawn] = gaussian.draw(len(drawn), generator)
    return x, torch.tensor([label for label, _ in gaussians])[which]


def draw_weights(labels: Sequence[Sequence[int]], counts: Tensor) -> Tensor:
    r"""Return how often each Gaussian is drawn, up to a factor, (G,) float64.

    Class c has N_c draws, the examples that devices have of it, of which device i has n_ic / sum_j n_jc, over the
    devices j that tell of c. A device that tells of all its examples together has as many draws, of unknown labels.

    labels: of each device's Gaussians. counts: (C, K), n.
    """
    n, whole = counts.double(), torch.tensor([ALL in own for own in labels])
    tells = torch.zeros_like(n)
    for row, own in zip(tells, labels, strict=True):
        row[[label for label in own if label != ALL]] = 1
    of_class = n[~whole].sum(0) * n * tells / (n * tells).sum(0)
    return torch.stack([
        of_class[i, label] if label != ALL else n[i].sum() for i, own in enumerate(labels) for label in own
    ])  # fmt: skip


def targets_of(y: Tensor, ensemble: Tensor, hard: float) -> Tensor:
    """Return targets (N, K): hard onehot(y) + (1 - hard) ensemble, the ensemble alone where y is ALL.

    ensemble: probabilities (N, K).
    """
    mixed = ensemble.lerp(one_hot(y.clamp(min=0), ensemble.shape[1]).to(ensemble.dtype), hard)
    return torch.where((y == ALL)[:, None], ensemble, mixed)


def soft_target_grad(targets: Tensor) -> LogitGrad:
    """Return the gradient of cross-entropy against soft targets (N, K); the "labels" of minibatches are their rows."""

    def logit_grad(logits: Tensor, rows: Tensor) -> Tensor:
        return logits.softmax(1).sub_(targets.index_select(0, rows))

    return logit_grad


def learn(net: Net, x: Tensor, targets: Tensor, training: Training, round_info: RoundInfo) -> Params:
    """Train a fresh net on examples x (N, *shape) float32 with soft targets (N, K)."""
    flat = flatten_net(net, nets.init(net, round_info.generator("init")))
    with nets.use_generator(round_info.generator("noise")):
        batches = minibatches(flat, len(x), training, round_info.generator("batches"))
        step = plain_step(flat, training, len(batches), logit_grad=soft_target_grad(targets))
        descend(Data(x, torch.arange(len(x))), batches, step)
    return flat.params()
