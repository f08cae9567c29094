r"""One exchange of sums: ridge regression on random features, solved by the server in closed form.

    phi = [relu(x W), 1],  G = sum phi' phi,  B = sum phi' Y,  M = (sum_i G_i + lambda I)^-1 sum_i B_i

W (D, F) comes from a seed that all devices know, so that nothing is trained and the solution is that of all examples
in one place, however they are divided. This is the idea of AFL (He et al. 2025, "AFL: A Single-Round Analytic Approach
for Federated Learning with Pre-trained Models"). Departures: the features are random instead of a pre-trained net's
(Rahimi and Recht 2007), and devices send sums instead of local solutions with the matrices that merge them.

The devices run a net of their own kind, D -> F -> K, whatever `net` says.

    analytic          the server solves for all devices
    analytic_local    each device solves for itself and sends nothing: what `analytic` is compared with
"""

import math
from collections.abc import Collection, Mapping
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from fedcore.builders import needs_bounded_labels, needs_one_label, sums_alone
from fedcore.core.prediction import SCORING_BATCH
from fedcore.core.secure_sum import from_integers, gaussian_noise, mask, noise_like, require_everyone, to_integers
from fedcore.data.task import CLASSIFICATION, MULTILABEL, label_kind_of
from fedcore.errors import InputError
from fedcore.methods.one_shot import closed_form as closed
from fedcore.nets.features import net as features_net
from fedcore.nets.inputs import require_quantities
from fedcore.types.federation import Data, Device, Net, Params, Public
from fedcore.types.method import Message, Method, Model, Report, RoundInfo, Stage, StepId, Update, step_word
from fedcore.types.ranges import Amount, Chance, Count, Positive

__all__ = ["analytic", "analytic_local"]

PLAN = "plan"
"""The entry of a message that every device starts from: the run's seed, the numbers of an example and the classes, (3,)
int64."""

GRAM, TARGETS, AXES, RESIDUAL, SQUARES = "gram", "targets", "axes", "residual", "squares"
"""Entries of an update: G's upper triangle, B (F + 1, K), or in place of G its sketch (F + 1, r) and (F + 1,); where
labels are no classes and the ridge is to be chosen, the sum of Y's squares (1,)."""

REG = 1e-4

MOST_FEATURES = 20_000
"""Above it the sums alone take gigabytes."""


