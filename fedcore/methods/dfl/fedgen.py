"""FedGen (Zhu, Hong and Zhou 2021, Algorithm 1): the server learns to make features that devices' classifiers know.

The generator G makes features z of the layer before the last one from a label and noise. The server trains it on the
devices' last layers, the devices add examples that it made to the training of theirs:

    min_G      E_y,eps sum_k a_ky CE(h_k(G(y, eps)), y) + diversity         (4), a_ky: device k's share of label y
    min_theta  CE of the device's examples + alpha E_y,eps CE(h(G(y, eps)), y)                                    (5)

G travels down with the model and the labels' frequencies p(y); devices send, beside the model, how many examples of
each label they have. It makes no pictures: whatever stands before the last layer is not touched by generated examples.

(4) prints CE of the softmax of the devices' mean logits. With a linear last layer that is the CE of their mean, so that
the generator would see one classifier, the average; the authors' code (github.com/zhuangdizhu/FedGen) weights the
devices' own losses by their shares of the label, as here. From their code also: the network of G, its optimiser, which
lasts from round to round, the diversity loss, no generated examples in round 1, alpha and the generator's learning rate
falling by a factor per round.

Departures. Noise is Gaussian, as in the paper (their code draws from [0, 1]). Labels are drawn by p(y) of those who
took part, as in Algorithm 1 (their code: evenly from the labels that occur). Left out of their code, in no formula: the
KL loss between a device's outputs for examples and for generated ones (their generative_beta), the end of generated
examples after 20 epochs. Models are averaged by examples, as FedAvg's.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from fedcore.builders import needs_classes, training_defaults
from fedcore.core.aggregation import Course, by_size, mean
from fedcore.core.messages import initial_messages, received_model, to_everyone
from fedcore.core.training import (
    FlatNet,
    Training,
    cross_entropy_grad,
    fit,
    flatten_net,
    optimiser_step,
    predict,
    starting_params,
)
from fedcore.errors import InputError
from fedcore.methods.dfl.soft_targets import report_series
from fedcore.nets import init, require_equal, shapes
from fedcore.nets.copies import load
from fedcore.nets.parts import layers
from fedcore.types.federation import Data, Device, Net, Params, Public, add_prefix, strip_prefix
from fedcore.types.method import Message, Method, Report, RoundInfo, Stage, StepId, Update, generator
from fedcore.types.ranges import Amount, Count, Fraction, Positive

GENERATOR, MOMENTS, LABELS = "generator/", "moments/", "labels"
"""Prefixes of the generator's parameters and of its optimiser's moments; the entry of labels' counts or frequencies."""


