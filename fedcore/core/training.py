"""Training one device's model: minibatch descent on a net whose parameters are laid out as one vector.

`train` is a stage's local step. Methods that need another loss or corrected gradients compose the same pieces:
`starting_params`, `flatten_net`, `fit`, or below it `minibatches`, `gradient_step`, `optimiser_step`, `descend`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

import torch
from annotated_types import Ge, Lt
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from fedcore import nets
from fedcore.core.losses import LOSSES, PARTS, Batch, OwnLoss, find_loss, loss_name, parts_of, require_scalar
from fedcore.core.precision import Precision, computing_in
from fedcore.nets.copies import load, template
from fedcore.nets.inputs import forward_features, require_features
from fedcore.nets.mlp import ManualGradients
from fedcore.types import (
    Amount,
    Count,
    Data,
    Device,
    Fraction,
    InputError,
    Message,
    Net,
    Params,
    Positive,
    StepId,
    Update,
)

Step: TypeAlias = Callable[[Tensor, Tensor], None]
"""A training step on one minibatch: inputs (B, *shape) float32 and labels (B,)."""

Pieces: TypeAlias = Sequence[tuple[slice, float]]
"""Consecutive parts of the vector, and the factor of the learning rate in each."""

Momentum: TypeAlias = Annotated[float, Ge(0), Lt(1)]

WHOLE: Pieces = ((slice(None), 1.0),)

LogitGrad: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Logits (B, K) and labels (B,) -> the derivative of the loss, summed over them, at the logits (B, K)."""

MOMENTS = "moments/"
"""Prefix of the leaves in a device's memory that hold its optimiser's moments."""

ALIGNMENT = 16
"""Every leaf starts at a multiple of this many numbers (a cache line): matrix products run 4 % faster."""

SCORING_BATCH = 1024
"""Examples per batch of predictions; bounds memory."""

IMAGE_BATCH = 32
"""The same for convolutional nets, whose activations should fit into the cache and stay below 32 MB, above which each
allocation is fresh memory: McMahan's CNN takes three fifths of the time of 1024, ResNet-20 a third."""

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
    "linear": lambda done: 1 - done,
}
"""Factor of the learning rate, by the share of this call's steps that are done."""


@dataclass(frozen=True)
class Training:
    """Settings of a device's training.

    Args:
        optimiser: "sgd", "adam" or "adamw" (both with beta .9 and .999, eps 1e-8).
        lr: learning rate, at the start of the first round.
        momentum: of sgd, from 0 to below 1.
        weight_decay: weight of half the squared norm of the parameters in the loss; of adamw, share of the parameters
            that a step takes away, times the learning rate.
        schedule: of the learning rate over the steps of one round.
        batch: examples per step; the last batch of an epoch may be smaller.
        epochs: passes over a device's examples in each round; each pass has its own order.
        steps: minibatches of a round on every device, however many examples it has, in place of `epochs`.
        loss: "ce" (cross-entropy), "fedasa_eq12" (FedASA's as printed), "fedasa_table3" (as its Table III has it),
            "softmax_twice" (cross-entropy of a net that ends in a softmax), or your own function of a `Batch`, in
            the pipeline by its place, "package.module:function" (docs/losses.md).
        class_weights: "balanced": an example of class k counts n / (K n_k), for a device's n training examples, the n_k
            of class k among them and the K classes that it has (scikit-learn's rule); a batch's loss is the weighted
            mean, as PyTorch's CrossEntropyLoss(weight) has it. "none": all count alike. For loss "ce" alone.
        precision: of the products in a net's layers: "float32"; "tf32": 10 bits of the mantissa, on NVIDIA's
            accelerators; "bfloat16": 7 bits, there and on processors with AVX-512 BF16 or AMX. Parameters, the sums of
            products, the optimiser and scores stay float32. Raises InputError where the hardware has none.
        optimiser_state: "fresh": each round starts a new optimiser; "keep": a device keeps its moments in its memory
            from round to round (not in a stage without `combine`, where the model takes the place of the memory).
        shared_init: all devices start from one initial model, which the server draws and sends; otherwise each device
            draws its own. A method reads it when it is built; no step does.
        nesterov: whether the momentum of sgd looks ahead.
        clip: greatest norm of a step's gradient, above 0; a longer one is shortened to it. None: any.
        round_decay: factor of the learning rate from one round of a stage to the next, above 0, at most 1.
        patience: a round of local training ends early once the cross-entropy of the device's own validation examples
            has not fallen for so many epochs, from 1 (Prechelt 1998); the model, and its optimiser's moments, are then
            those after the best epoch. None: all epochs; so do devices without validation examples.
    """

    optimiser: Literal["adam", "adamw", "sgd"] = "adam"
    lr: Positive = 0.01
    momentum: Momentum = 0.0
    weight_decay: Amount = 0.0
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    batch: Count = 16
    epochs: Count = 20
    steps: Count | None = None
    loss: str | OwnLoss = "ce"
    optimiser_state: Literal["fresh", "keep"] = "fresh"
    shared_init: bool = field(default=False, metadata={"digest": False})
    nesterov: bool = False
    clip: Positive | None = None
    round_decay: Fraction = 1.0
    class_weights: Literal["none", "balanced"] = "none"
    precision: Precision = "float32"
    patience: Count | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "loss", find_loss(self.loss))
        if self.nesterov and not (self.optimiser == "sgd" and self.momentum):
            raise InputError("training.nesterov = true: needs training.optimiser = sgd and a training.momentum above 0")

        if self.patience is not None and self.steps is not None:
            raise InputError(
                f"training.patience = {self.patience}: counts epochs, which training.steps = {self.steps} replaces; "
                "leave one of them out"
            )
        if self.class_weights != "none" and self.loss != "ce":
            raise InputError(
                f"training.class_weights = {self.class_weights!r}: is for training.loss = 'ce', not "
                f"{loss_name(self.loss)!r}"
            )

    def settings(self) -> dict[str, Any]:
        """Return the settings by name, as a file has them: of a loss of one's own its place."""
        return {**vars(self), "loss": loss_name(self.loss)}