@needs_one_label("regresses on the label of an example")
@needs_bounded_labels("epsilon", "adds noise that hides labels up to a size")
@sums_alone(secure_aggregation=True)
def analytic(
    *,
    nets: Mapping[str, Net],
    features: Count = 2000,
    reg: Amount | None = None,
    rank: Count | None = None,
    precision: Literal["float64", "float32"] = "float64",
    secure_aggregation: bool = False,
    clip: Positive | None = None,
    epsilon: Positive | None = None,
    delta: Chance = 1e-5,
) -> Method:
    """Ridge regression on random features, solved by the server from sums; no device trains.

    Args:
        features: F, width of the random layer, from 1 to 20,000.
        reg: lambda relative to the mean of G's diagonal, from 0. None: the server chooses it by generalised
            cross-validation (:func:`fedcore.methods.one_shot.closed_form.cross_validated`), since a small one is at its
            worst where there are about as many examples as features; with a rank or a clip, whose sums do not allow it,
            1e-4.
        rank: r, largest axes of G that devices send, with the rest of its diagonal; they need at least r examples.
            None: they send G itself.
        precision: of the numbers that devices send, "float64", or "float32", half the bytes; masked ones are integers.
        secure_aggregation: whether sums are masked, so that the server sees no device's part.
        clip: longest phi of an example, above 0; longer ones are shortened. None: as they are.
        epsilon: devices add noise, with which the sums are (epsilon, delta)-differentially private with respect to an
            example, above 0; None: no noise. With masked sums each adds the share that makes their total private, and
            trusts the others to do so.
        delta: of differential privacy, above 0 and below 1.

    Raises:
        InputError: for settings that exclude one another: a rank with masked or noised sums, noise without a clip,
            float32 with masks; and for nets with an embedding.
    """
    require_quantities("analytic", nets)
    require_width("analytic", features)
    if epsilon is not None and clip is None:
        raise InputError(
            f"analytic.epsilon = {epsilon}: needs analytic.clip, since noise hides examples up to a length"
        )
    if rank is not None and rank > features + 1:
        raise InputError(f"analytic.rank = {rank}: must be at most features + 1 = {features + 1}")
    if rank is not None and (secure_aggregation or epsilon is not None):
        raise InputError(
            f"analytic.rank = {rank}: sketches cannot be masked or noised; leave out rank, or secure_aggregation and "
            "epsilon"
        )
    if secure_aggregation and precision != "float64":
        raise InputError(
            f"analytic.precision = {precision}: masked sums are integers of 8 bytes; leave out precision, or "
            "secure_aggregation"
        )
    if reg is None and (rank is not None or clip is not None):
        reg = REG
    noise = noise_of(epsilon, delta, clip, len(nets) if secure_aggregation else 1)
    local = partial(
        send_sums, features=features, rank=rank, precision=precision, clip=clip, noise=noise, squares=reg is None,
        partners=tuple(sorted(nets)) if secure_aggregation else (),
    )  # fmt: skip
    # Noise moves an eigenvalue by about twice its deviation times the square root of their number (Wigner's law); half
    # as much again keeps the smallest one clear of zero.
    spread = 3 * noise * math.sqrt(len(nets) * (features + 1))
    combine = partial(fit_output, features=features, reg=reg, spread=spread)
    stage = Stage(local, combine, sends="masked" if secure_aggregation else "model")
    shift = reg is None or reg + spread > 0
    return Method(
        begin_with_plan, (stage,), deploy_output, check=partial(check_sizes, features=features, rank=rank, shift=shift)
    )


@needs_one_label("regresses on the label of an example")
def analytic_local(*, nets: Mapping[str, Net], features: Count = 2000, reg: Amount | None = None) -> Method:
    """Local training by ridge regression on random features: each device solves for its own rows and sends nothing.

    On few rows it is often better than a net that is trained, and then the fair row to compare `analytic` with.

    Args:
        features: F, width of the random layer, from 1 to 20,000.
        reg: lambda relative to the mean of G's diagonal, from 0. None: the device chooses it by generalised
            cross-validation.

    Raises:
        InputError: for nets with an embedding, and for a device whose rows determine no solution with reg = 0.
    """
    require_quantities("analytic_local", nets)
    require_width("analytic_local", features)
    local = partial(solve_alone, features=features, reg=reg)
    return Method(begin_with_plan, (Stage(local, None),), deploy_output)


def require_width(name: str, features: int) -> None:
    """Refuse a random layer whose sums would not fit the memory."""
    if features > MOST_FEATURES:
        raise InputError(f"{name}.features = {features}: must be at most {MOST_FEATURES}")


def check_sizes(sizes: Mapping[str, int], *, features: int, rank: int | None, shift: bool) -> None:
    """Refuse too few examples for the rank, or for a solution. shift: whether lambda is above 0."""
    for name, size in sizes.items():
        require_rank(rank, name, size)
    if not shift and sum(sizes.values()) <= features:
        raise InputError(
            f"analytic.reg = 0: {sum(sizes.values())} examples do not determine {features + 1} weights of a class; "
            "set a larger reg, or fewer features"
        )


def require_rank(rank: int | None, name: str, size: int) -> None:
    """Refuse a rank above a device's number of examples, unless it has none."""
    if rank is not None and 0 < size < rank:
        raise InputError(f"analytic.rank = {rank}: {name} has {size} examples, must be at most {size}")


def noise_of(epsilon: float | None, delta: float, clip: float | None, devices: int) -> float:
    r"""Return the deviation of one device's noise. devices: so many of them make a noise of the whole deviation.

    An example of length c changes G, of which each number off the diagonal is sent once, by at most c^2 and B by c:
    together by sqrt(c^4 + c^2). Of K labels at once, -1 or 1, that holds for B / sqrt(K), which is noised in B's place.
    """
    if epsilon is None or clip is None:
        return 0.0
    return gaussian_noise(epsilon, delta, math.sqrt(clip**4 + clip**2)) / math.sqrt(devices)


