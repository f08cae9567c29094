"""fedcore beside pfl-research and Flower's simulation, where they are installed: rounds of the same work, in turns.

    python -m benchmarks.peers [rounds] [file.csv]

Works: W1 (16 devices x 3,750 images of 28 x 28, MLP 784-400-200-100-10, batches of 64), W2 (10 devices x 600 images,
McMahan's CNN, batches of 10), and pfl-research's CIFAR-10 benchmark with dropout and without (users of 50 images of
3 x 32 x 32, its CNN of 1.63 million parameters, batches of 10; on a GPU 1,000 users, 50 a round, else 200 and 10). All:
one epoch, SGD at .1, random images. fedcore is called as a user calls it, `fc.run` with its defaults, on a GPU with
`accelerator="auto"` and all of a round's devices together. Each way is a process of its own: a run of two rounds, then
one of so many more; their difference is what these take. A package that is not installed, or that
fails, is left out by name. Flower needs ray.
"""

import csv
import json
import os
import subprocess
import sys
import time
import types
from collections.abc import Callable
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

CARD = torch.cuda.is_available()
FIRST = 2
"""Rounds of the shorter run."""

PACKAGES = {"fedcore": "fedcore", "pfl-research": "pfl", "flower": "flwr"}


class Cnn(nn.Sequential):
    """The CNN of pfl-research's CIFAR-10 benchmark, channels first."""

    def __init__(self, dropout: bool = True, classes: int = 10) -> None:
        drop = (lambda p: [nn.Dropout(p)]) if dropout else (lambda p: [])
        super().__init__(
            nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), *drop(0.25), nn.Flatten(),
            nn.Linear(14 * 14 * 64, 128), nn.ReLU(), *drop(0.5), nn.Linear(128, classes),
        )  # fmt: skip


class Mlp(nn.Sequential):
    """W1's net."""

    def __init__(self, classes: int = 10) -> None:
        sizes = (784, 400, 200, 100)
        layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
        super().__init__(nn.Flatten(), *layers, nn.Linear(100, classes))