@dataclass(frozen=True)
class FlatNet:
    """A net whose trainable parameters are views of one vector and whose gradients are views of another.

    vector, gradient: (P,), the parameters one after the other (padded with zeros, see ALIGNMENT). leaves, slopes: views
    of the two by name. module: a module of the net with these parameters and its own copy of the buffers.
    """

    net: Net
    module: nn.Module
    vector: Tensor
    gradient: Tensor
    leaves: Params
    gradients: Params

    def params(self) -> Params:
        """Return a copy of all leaves."""
        return nets.leaves(self.module)


def train(
    memory: Params,
    message: Message,
    device: Device,
    step_id: StepId,
    *,
    training: Training,
    loss: OwnLoss | None = None,
) -> tuple[Params, Update]:
    """Train the device's model on its examples and send the whole model.

    It starts from the leaves in the device's memory, then from those in the message; missing leaves are initialised.

    loss: your own, in place of `training.loss`, see :class:`fedcore.core.losses.Batch`.
    """
    flat = flatten_net(device.net, starting_params(memory, message, device, step_id))
    chosen = training if loss is None else replace(training, loss=loss)
    moments = fit(flat, device, step_id, chosen, memory, message=message)
    params = flat.params()
    score, size = accuracy(params, device.net, device.data.val), len(device.data.train)
    update = Update(params, size=size, score=score, steps=count_steps(flat, size, training))
    return ({**memory, **moments} if moments else memory), update


def fit(
    flat: FlatNet,
    device: Device,
    step_id: StepId,
    training: Training,
    memory: Params,
    *,
    message: Message | None = None,
    prefix: str = MOMENTS,
    grad_hook: Callable[[], None] | None = None,
    pieces: Pieces = WHOLE,
    logit_grad: LogitGrad | None = None,
) -> Params:
    """Train a model on the device's examples; returns the optimiser's moments if they are to be kept, and loss's parts.

    memory: the device's, whose names that begin with `prefix` hold the moments. message: what the server sent, for a
    loss of one's own. grad_hook, pieces, logit_grad: see `plain_step`.
    """
    batch_of = partial(Batch, message=message or Message(), memory=memory, round=step_id.round)
    training = at_round(training, step_id.round)
    kept = training.optimiser_state == "keep"
    mine = {name: leaf for name, leaf in memory.items() if kept and name.startswith(prefix)}
    moments = {name.removeprefix(prefix): leaf.clone() for name, leaf in mine.items()}
    parts = own_parts(flat, device, step_id, training, memory, message or Message(), prefix)
    if parts is not None:
        batch_of = partial(batch_of, parts=parts.module)
    descent = Descent(
        flat,
        training,
        device.data.train,
        minibatches(flat, len(device.data.train), training, step_id.generator("batches")),
        moments,
        step_id.generator("noise"),
        grad_hook=grad_hook,
        pieces=pieces,
        logit_grad=logit_grad or balanced_grad(training, device.data.train),
        batch_of=batch_of,
        parts=parts,
        held_out=device.data.val,
    )
    DESCEND.get()(descent)
    known = {f"{prefix}{name}": leaf for name, leaf in moments.items()} if kept else {}
    return known if parts is None else known | {parts_prefix(prefix) + name: x for name, x in parts.params().items()}