def begin_with_plan(public: Public, seed: int) -> tuple[Params, Mapping[str, Message]]:
    """Tell every device the seed, the numbers of an example and the classes."""
    plan = {PLAN: torch.tensor([seed, public.test.x.shape[1:].numel(), public.classes])}
    return plan, dict.fromkeys(public.names, Message(extra=plan))


@step_word("sum")
def send_sums(
    memory: Params, message: Message, device: Device, step_id: StepId, *, features: int, rank: int | None,
    precision: str, clip: float | None, noise: float, squares: bool, partners: Collection[str],
) -> tuple[Params, Update]:  # fmt: skip
    """Send G and B of the device's labelled examples."""
    seed, inputs, classes = message.extra[PLAN].tolist()
    data = device.data.train
    if len(data) and data.x[0].numel() != inputs:
        raise InputError(
            f"analytic: {device.name} has examples of {data.x[0].numel()} numbers, the shared test set of {inputs}"
        )
    require_rank(rank, device.name, len(data))
    gram, targets = add_examples(data, closed.random_weights(inputs, features, seed), classes, clip)
    if rank is None:
        sent = {GRAM: closed.triangle(gram), TARGETS: targets}
    else:
        sent = {**dict(zip((AXES, RESIDUAL), closed.sketch(gram, rank), strict=True)), TARGETS: targets}
    if squares and label_kind_of(data.y) is not CLASSIFICATION:
        sent[SQUARES] = squared(data, classes)
    if noise:
        draws = step_id.generator("noise")
        for name, tensor in sent.items():
            several = name == TARGETS and label_kind_of(data.y) is MULTILABEL
            sent[name] = tensor + noise * (math.sqrt(classes) if several else 1.0) * noise_like(tensor, draws)
    for name, tensor in sent.items():
        if partners:
            sent[name] = mask(to_integers(tensor, device.name, len(partners)), name, device.name, partners, seed)
        else:
            sent[name] = tensor.to(getattr(torch, precision))
    return {}, Update(extra=sent, size=1 if noise or partners else len(data))  # which masks and noise are to hide


def add_examples(data: Data, weights: Tensor, classes: int, clip: float | None) -> tuple[Tensor, Tensor]:
    """Return G (F + 1, F + 1) and B (F + 1, K) of some examples."""
    size = len(weights) + 1
    gram, targets = torch.zeros(size, size, dtype=torch.float64), torch.zeros(size, classes, dtype=torch.float64)
    for start in range(0, len(data), SCORING_BATCH):
        part = slice(start, start + SCORING_BATCH)
        phi = closed.random_features(data.inputs(part), weights)
        phi = phi if clip is None else closed.clip_rows(phi, clip)
        gram += phi.T @ phi
        targets += closed.class_sums(phi, data.y[part], classes)
    return gram, targets


@step_word("solve", trains=False)
def solve_alone(
    memory: Params, message: Message, device: Device, step_id: StepId, *, features: int, reg: float | None
) -> tuple[Params, Update]:
    """Keep the output layer that fits the device's own examples; without any it tells all classes alike."""
    seed, inputs, classes = message.extra[PLAN].tolist()
    data = device.data.train
    gram, targets = add_examples(data, closed.random_weights(inputs, features, seed), classes, None)
    ridge = REG if reg is None else reg
    if reg is None and len(data):
        ridge = closed.cross_validated(gram, targets, squared(data, classes))
    layer = output_layer(gram, targets, ridge, 0.0 if len(data) else 1.0)
    if layer is None:
        raise InputError(
            f"analytic_local.reg = {ridge}: {len(data)} examples of {device.name} do not determine {features + 1} "
            "weights of a class; set a larger reg, or fewer features"
        )
    return {}, Update(layer)