@dataclass(frozen=True)
class FeatureGenerator:
    """The generator of features: labels and `noise` random numbers -> z (B, d), by `net`.

    weight, bias: the names of the parameters (K, d) and (K,) of the classifier; bias None: it has none.
    """

    net: Net
    classes: int
    noise: int
    weight: str
    bias: str | None

    def draw(self, frequencies: Tensor, count: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return labels (B,) and noise (B, n)."""
        y = torch.multinomial(frequencies, count, replacement=True, generator=draws)
        return y, torch.randn(count, self.noise, generator=draws)

    def make(self, module: nn.Module, y: Tensor, noise: Tensor) -> Tensor:
        """Return features (B, d)."""
        features: Tensor = module(torch.cat([noise, one_hot(y, self.classes).float()], 1))
        return features


@needs_classes("draws examples by label")
@training_defaults(shared_init=True)
def fedgen(
    *,
    nets: Mapping[str, Net],
    training: Training,
    course: Course,
    alpha: Amount = 10.0,
    decay: Fraction = 0.98,
    generated: Count = 32,
    noise: Count = 32,
    hidden: Count = 256,
    steps: Count = 50,
    batch: Count = 32,
    lr: Positive = 3e-4,
    weight_decay: Amount = 0.01,
    diversity: Amount = 1.0,
) -> Method:
    """FedGen (Zhu et al. 2021): the server trains a generator of features; defaults are the authors' for MNIST.

    Args:
        alpha: weight of the generated examples' loss, for as many of them as a minibatch has, from 0; 0 is fedavg.
        decay: factor of alpha and of the generator's learning rate per round, above 0, at most 1.
        generated: generated examples per step of a device; their loss is weighted by generated / training.batch.
        noise: random numbers that the generator gets, from 1 (their code for CIFAR: 64).
        hidden: hidden units of the generator, from 1 (their code for CIFAR: 512).
        steps: minibatches of the generator's training in a round, by Adam, from 1.
        batch: labels in each of them, from 1.
        lr: learning rate of the generator, above 0.
        weight_decay: of the generator's training, from 0.
        diversity: weight of exp(-mean over pairs of |z - z'| |eps - eps'|^2), means over their numbers, from 0.

    Raises:
        InputError: for a net whose last layer is not linear.
    """
    common = require_equal(nets)
    weight, bias = classifier(common)
    classes, features = shapes(common)[weight]
    net = Net(partial(network, classes=classes, noise=noise, hidden=hidden, features=features), copied=True)
    maker = FeatureGenerator(net, classes, noise, weight, bias)
    adam = Training("adam", lr, 0.0, weight_decay, "constant", batch, 1)
    train_maker = partial(train_generator, maker=maker, training=adam, steps=steps, decay=decay, diversity=diversity)
    local = partial(train_with_generated, training=training, maker=maker, alpha=alpha, decay=decay, generated=generated)
    combine = partial(distil_generator, maker=maker, train_maker=train_maker)
    stage = Stage(local, combine, course.rounds, course.fraction)
    begin = partial(begin_with_generator, shared_init=training.shared_init, maker=maker)
    return Method(begin, (stage,), received_model)


def network(classes: int, noise: int, hidden: int, features: int) -> nn.Module:
    """Build G: (B, noise + K) -> (B, d)."""
    return nn.Sequential(
        nn.Linear(noise + classes, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, features)
    )


def classifier(net: Net) -> tuple[str, str | None]:
    """Return the names of the last layer's weights (K, d) and bias (K,); refuses a net that ends in another layer."""
    weight, *rest = [*layers(net).values()][-1]
    if len(shapes(net)[weight]) != 2 or len(rest) > 1 or any(shapes(net)[b] != shapes(net)[weight][:1] for b in rest):
        raise InputError("net: fedgen needs a net whose last layer is linear, this one's is not")
    return weight, rest[0] if rest else None


def begin_with_generator(
    public: Public, seed: int, *, shared_init: bool, maker: FeatureGenerator
) -> tuple[Params, Mapping[str, Message]]:
    """Send the initial model as FedAvg does; the server draws a generator and keeps it."""
    net = next(iter(public.nets.values()))
    require_linear_end(net, init(net, generator(seed, "init")), public.test, maker)
    maker_params = init(maker.net, generator(seed, "generator"))
    _, messages = initial_messages(public, seed, shared_init=shared_init)
    return add_prefix(GENERATOR, maker_params), messages


def require_linear_end(net: Net, params: Params, data: Data, maker: FeatureGenerator) -> None:
    """Refuse a net that changes its last layer's output: the logits must be that layer's."""
    shape = data.x.shape[1:]
    x = data.x[:8] if len(data) else torch.linspace(-1, 1, shape.numel()).reshape(1, *shape)
    bias = params[maker.bias] if maker.bias else torch.zeros(maker.classes)
    moved = torch.linspace(-1, 1, maker.classes)
    other = params | {maker.weight: -2 * params[maker.weight]} | ({maker.bias: moved} if maker.bias else {})
    outputs, changed = predict(params, net, x, len(x)), predict(other, net, x, len(x))
    if not torch.allclose(changed, -2 * (outputs - bias) + (moved if maker.bias else 0), rtol=1e-3, atol=1e-4):
        raise InputError("net: fedgen needs a net that ends in its last linear layer")


def train_with_generated(
    memory: Params, message: Message, device: Device, step_id: StepId, *, training: Training, maker: FeatureGenerator,
    alpha: float, decay: float, generated: int,
) -> tuple[Params, Update]:  # fmt: skip
    """Train on the device's examples and on generated ones (5); send the model and the counts of labels."""
    flat = flatten_net(device.net, starting_params({}, message, device, step_id))
    weight = alpha * decay**step_id.round * generated / training.batch
    grad_hook = None
    if weight and LABELS in message.extra:
        grad_hook = generated_grad_hook(flat, message.extra, maker, weight, generated, step_id.generator("generated"))
    moments = fit(flat, device, step_id, training, memory, message=message, grad_hook=grad_hook)
    counts = torch.bincount(device.data.train.y, minlength=maker.classes)
    return moments, Update(flat.params(), {LABELS: counts}, len(device.data.train))


def generated_grad_hook(
    flat: FlatNet, sent: Params, maker: FeatureGenerator, weight: float, generated: int, draws: torch.Generator
) -> Callable[[], None]:
    """Return a function that adds the gradient of weight * CE of generated examples to the last layer's, by hand."""
    module = load(maker.net, strip_prefix(GENERATOR, sent)).eval()
    matrix, gradients = flat.parameters[maker.weight], flat.gradients[maker.weight]

    def grad_hook() -> None:
        with torch.no_grad():
            y, noise = maker.draw(sent[LABELS], generated, draws)
            z = maker.make(module, y, noise)
            logits = z.mm(matrix.t())
            if maker.bias:
                logits += flat.parameters[maker.bias]
            logit_grad = cross_entropy_grad(logits, y).mul_(weight / generated)
            gradients.addmm_(logit_grad.t(), z)
            if maker.bias:
                flat.gradients[maker.bias].add_(logit_grad.sum(0))

    return grad_hook


def distil_generator(
    server: Params, sent: Mapping[str, Update], round_info: RoundInfo, *, maker: FeatureGenerator,
    train_maker: Callable[..., float],
) -> tuple[Params, Mapping[str, Message], Report]:  # fmt: skip
    """Average the models, train the generator on those sent (4), send both.

    The server remembers the generator and its optimiser's memory. It reports generator_loss, the mean over the round's
    steps of the first part of (4) in nats; nan for a round in which nobody had an example.
    """
    model = mean([update.params for update in sent.values()], by_size([update.size for update in sent.values()]))
    counts = torch.stack([update.extra[LABELS] for update in sent.values()]).double()
    if not counts.any():
        return server, to_everyone(round_info.names, Message(model)), report_series(generator_loss=math.nan)
    labels = counts.sum(0) / counts.sum()
    flat = flatten_net(maker.net, strip_prefix(GENERATOR, server))
    moments = {name: tensor.clone() for name, tensor in strip_prefix(MOMENTS, server).items()}
    heads = [(update.params[maker.weight], update.params.get(maker.bias or "")) for update in sent.values()]
    loss = train_maker(flat, moments, heads, counts, round_info)
    generator_params = add_prefix(GENERATOR, flat.params())
    messages = to_everyone(round_info.names, Message(model, generator_params | {LABELS: labels}))
    return generator_params | add_prefix(MOMENTS, moments), messages, report_series(generator_loss=loss)


def train_generator(
    flat: FlatNet, moments: Params, heads: list[tuple[Tensor, Tensor | None]], counts: Tensor, round_info: RoundInfo, *,
    maker: FeatureGenerator, training: Training, steps: int, decay: float, diversity: float,
) -> float:  # fmt: skip
    """Train the generator by `steps` minibatches; returns its mean loss.

    heads: the M devices' last layers (K, d) and (K,). counts: (M, K), their examples by label.
    """
    draws = round_info.generator("generator")
    update = optimiser_step(flat, training, moments)
    matrices = torch.stack([matrix for matrix, _ in heads])
    biases = torch.stack([torch.zeros(maker.classes) if bias is None else bias for _, bias in heads])
    shares = (counts / counts.sum(0).clamp(min=1)).float()
    summed_loss = 0.0
    for _ in range(steps):
        y, noise = maker.draw(counts.sum(0), training.batch, draws)
        z = maker.make(flat.module, y, noise)
        logits = torch.einsum("bd,mkd->mkb", z, matrices) + biases[:, :, None]
        losses = cross_entropy(logits, y.expand(len(heads), -1), reduction="none")  # (M, B)
        classification_loss = (losses * shares[:, y]).sum(0).mean()
        flat.gradient.zero_()
        torch.autograd.backward(classification_loss + diversity * diversity_loss(z, noise))
        update(training.lr * decay**round_info.round)
        summed_loss += classification_loss.item()
    return summed_loss / steps


def diversity_loss(z: Tensor, noise: Tensor) -> Tensor:
    """Return exp(-mean over pairs of mean |z - z'| times mean (eps - eps')^2): near 1 where all features are alike."""
    distances = (z[:, None] - z).abs().mean(2)
    noise_distances = (noise[:, None] - noise).square().mean(2)
    return (-distances * noise_distances).mean().exp()