def own_parts(
    flat: FlatNet,
    device: Device,
    step_id: StepId,
    training: Training,
    memory: Params,
    message: Message,
    prefix: str,
) -> FlatNet | None:
    """Return the trainable parts of a loss of one's own, see :func:`fedcore.core.losses.with_parts`; None without."""
    if (make := parts_of(training.loss)) is None:
        return None
    net = Net(partial(make, flat.net))
    fresh = nets.init(net, replace(step_id, stage=0, round=0).generator("parts"))
    known = {**memory, **message.extra}
    return flatten_net(net, {name: known.get(parts_prefix(prefix) + name, leaf) for name, leaf in fresh.items()})


def parts_prefix(prefix: str) -> str:
    """Return the prefix of a loss's parts in memory, where that of the moments is `prefix`."""
    return PARTS + prefix.removeprefix(MOMENTS)


def both(step: Step, parts: FlatNet, training: Training, steps: int, moments: Params) -> Step:
    """Return a step that trains a loss's parts as well, at the same rates; a gradient's norm is clipped apart."""
    own = {name.removeprefix(PARTS): leaf for name, leaf in moments.items() if name.startswith(PARTS)}
    update, rates = optimiser_step(parts, training, own), iter(learning_rates(training, steps))
    moments |= {f"{PARTS}{name}": leaf for name, leaf in own.items()}

    def step_both(x: Tensor, y: Tensor) -> None:
        parts.gradient.zero_()
        step(x, y)
        if training.clip is not None:
            clip_norm(parts.gradient, training.clip)
        update(next(rates))

    return step_both


@dataclass(frozen=True)
class Descent:
    """One device's descent over the minibatches of a round, not yet begun.

    moments: the optimiser's, updated in place. noise: for nets that draw random numbers. grad_hook, pieces, logit_grad,
    batch_of: see `plain_step`. parts: those of a loss of one's own. held_out: the device's validation examples.
    """

    flat: FlatNet
    training: Training
    data: Data
    batches: Sequence[Tensor]
    moments: Params
    noise: torch.Generator
    grad_hook: Callable[[], None] | None = None
    pieces: Pieces = WHOLE
    logit_grad: LogitGrad | None = None
    batch_of: Callable[..., Batch] = Batch
    parts: FlatNet | None = None
    held_out: Data = field(default_factory=lambda: Data(torch.empty(0), torch.empty(0, dtype=torch.int64)))

    def run(self) -> None:
        """Take all steps, in place."""
        with nets.use_generator(self.noise):
            step = plain_step(
                self.flat,
                self.training,
                len(self.batches),
                self.moments,
                grad_hook=self.grad_hook,
                pieces=self.pieces,
                logit_grad=self.logit_grad,
                batch_of=self.batch_of,
            )
            if self.parts is not None:
                step = both(step, self.parts, self.training, len(self.batches), self.moments)
            if self.stops_early:
                descend_until_best(self, step)
            else:
                descend(self.data, self.batches, step)

    @property
    def stops_early(self) -> bool:
        """Whether it ends when the loss on held-out examples does not fall any more."""
        return self.training.patience is not None and len(self.batches) > 0 and len(self.held_out) > 0


DESCEND: ContextVar[Callable[[Descent], None]] = ContextVar("descend", default=Descent.run)
"""Runs what `fit` is to do: at once, or with other devices' (:mod:`fedcore.core.together`)."""


def at_round(training: Training, number: int) -> Training:
    """Return the settings in a round of a stage, from 0: its learning rate."""
    return training if training.round_decay == 1 else replace(training, lr=training.lr * training.round_decay**number)


