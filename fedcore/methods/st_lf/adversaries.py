r"""FADA's protocol (Peng et al. 2020), after ST-LF's first steps (`fedcore.methods.st_lf.protocol`).

Sources have labels and are adapted to targets. A net's generator G is all but its last layer, its classifier C the
last layer; features are the output of G. Sources and targets are already chosen. Then, in turn,

1. Sources train a copy of their model for each target, G_i and C_i: cross-entropy of their labelled examples, and
   weight times -log of the identifier's probability that their features are the target's. They send copies and
   features. A copy continues from its last state (`start: own`), or starts from the target's model (`target`), which
   is then sent to them.
2. A target gets its copy from every source. It weighs each by dynamic attention, starts from their weighted mean and
   trains G_t so that the identifiers classify its features as the sources'. It sends features and weights.

After each turn the server trains a domain identifier for every pair of a source and a target, on the features
that the two sent: it sees no example. In the first turns there is no identifier yet, and no device trains.

    gap I = sum_r 1 / (2 n_r) sum_{i, j in C_r} |f_i - f_j|   of a target's features in K-means clusters C_r
    weights = softmax_i(sharpness (I_i before - I_i now))         I_i: of the features by source i's copy

Departures are listed in docs/methods/st_lf.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedcore import nets
from fedcore.core.aggregation import mean
from fedcore.core.messages import own_params, require_shared_init, to_everyone
from fedcore.core.training import Training, descend, features, flatten_net, optimiser_step, plain_step
from fedcore.errors import InputError
from fedcore.methods.st_lf.planning import ALPHA, BOUNDS, PSI, SENDS
from fedcore.methods.st_lf.protocol import DrawnLinks, ProgramLinks, Stages, protocol_method
from fedcore.methods.st_lf.sending import report_traffic
from fedcore.nets.copies import load
from fedcore.nets.inputs import forward_features, require_features
from fedcore.nets.parts import layers
from fedcore.types.federation import Data, Device, Net, Params, add_prefix, by_word
from fedcore.types.method import Message, Method, RoundInfo, Sent, Stage, StepId, Update, generator
from fedcore.types.ranges import Amount, Count, Depth, Positive

SOURCE, TARGET = 0, 1
"""An identifier's classes."""

Start: TypeAlias = Literal["own", "target"]

MODEL, START, IDENTIFIER, FEATURES = "model/", "start/", "identifier/", "features/"
"""Prefixes of entries: of a copy, of a target's model and of an identifier, each followed by the other device; of
features (n, d)."""

ATTENTION, GAPS = "attention", "gaps/"
"""Entries of a target: weights of the sources in the order of their names, and their copies' gaps, (S,) float64."""


@dataclass(frozen=True)
class Alignment:
    """Settings of the adversarial alignment.

    Args:
        start: where a source's copy starts in a turn: "own", from its last state, or "target", from the target's model.
        steps: steps of SGD in each turn and for each copy, from 1.
        batch: examples in a minibatch, from 1.
        lr: learning rate, above 0.
        weight: of the loss that confuses identifiers, relative to the sources' cross-entropy, from 0.
        shown: most features that a device sends at a time, and that a target clusters, from 1.
        sharpness: factor of the gains in dynamic attention, from 0; 0 is even.
        hidden: hidden units of an identifier, from 1.
        identifier_steps: steps of an identifier's SGD after each turn, from 1.
        identifier_lr: its learning rate, above 0.
    """

    start: Start = "own"
    steps: Count = 20
    batch: Count = 32
    lr: Positive = 0.01
    weight: Amount = 0.1
    shown: Count = 128
    sharpness: Amount = 1.0
    hidden: Count = 32
    identifier_steps: Count = 20
    identifier_lr: Positive = 0.05