class McMahan(nn.Sequential):
    """W2's net."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__(
            nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, classes),
        )  # fmt: skip


USERS, COHORT = (1000, 50) if CARD else (200, 10)
WORKS: dict[str, tuple[type[nn.Module], dict[str, Any], tuple[int, ...], int, int, int, int]] = {
    "W1": (Mlp, {}, (1, 28, 28), 16, 3750, 16, 64),
    "W2": (McMahan, {}, (1, 28, 28), 10, 600, 10, 10),
    "CIFAR-10 with dropout": (Cnn, {"dropout": True}, (3, 32, 32), USERS, 50, COHORT, 10),
    "CIFAR-10 without": (Cnn, {"dropout": False}, (3, 32, 32), USERS, 50, COHORT, 10),
}
"""Net, its settings, shape, users, images of each, users of a round, batch."""


def images(shape: tuple[int, ...], count: int) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(0)
    return torch.rand(count, *shape, generator=draws), torch.randint(0, 10, (count,), generator=draws)


def fedcore(work: str) -> Callable[[int], object]:
    """Return what does so many rounds."""
    import fedcore as fc

    make, settings, shape, users, each, cohort, batch = WORKS[work]
    x, y = images(shape, users * each)
    whole, net = fc.from_arrays(x.numpy(), y.numpy()), fc.net(make, **settings)
    fed = fc.federate(whole, fc.iid(), devices=users, net=net, val=0.0, test=0.0, shared_test=0.0)
    training = {"optimiser": "sgd", "lr": 0.1, "batch": batch, "epochs": 1}
    there: dict[str, Any] = {"accelerator": "auto", "together": cohort} if CARD else {}
    return lambda rounds: fc.run(
        fc.fedavg(rounds=rounds, fraction=cohort / users, training=training), fed, every=10**6, progress=False, **there
    )


def pfl(work: str) -> Callable[[int], object]:
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    make, settings, shape, users, each, cohort, batch = WORKS[work]
    where = "cuda" if CARD else "cpu"
    x, y = (part.view(users, each, *part.shape[1:]).to(where) for part in images(shape, users * each))

    def user(number: int) -> Any:
        order = torch.randperm(each, device=where)
        return PyTorchTensorDataset((x[number][order], y[number][order]), user_id=str(number))

    def rounds(count: int) -> None:
        net: Any = make(**settings).to(where)
        net.loss = types.MethodType(lambda self, a, b, eval=False: cross_entropy(self(a), b), net)
        net.metrics = types.MethodType(lambda self, a, b, eval=False: {}, net)
        data = [FederatedDataset(user, get_user_sampler("minimize_reuse", [*range(users)])) for _ in range(2)]
        FederatedAveraging().run(
            algorithm_params=NNAlgorithmParams(central_num_iterations=count, evaluation_frequency=10**6,
                                               train_cohort_size=cohort, val_cohort_size=0),
            backend=SimulatedBackend(training_data=data[0], val_data=data[1]),
            model=PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0)),
            model_train_params=NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.1, local_batch_size=batch),
            model_eval_params=NNEvalHyperParams(local_batch_size=1000), callbacks=[],
        )  # fmt: skip

    return rounds


def flower(work: str) -> Callable[[int], object]:
    import flwr
    from flwr.client import NumPyClient
    from flwr.server import ServerAppComponents, ServerConfig
    from flwr.server.strategy import FedAvg
    from flwr.simulation import run_simulation

    make, settings, shape, users, each, cohort, batch = WORKS[work]
    x, y = (part.view(users, each, *part.shape[1:]) for part in images(shape, users * each))
    where = "cuda" if CARD else "cpu"

    class Client(NumPyClient):  # type: ignore[misc]
        def __init__(self, number: int) -> None:
            self.x, self.y, self.net = x[number].to(where), y[number].to(where), make(**settings).to(where)

        def fit(self, parameters: Any, config: Any) -> Any:
            state = zip(self.net.state_dict(), map(torch.from_numpy, parameters), strict=True)
            self.net.load_state_dict(dict(state))
            descent = torch.optim.SGD(self.net.parameters(), 0.1)
            for index in torch.randperm(each).split(batch):
                descent.zero_grad()
                cross_entropy(self.net(self.x[index]), self.y[index]).backward()
                descent.step()
            return [part.cpu().numpy() for part in self.net.state_dict().values()], each, {}

    def rounds(count: int) -> None:
        first = flwr.common.ndarrays_to_parameters([part.numpy() for part in make(**settings).state_dict().values()])
        strategy = FedAvg(fraction_fit=cohort / users, fraction_evaluate=0.0, min_fit_clients=cohort,
                          min_available_clients=users, initial_parameters=first)  # fmt: skip
        run_simulation(
            flwr.server.ServerApp(server_fn=lambda context: ServerAppComponents(
                strategy=strategy, config=ServerConfig(num_rounds=count))),
            flwr.client.ClientApp(client_fn=lambda context: Client(context.node_config["partition-id"]).to_client()),
            num_supernodes=users,
            backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.1 if CARD else 0.0}},
        )  # fmt: skip

    return rounds


WAYS: dict[str, Callable[[str], Callable[[int], object]]] = {"fedcore": fedcore, "pfl-research": pfl, "flower": flower}


def seconds(way: str, work: str, rounds: int) -> float:
    """Return the seconds of a round, in this process."""
    do, times = WAYS[way](work), []
    for count in (FIRST, FIRST, FIRST + rounds):  # the first warms up
        begin = time.perf_counter()
        do(count)
        times.append(time.perf_counter() - begin)
    return (times[2] - times[1]) / rounds


def main(rounds: int, into: Path | None) -> None:
    ways = [way for way, package in PACKAGES.items() if find_spec(package)]
    for way in PACKAGES.keys() - ways:
        print(f"{way} is not installed: left out")
    machine = torch.cuda.get_device_name() if CARD else f"{len(os.sched_getaffinity(0))} cores"
    rows = []
    for work in WORKS:
        for way in ways:
            words = [sys.executable, "-m", "benchmarks.peers", "one", way, work, str(rounds)]
            told = subprocess.run(words, check=way == "fedcore", stdout=subprocess.PIPE, text=True)
            if told.returncode:
                print(f"{way} fails on {work}: left out")
                continue
            took = json.loads(told.stdout.splitlines()[-1])
            ours = took if way == "fedcore" else next(row["seconds"] for row in rows if row["work"] == work)
            rows.append({"work": work, "way": way, "seconds": took, "fedcore's of it": round(ours / took, 2)})
            print(rows[-1], machine, flush=True)
    if into is not None:
        with into.open("w", newline="") as file:
            writer = csv.DictWriter(file, [*rows[0], "machine", "torch"])
            writer.writeheader()
            writer.writerows({**row, "machine": machine, "torch": torch.__version__} for row in rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        print(json.dumps(round(seconds(sys.argv[2], sys.argv[3], int(sys.argv[4])), 4)))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 20, Path(sys.argv[2]) if len(sys.argv) > 2 else None)