def starting_params(memory: Params, message: Message, device: Device, step_id: StepId) -> Params:
    """Return the leaves to train from. A device's initial ones depend on the seed and its name alone."""
    known = {**message.params, **memory}
    names = nets.shapes(device.net)
    if any(name not in known for name in names):
        known = {**nets.init(device.net, replace(step_id, stage=0, round=0).generator("init")), **known}
    return {name: known[name] for name in names}


def flatten_net(net: Net, params: Params) -> FlatNet:
    """Copy `params` into one vector."""
    like = template(net)
    names = [name for name, parameter in like.named_parameters() if parameter.requires_grad]
    sizes = [math.ceil(params[name].numel() / ALIGNMENT) * ALIGNMENT for name in names]
    vector, gradient = torch.zeros(sum(sizes)), torch.zeros(sum(sizes))
    leaves, gradients = (
        {name: view_of(part, params[name].shape, _channels_last(like)) for name, part in zip(names, parts, strict=True)}
        for parts in (torch.split(vector, sizes), torch.split(gradient, sizes))
    )
    for name, leaf in leaves.items():
        leaf.copy_(params[name])
    module = load(net, {name: leaves[name] if name in leaves else leaf.clone() for name, leaf in params.items()})
    for name, parameter in module.named_parameters():
        parameter.grad = gradients.get(name)
    for layer in module.modules():
        layer.training = not nets.is_frozen(layer)
    return FlatNet(net, module, vector, gradient, leaves, gradients)


def to_vector(flat: FlatNet, numbers: Params) -> Tensor:
    """Return leaves as one vector in the layout of `flat.vector`, (P,); zero where a leaf is missing."""
    vector = torch.zeros_like(flat.vector)
    for name, view in _views(flat, vector).items():
        if name in numbers:
            view.copy_(numbers[name])
    return vector


def to_leaves(flat: FlatNet, vector: Tensor) -> Params:
    """Return a vector (P,) in the layout of `flat.vector` as leaves, copied."""
    views = _views(flat, vector).items()
    return {name: view.clone(memory_format=torch.contiguous_format) for name, view in views}


def _views(flat: FlatNet, vector: Tensor) -> Params:
    return {
        name: vector.as_strided(leaf.shape, leaf.stride(), leaf.storage_offset()) for name, leaf in flat.leaves.items()
    }


def view_of(part: Tensor, shape: Sequence[int], channels_last: bool) -> Tensor:
    """Return a part of the vector as a view of that shape.

    channels_last: store a convolution's weights (m, n, h, w) as (m, h, w, n). Activations follow, and oneDNN is faster:
    a step of McMahan's CNN takes a quarter less time, one of MobileNetV2 two fifths less, one of VGG the same time.
    """
    part = part[: math.prod(shape)]
    if channels_last and len(shape) == 4:
        maps, channels, height, width = shape
        return part.view(maps, height, width, channels).permute(0, 3, 1, 2)
    return part.view(shape)


def _channels_last(module: nn.Module) -> bool:
    """Tell whether a module accepts channels-last tensors; a module declares it, as `x.view(B, -1)` would fail."""
    return getattr(module, "channels_last", False)


def minibatches(flat: FlatNet, count: int, training: Training, generator: torch.Generator) -> list[Tensor]:
    """Draw all of a round's minibatches before the first step: S tensors of at most `batch` indices below `count`.

    If the net has buffers, a last batch of one example is left out, as it has no batch statistics.
    """
    least = least_batch(flat)
    usable = count // training.batch * (training.batch >= least) + (count % training.batch >= least)
    epochs = training.epochs if training.steps is None else math.ceil(training.steps / max(usable, 1))
    orders = [torch.randperm(count, generator=generator) for _ in range(epochs)]
    batches = [batch for order in orders for batch in torch.split(order, training.batch) if len(batch) >= least]
    return batches[: training.steps]


def count_steps(flat: FlatNet, count: int, training: Training) -> int:
    """Return the number of minibatches that `minibatches` draws, S."""
    least = least_batch(flat)
    usable = count // training.batch * (training.batch >= least) + (count % training.batch >= least)
    return usable * training.epochs if training.steps is None else training.steps * (usable > 0)