def method(
    name: str, nets: Mapping[str, Net], training: Training, links: ProgramLinks | DrawnLinks, link_stages: Stages,
    rounds: Depth, alignment: Alignment,
) -> Method:  # fmt: skip
    """Return the method whose server chooses sources and targets in `link_stages`, see `protocol.protocol_method`.

    The stages must link every source to every target; dynamic attention sets the final weights. rounds: how often
    sources train their copies.
    """
    require_shared_init(name, training.shared_init, "mixes models that must start from one")
    base = protocol_method(name, nets, training, links, link_stages, "parameters")
    net = next(iter(nets.values()))
    rival = identifier(name, net, alignment.hidden)
    local = partial(align, rival=rival, alignment=alignment)
    server = partial(identify, rival=rival, alignment=alignment)
    end = partial(close, net=net, even=not rounds * alignment.sharpness)
    # Sources and targets take turns; the last one is the targets'.
    turns = (Stage(local, server, 2 * rounds + 1), Stage(local, end))
    return replace(base, stages=(*base.stages[:-1], *turns))


def identifier(name: str, net: Net, hidden: int) -> Net:
    """Return the net that classifies features as a source's or a target's; refuses nets without a linear last layer."""
    shape = nets.shapes(net)[last_layer(net)]
    if len(shape) != 2:
        raise InputError(f"net: {name} needs a net whose last layer is linear, this one's is not")
    return nets.net("mlp", shape=shape[1:], classes=2, widths=[hidden])


def last_layer(net: Net) -> str:
    """Return the name of the last layer's weights."""
    return [*layers(net).values()][-1][0]


# steps of devices


def align(
    memory: Params, message: Message, device: Device, step_id: StepId, *, rival: Net, alignment: Alignment
) -> tuple[Params, Update]:
    """Take a source's or a target's turn; on the other side's turn send nothing."""
    if not message.extra[SENDS]:
        return memory, Update()
    copies = by_word(MODEL, message.extra)
    rivals = {name: load_identifier(rival, params) for name, params in by_word(IDENTIFIER, message.extra).items()}
    if copies:
        return train_target(memory, copies, rivals, device, step_id, alignment)
    starts = by_word(START, message.extra) or by_word(MODEL, memory)
    return train_copies(memory, starts, rivals, device, step_id, alignment)


def train_copies(
    memory: Params, starts: Mapping[str, Params], rivals: Mapping[str, nn.Module], device: Device, step_id: StepId,
    alignment: Alignment,
) -> tuple[Params, Update]:  # fmt: skip
    """Train a copy for each target; without identifiers yet, the device's model is every target's copy.

    The device's own model does not change. A device without labels has no cross-entropy.
    """
    labelled = len(device.data.train) > 0
    params, size = own_params(memory), len(device.data.train)
    data = device.data.train if labelled else device.data.unlabelled
    sample = fixed_sample(data, device.name, step_id, alignment.shown)
    if not rivals:
        return memory, Update(params, {FEATURES: features(params, device.net, sample)}, size)
    copies, sent_features = Params(), Params()
    for target, rival in rivals.items():
        start, draws = starts.get(target, params), step_id.generator(f"batches {target}")
        copy = train_against(start, device.net, data, [rival], TARGET, labelled, draws, alignment)
        copies |= add_prefix(f"{MODEL}{target}/", copy)
        sent_features[f"{FEATURES}{target}"] = features(copy, device.net, sample)
    stored = copies if alignment.start == "own" else {}
    return params | stored, Update(extra=copies | sent_features, size=size)


