"""Plain loops in PyTorch, which methods are compared with: no code of the library but its nets and draws."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedcore import StepId, Training
from fedcore.types.federation import Device, Federation, Net, Params

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


def chain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


CHAIN, NORMED = Net(chain), Net(normed)


def module_of(params: Params, net: Net = CHAIN) -> nn.Module:
    module = net.build()
    module.load_state_dict(params)
    return module


def params_of(module: nn.Module) -> Params:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def draw_batches(device: Device, number: int, training: Training, seed: int = 0) -> list[Tensor]:
    """The minibatches of a device in a round of the first stage."""
    draws = StepId(seed, 0, number, device.name).generator("batches")
    size = len(device.data.train)
    orders = (torch.randperm(size, generator=draws) for _ in range(training.epochs) if size)
    batches = [batch for order in orders for batch in order.split(training.batch)]
    return batches[: training.steps]


def descend_by_hand(
    module: nn.Module,
    device: Device,
    number: int,
    training: Training,
    loss: Loss | None = None,
    trains: Callable[[str], bool] = lambda name: True,
    seed: int = 0,
) -> nn.Module:
    """Train a module by PyTorch's own SGD on one device in one round; `trains` chooses parameters by name."""
    chosen = [tensor for name, tensor in module.named_parameters() if trains(name)]
    optimiser = torch.optim.SGD(chosen, training.lr, training.momentum, weight_decay=training.weight_decay)
    data = device.data.train
    for batch in draw_batches(device, number, training, seed):
        module.zero_grad()
        x, y = data.x[batch], data.y[batch]
        (cross_entropy(module(x), y) if loss is None else loss(module, x, y)).backward()
        optimiser.step()
    return module


def mean_by_size(fed: Federation, models: Mapping[str, Params]) -> Params:
    total = sum(len(fed.devices[name].data.train) for name in models)
    first = next(iter(models.values()))
    return {
        key: sum(len(fed.devices[name].data.train) / total * model[key] for name, model in models.items())
        if first[key].is_floating_point()
        else first[key]
        for key in first
    }


def turn_by_hand(fed: Federation, sent: Params, number: int, training: Training, loss: Loss, seed: int) -> Params:
    """The mean of all devices' models after a round in which each trains the model that was sent."""
    modules = {
        name: descend_by_hand(module_of(sent, device.net), device, number, training, loss, seed=seed)
        for name, device in fed.devices.items()
    }
    return mean_by_size(fed, {name: params_of(module) for name, module in modules.items()})


def close(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    torch.testing.assert_close(dict(found), dict(expected), rtol=0, atol=1e-6)