def least_batch(flat: FlatNet) -> int:
    """Return the fewest examples of a minibatch."""
    return 2 if any(True for _ in flat.module.buffers()) else 1


def descend(data: Data, batches: Sequence[Tensor], step: Step) -> None:
    """Take a step on each minibatch."""
    x, y = data.inputs(), data.y
    for index in batches:
        step(x.index_select(0, index), y.index_select(0, index))


def descend_until_best(descent: Descent, step: Step) -> None:
    """Take a step on each minibatch; keep the model after the epoch with the least loss on held-out examples.

    The optimiser's moments are kept likewise. After `training.patience` epochs without a lower loss no further one
    follows.
    """
    flat, batches, training = descent.flat, descent.batches, descent.training
    epoch = len(batches) // training.epochs
    state = [flat.vector, *flat.module.buffers(), *descent.moments.values()]
    if descent.parts is not None:
        state += [descent.parts.vector, *descent.parts.module.buffers()]
    best, kept, waited = math.inf, [leaf.clone() for leaf in state], 0
    for first in range(0, len(batches), epoch):
        descend(descent.data, batches[first : first + epoch], step)
        loss = validation_loss(flat, descent.held_out)
        if not loss < best:
            waited += 1
        else:
            best, kept, waited = loss, [leaf.clone() for leaf in state], 0
        if waited == training.patience:
            break
    if best < math.inf:
        for leaf, value in zip(state, kept, strict=True):
            leaf.copy_(value)


def validation_loss(flat: FlatNet, data: Data) -> float:
    """Return the mean cross-entropy of a model, nats; its own batch statistics stay as they are."""
    return cross_entropy(predict(flat.params(), flat.net, data.x, SCORING_BATCH), data.y).item()


def refuse_patience(name: str, training: Training) -> None:
    """Refuse early stopping where a method counts on all steps of a round."""
    if training.patience is not None:
        raise InputError(
            f"training.patience = {training.patience}: {name} needs all steps of a round; leave it out, or set "
            f"{name}.training.patience=null"
        )


def refuse_parts(name: str, training: Training) -> None:
    """Refuse a loss with trainable parts of its own where a method does not train them."""
    if parts_of(training.loss) is not None:
        raise InputError(
            f"training.loss = {loss_name(training.loss)}: {name} does not train a loss's own parts; "
            "use a loss without them"
        )


def plain_step(
    flat: FlatNet,
    training: Training,
    steps: int,
    moments: Params | None = None,
    *,
    grad_hook: Callable[[], None] | None = None,
    pieces: Pieces = WHOLE,
    logit_grad: LogitGrad | None = None,
    batch_of: Callable[..., Batch] = Batch,
) -> Step:
    """Return the step that minimises the mean loss.

    moments: the optimiser's, updated by each step; an empty one is filled. grad_hook: changes `flat.gradient` before
    the optimiser uses it. pieces: parts of the vector with their own learning rates. logit_grad: of a loss that
    replaces `training.loss`. batch_of: makes the `Batch` for a loss of one's own.
    """
    rates = iter(learning_rates(training, steps))
    known = logit_grad or (cross_entropy_grad if training.loss == "ce" else None)
    bare = training.optimiser == "sgd" and training.momentum == 0 and grad_hook is None and len(pieces) == 1
    bare = bare and training.clip is None and training.precision == "float32"
    if isinstance(flat.module, ManualGradients) and bare and known is not None:
        module, at_logits = flat.module, known

        def fused(x: Tensor, y: Tensor) -> None:
            rate = next(rates)
            keep = 1 - rate * training.weight_decay
            manual_step(module, flat.leaves, x, y, flat.leaves, keep=keep, scale=-rate, logit_grad=at_logits)

        return fused
    gradient = gradient_step(flat, training.loss, logit_grad, batch_of, training.precision)
    update = optimiser_step(flat, training, moments, pieces)

    def step(x: Tensor, y: Tensor) -> None:
        gradient(x, y)
        if grad_hook is not None:
            grad_hook()
        if training.clip is not None:
            clip_norm(flat.gradient, training.clip)
        update(next(rates))

    return step


def clip_norm(gradient: Tensor, norm: float) -> None:
    """Shorten a gradient to a norm, in place."""
    gradient.mul_((norm / (gradient.norm() + 1e-6)).clamp(max=1))