def train_target(
    memory: Params, copies: Mapping[str, Params], rivals: Mapping[str, nn.Module], device: Device, step_id: StepId,
    alignment: Alignment,
) -> tuple[Params, Update]:  # fmt: skip
    """Train the device's model to confuse the identifiers, from the weighted mean of the sources' copies."""
    parts = [part.x for part in (device.data.train, device.data.unlabelled) if len(part)]
    x = torch.cat(parts) if parts else torch.empty(0)
    data = Data(x, torch.zeros(len(x), dtype=torch.int64))
    sample = fixed_sample(data, device.name, step_id, alignment.shown)
    classes = nets.shapes(device.net)[last_layer(device.net)][0]
    now = [gap(features(copy, device.net, sample), classes, step_id.seed) for copy in copies.values()]
    gaps = torch.tensor(now, dtype=torch.float64)
    weights = attention(memory.get(GAPS, gaps), gaps, alignment.sharpness)
    params = mean([*copies.values()], weights)
    if rivals:
        draws = step_id.generator("batches")
        params = train_against(params, device.net, data, [*rivals.values()], SOURCE, False, draws, alignment)
    shared = {FEATURES: features(params, device.net, sample), ATTENTION: weights}
    sent = params if alignment.start == "target" else {}
    return params | {GAPS: gaps}, Update(sent, shared, len(device.data.train))


def train_against(
    params: Params, net: Net, data: Data, judges: Sequence[nn.Module], goal: int, labelled: bool,
    draws: torch.Generator, alignment: Alignment,
) -> Params:  # fmt: skip
    r"""Return the model after SGD on a loss that confuses the identifiers, plus cross-entropy if there are labels.

    min  weight / J sum_j CE(DI_j(G(x)), goal)  (+ CE(C(G(x)), y))

    judges: J fixed identifiers. goal: SOURCE or TARGET, the class that they are to predict.
    """
    flat = flatten_net(net, params)
    update = optimiser_step(flat, Training("sgd", alignment.lr, 0.0, 0.0, "constant", alignment.batch, 1))
    with nets.use_generator(draws):
        batches = [torch.randperm(len(data))[: alignment.batch] for _ in range(alignment.steps)]

        def step(x: Tensor, y: Tensor) -> None:
            last_input, logits = require_features(*forward_features(flat.module, x))
            losses = torch.stack([cross_entropy(judge(last_input), torch.full_like(y, goal)) for judge in judges])
            loss = alignment.weight * losses.mean()
            flat.gradient.zero_()
            torch.autograd.backward(loss + cross_entropy(logits, y) if labelled else loss)
            update(alignment.lr)

        descend(data, batches, step)
    return flat.params()


def fixed_sample(data: Data, name: str, step_id: StepId, count: int) -> Tensor:
    """Return at most so many of a device's examples, (n, *shape) float32, the same in every turn."""
    if not len(data):
        raise InputError(
            f"device {name}: it has no example to train on; at least one is needed, with or without a label"
        )
    if len(data) <= count:
        return data.inputs()
    return data.inputs(torch.randperm(len(data), generator=generator(step_id.seed, name, "shown"))[:count])


def load_identifier(rival: Net, params: Params) -> nn.Module:
    """Return an identifier with fixed parameters."""
    return load(rival, params).eval().requires_grad_(False)


def gap(features: Tensor, clusters: int, seed: int) -> float:
    r"""Return the spread of features within clusters, sum_r 1 / (2 n_r) sum_{i, j in C_r} |f_i - f_j|.

    features: (n, d). clusters: of K-means, at most the number of different features. Deterministic.
    """
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    points = features.double().cpu()
    count = min(clusters, len(torch.unique(points, dim=0)))
    with threadpool_limits(1):
        clusters_of = torch.from_numpy(KMeans(count, n_init=1, random_state=seed).fit_predict(points.numpy()))
    parts = [points[clusters_of == r] for r in range(count)]
    return float(sum(torch.cdist(part, part).sum() / (2 * len(part)) for part in parts))


def attention(before: Tensor, now: Tensor, sharpness: float) -> Tensor:
    """Return softmax(sharpness (before - now)), (S,) on the simplex: the largest decrease has the largest weight.

    No weight is zero, so that every source keeps its link.
    """
    return (sharpness * (before - now)).softmax(0).clamp(min=torch.finfo(torch.float64).tiny)


# steps of the server