@step_word("solve")
def fit_output(
    server: Params, updates: Mapping[str, Update], round_info: RoundInfo, *, features: int, reg: float | None,
    spread: float,
) -> tuple[Params, Mapping[str, Message], Report]:  # fmt: skip
    """Send everyone the output layer that fits the sums of all devices; a chosen ridge is in the report.

    spread: added to lambda, so that noise leaves G positive definite.
    """
    size, classes, names = features + 1, int(server[PLAN][2]), round_info.names
    sketched = any(AXES in update.extra for update in updates.values())
    gram = gather(updates, size) if sketched else add_up(updates, names, GRAM, (size * (size + 1) // 2,))
    targets = add_up(updates, names, TARGETS, (size, classes))
    gram = gram if sketched else closed.from_triangle(gram, size)
    numbers = any(SQUARES in update.extra for update in updates.values())
    squares = add_up(updates, names, SQUARES, (1,)) if numbers else None
    ridge = closed.cross_validated(gram, targets, squares) if reg is None else reg
    layer = output_layer(gram, targets, ridge, spread)
    if layer is None:
        sums = {} if sketched or spread else {name: update.extra[GRAM] for name, update in updates.items()}
        liars = [name for name, gram in sums.items() if gram.dtype != torch.int64 and not closed.is_gram(gram, size)]
        if liars:
            raise InputError(
                f"analytic: {', '.join(liars)} sent sums that no examples have; the server adds sums up, so that no "
                "aggregation withstands them: leave these devices out (data.exclude)"
            )
        raise InputError(
            f"analytic.reg = {ridge}: the devices' examples do not determine {size} weights of a class (fewer examples "
            "than features, or too much noise); set a larger reg, or fewer features"
        )
    report = Report(series={"analytic": {"reg": ridge}}) if reg is None else Report()
    return server, dict.fromkeys(names, Message(layer, server)), report


def squared(data: Data, classes: int) -> Tensor:
    """Return the sum of the squares of Y, (1,)."""
    return label_kind_of(data.y).targets(data.y, classes).double().square().sum()[None]


def output_layer(gram: Tensor, targets: Tensor, ridge: float, extra: float) -> Params | None:
    """Return the output layer that solves the ridge regression; None if the sums do not determine it."""
    solution = closed.ridge(gram, targets, ridge, extra)
    if solution is None:
        return None
    return {"output.weight": solution[:-1].T.float().contiguous(), "output.bias": solution[-1].float()}


def add_up(updates: Mapping[str, Update], names: Collection[str], entry: str, shape: tuple[int, ...]) -> Tensor:
    """Return the sum of an entry over the devices, in the order of their names, float64; masked ones cancel in it.

    names: of all devices, whose masks these are.
    """
    for name, update in updates.items():
        closed.require_sums(name, update.extra.get(entry, torch.empty(0)), shape, entry)
    first, *others = (updates[name].extra[entry] for name in sorted(updates))
    if first.dtype == torch.int64:
        require_everyone(updates, names)
    total = first.clone() if first.dtype == torch.int64 else first.double()
    for other in others:
        total = total + other
    return from_integers(total) if total.dtype == torch.int64 else total


def gather(updates: Mapping[str, Update], size: int) -> Tensor:
    """Return the sum of the sketched Gram matrices, (F + 1, F + 1)."""
    total = torch.zeros(size, size, dtype=torch.float64)
    for name in sorted(updates):
        axes, residual = (updates[name].extra.get(entry, torch.empty(0)) for entry in (AXES, RESIDUAL))
        closed.require_sums(name, axes, (size, axes.shape[-1]), AXES)
        closed.require_sums(name, residual, (size,), RESIDUAL)
        total += closed.from_sketch(axes, residual)
    return total


def deploy_output(memory: Params, message: Message) -> Model:
    """Run the random layer, drawn again from the seed, and the device's own output layer, or the server's."""
    seed, inputs, classes = message.extra[PLAN].tolist()
    output = memory or message.params
    features = output["output.weight"].shape[1]
    layers = {"features.weight": closed.random_weights(inputs, features, seed), **output}
    return Model((layers,), net=features_net(inputs, features, classes))