def proximal_grad_hook(flat: FlatNet, anchor: Tensor, weight: float) -> Callable[[], None] | None:
    """Return a function that adds the gradient of weight/2 ||w - anchor||^2 to `flat.gradient`; None for weight 0.

    anchor: (P,), in the layout of `flat.vector`.
    """
    if weight == 0:
        return None
    away = torch.empty_like(anchor)

    def grad_hook() -> None:
        flat.gradient.add_(torch.sub(flat.vector, anchor, out=away), alpha=weight)

    return grad_hook


def gradient_step(
    flat: FlatNet,
    loss: str | OwnLoss = "ce",
    logit_grad: LogitGrad | None = None,
    batch_of: Callable[..., Batch] = Batch,
    precision: Precision = "float32",
) -> Step:
    """Return a step that writes the gradient of the mean loss to `flat.gradient`.

    logit_grad: of a loss to use instead. batch_of: makes the `Batch` for a loss of one's own. precision: as in
    `Training`.
    """
    module = flat.module
    known = logit_grad or (cross_entropy_grad if loss == "ce" else None)
    if parts_of(loss) is not None and "parts" not in getattr(batch_of, "keywords", {}):
        raise InputError(f"training.loss: {loss_name(loss)} has trainable parts, which this method does not train")
    if isinstance(module, ManualGradients) and known is not None and precision == "float32":
        return lambda x, y: manual_step(
            module, flat.leaves, x, y, flat.gradients, keep=0.0, scale=1.0, logit_grad=known
        )

    computing = computing_in(precision, flat.vector.device.type)

    def gradient(x: Tensor, y: Tensor) -> None:
        flat.gradient.zero_()
        with computing():
            if logit_grad is not None:
                logits = module(x).float()
                torch.autograd.backward(logits, logit_grad(logits.detach(), y) / len(y))
            elif isinstance(loss, str):
                torch.autograd.backward(LOSSES[loss](module(x).float(), y))
            else:
                last_input, logits = forward_features(module, x)
                value = loss(batch_of(flat.net, module, x, y, logits.float(), last_input))
                torch.autograd.backward(require_scalar(loss, value))

    return gradient


def cross_entropy_grad(logits: Tensor, y: Tensor) -> Tensor:
    """Return softmax(logits) - onehot(y), the gradient of cross-entropy at the logits."""
    logit_grad = logits.softmax(1)
    return logit_grad.scatter_add_(1, y[:, None], logit_grad.new_full((len(y), 1), -1.0))


def class_weights(y: Tensor) -> Tensor:
    """Return n / (K n_k) for each class k up to the last one in y, (K,) float32; 0 for a class that y lacks.

    y: (n,). K counts the classes in y.
    """
    counts = torch.bincount(y)
    weights = len(y) / ((counts > 0).sum() * counts).double()
    return weights.where(counts > 0, 0.0).float()


def balanced_grad(training: Training, data: Data) -> LogitGrad | None:
    """Return the gradient of cross-entropy weighted by the classes of `data`; None where all examples count alike.

    It is that of sum_i w_i CE_i / sum_i w_i over a batch, times its size B.
    """
    if training.class_weights == "none":
        return None
    weights = class_weights(data.y)

    def logit_grad(logits: Tensor, y: Tensor) -> Tensor:
        share = weights[y] * (len(y) / weights[y].sum())
        return cross_entropy_grad(logits, y).mul_(share[:, None])

    return logit_grad


def manual_step(
    module: ManualGradients,
    leaves: Params,
    x: Tensor,
    y: Tensor,
    into: Params,
    *,
    keep: float,
    scale: float,
    logit_grad: LogitGrad,
) -> None:
    """Compute into <- keep * into + scale * (gradient of the mean loss), without autograd.

    logit_grad: of the summed loss; the mean's 1/B is part of the scale.
    """
    with torch.no_grad():
        activations = module.activations(leaves, x)
        module.backward(leaves, activations, logit_grad(activations[-1], y), into, keep=keep, scale=scale / len(y))


def learning_rates(training: Training, steps: int) -> list[float]:
    """Return the learning rate of each step, (S,)."""
    return [training.lr * SCHEDULES[training.schedule](step / steps) for step in range(steps)]