def identify(
    server: Params, sent: Mapping[str, Update], round_info: RoundInfo, *, rival: Net, alignment: Alignment
) -> Sent:
    """Train an identifier for each pair on the latest features and start the other side's turn.

    After the sources' turn targets receive copies and identifiers; after the targets' turn sources receive identifiers
    and the targets' models to start from.
    """
    sources, targets = sides(server, round_info)
    sources_trained = any(sent[name].extra for name in sources.values())
    identifiers, server = by_word(IDENTIFIER, server), {**server}
    messages: dict[str, Params] = {name: {} for name in round_info.names}
    for i, source in sources.items():
        copies = by_word(MODEL, sent[source].extra)
        for j, target in targets.items():
            pair, receiver, other = f"{i} {j}", *((target, source) if sources_trained else (source, target))
            if sources_trained:
                sent_extra = sent[source].extra
                server[f"{FEATURES}{pair}"] = sent_extra[FEATURES if FEATURES in sent_extra else f"{FEATURES}{target}"]
                messages[target] |= add_prefix(f"{MODEL}{source}/", copies.get(target) or sent[source].params)
            else:
                server[f"{FEATURES}{j}"] = sent[target].extra[FEATURES]
                messages[source] |= add_prefix(f"{START}{target}/", sent[target].params)
            if f"{FEATURES}{j}" in server:
                both = server[f"{FEATURES}{pair}"], server[f"{FEATURES}{j}"]
                params = train_identifier(identifiers.get(pair), *both, round_info, rival, alignment)
                server |= add_prefix(f"{IDENTIFIER}{pair}/", params)
                messages[receiver] |= add_prefix(f"{IDENTIFIER}{other}/", params)
    return server, {name: Message(extra=extra | {SENDS: torch.tensor(bool(extra))}) for name, extra in messages.items()}


def train_identifier(
    last: Params | None, source: Tensor, target: Tensor, round_info: RoundInfo, rival: Net, alignment: Alignment
) -> Params:
    """Continue training an identifier on features (n, d) and (m, d), with equal numbers of both in a batch."""
    flat = flatten_net(rival, last or nets.init(rival, generator(round_info.seed, "identifier")))
    training = Training("sgd", alignment.identifier_lr, 0.0, 0.0, "constant", alignment.batch, 1)
    draws = round_info.generator("features")
    least, sides = min(len(source), len(target), alignment.batch), [len(source), len(target)]
    data = Data(torch.cat([source, target]), torch.arange(2).repeat_interleave(torch.tensor(sides)))
    picks = [[torch.randperm(n, generator=draws)[:least] for n in sides] for _ in range(alignment.identifier_steps)]
    batches = [torch.cat([of_source, of_target + len(source)]) for of_source, of_target in picks]
    descend(data, batches, plain_step(flat, training, len(batches)))
    return flat.params()


def close(server: Params, sent: Mapping[str, Update], round_info: RoundInfo, *, net: Net, even: bool) -> Sent:
    """Report the links with the weights of dynamic attention and one model per link.

    even: the weights are even, as those of the stored bounds; without it these are dropped.
    """
    sources, targets = sides(server, round_info)
    alpha = torch.zeros(len(round_info.names), len(round_info.names), dtype=torch.float64)
    for j, target in targets.items():
        alpha[[*sources], j] = sent[target].extra[ATTENTION]
    dropped = (FEATURES, IDENTIFIER) if even else (FEATURES, IDENTIFIER, *BOUNDS)
    memory = {name: x for name, x in server.items() if not name.startswith(dropped)}
    memory[ALPHA] = alpha
    carried = Update(nets.init(net, generator(round_info.seed, "init")))  # of every source as large
    report = report_traffic(memory, dict.fromkeys(round_info.names, carried), round_info.names)
    return memory, to_everyone(round_info.names, Message()), report


def sides(server: Params, round_info: RoundInfo) -> tuple[dict[int, str], dict[int, str]]:
    """Return sources and targets, by their positions in the order of the names."""
    psi, names = server[PSI].tolist(), dict(enumerate(round_info.names))
    return {i: x for i, x in names.items() if not psi[i]}, {i: x for i, x in names.items() if psi[i]}