def optimiser_step(
    flat: FlatNet, training: Training, moments: Params | None = None, pieces: Pieces = WHOLE
) -> Callable[[float], None]:
    """Return a function that updates `flat.vector` from `flat.gradient` at a given learning rate.

    moments: the optimiser's, read and updated in place; None: new ones.
    """
    return OPTIMISERS[training.optimiser](flat, training, {} if moments is None else moments, pieces)


def _sgd(flat: FlatNet, training: Training, moments: Params, pieces: Pieces) -> Callable[[float], None]:
    velocity = moments.setdefault("velocity", torch.zeros_like(flat.vector)) if training.momentum else None
    parts = [
        ([flat.vector[piece]], [flat.gradient[piece]], [None if velocity is None else velocity[piece]], factor)
        for piece, factor in pieces
    ]

    def update(rate: float) -> None:
        for vector, gradient, buffer, factor in parts:
            sgd(
                vector, gradient, buffer, fused=True, lr=rate * factor, momentum=training.momentum,
                weight_decay=training.weight_decay, dampening=0.0, nesterov=training.nesterov, maximize=False,
            )  # fmt: skip

    return update


def _adam(flat: FlatNet, training: Training, moments: Params, pieces: Pieces) -> Callable[[float], None]:
    first, second = (moments.setdefault(name, torch.zeros_like(flat.vector)) for name in ("first", "second"))
    steps = moments.setdefault("steps", torch.zeros(()))
    counts = [steps] + [steps.clone() for _ in pieces[1:]]  # a call counts its own
    parts = [
        ([flat.vector[piece]], [flat.gradient[piece]], [first[piece]], [second[piece]], [count], factor)
        for (piece, factor), count in zip(pieces, counts, strict=True)
    ]

    def update(rate: float) -> None:
        for vector, gradient, mean, square, count, factor in parts:
            adam(
                vector, gradient, mean, square, [], count, fused=True, lr=rate * factor, beta1=0.9, beta2=0.999,
                eps=1e-8, weight_decay=training.weight_decay, amsgrad=False, maximize=False,
                decoupled_weight_decay=training.optimiser == "adamw",
            )  # fmt: skip

    return update


OPTIMISERS = {"sgd": _sgd, "adam": _adam, "adamw": _adam}
"""PyTorch's fused kernels as functions: importing its optimiser classes takes a second in each process."""


def predict(params: Params, net: Net, x: Tensor, batch: int) -> Tensor:
    """Return the logits (N, K) of examples (N, *shape), float32 or uint8, in evaluation mode.

    batch: examples at a time; at most IMAGE_BATCH for a convolutional net.
    """
    module = load(net, params).eval()
    if _channels_last(module):
        module.to(memory_format=torch.channels_last)
    if any(leaf.dim() > 2 for leaf in params.values()):
        batch = min(batch, IMAGE_BATCH)
    examples = Data(x, torch.empty(len(x)))
    with torch.no_grad():
        return torch.cat([module(examples.inputs(slice(i, i + batch))) for i in range(0, max(len(x), 1), batch)])


def features(params: Params, net: Net, x: Tensor) -> Tensor:
    """Return the input of the last layer, (N, d), of examples (N, *shape), float32 or uint8, in evaluation mode.

    Raises InputError if the net does not call its last layer as a module.
    """
    module, examples = load(net, params).eval(), Data(x, torch.empty(len(x)))
    parts = [examples.inputs(slice(i, i + IMAGE_BATCH)) for i in range(0, max(len(x), 1), IMAGE_BATCH)]
    with torch.no_grad():
        return torch.cat([require_features(*forward_features(module, part))[0] for part in parts])


def require_cross_entropy(name: str, training: Training) -> None:
    """Refuse another loss, and class weights, where a method's own loss contains cross-entropy."""
    if training.loss != "ce":
        raise InputError(
            f"training.loss = {loss_name(training.loss)}: {name} has its own loss, which contains cross-entropy; use ce"
        )
    if training.class_weights != "none":
        raise InputError(
            f"training.class_weights = {training.class_weights!r}: {name} has its own loss, without class weights; "
            f"leave it out, or set {name}.training.class_weights=none"
        )


def accuracy(params: Params, net: Net, data: Data) -> float:
    """Return the fraction of examples that the model classifies correctly, nan without examples."""
    if len(data) == 0:
        return math.nan
    hits = predict(params, net, data.x, SCORING_BATCH).argmax(1) == data.y
    return hits.double().mean().item()
