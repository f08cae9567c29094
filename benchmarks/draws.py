"""What a convolutional net learns from Gaussian draws, and whether other draws help.

python -m benchmarks.draws [data folder [seeds]]

Eight devices with 6,000 images of MNIST (Dirichlet, alpha .5), 15,000 draws, a CNN of 8 and 16 maps, and an MLP of 200
and 100 units. Prints accuracy on 3,000 test images.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import torch
from torch.nn.functional import conv2d

import fedcore as fc
from fedcore.core.evaluation import combine
from fedcore.core.messages import to_weights
from fedcore.core.training import Training, accuracy, predict, train
from fedcore.methods.one_shot.ensembles import voting_weights
from fedcore.methods.one_shot.gaussians import Sketches, draw, learn, read_sketch, sketch, targets_of
from fedcore.types import Data, Message, RoundInfo, StepId

TRAINING = Training(lr=0.002, batch=32, epochs=5)
SKETCHES = Sketches(draws=15_000)
NETS = {"cnn": fc.net("cnn", maps=[8, 16], kernel=5, hidden=[64]), "mlp": fc.mlp(200, 100)}


def smoothed(noise: torch.Tensor) -> torch.Tensor:
    """Return images of noise (N, 1, H, W) blurred over three pixels, with their deviation as before."""
    row = torch.tensor([1.0, 2.0, 1.0])
    blurred = conv2d(noise, (row[:, None] * row)[None, None], padding=1)
    return blurred * (noise.std() / blurred.std())


def measure(mnist: fc.Dataset, seed: int) -> dict[str, float]:
    """Return what -> accuracy."""
    feds = {
        name: fc.federate(
            mnist, fc.dirichlet(0.5), devices=8, net=net, val=0.0, test=0.0, examples=6000, shared_examples=3000
        ).federation(seed)
        for name, net in NETS.items()
    }
    devices, test = feds["cnn"].devices, Data(feds["cnn"].test.inputs(), feds["cnn"].test.y)
    round_info = RoundInfo(seed, 1, 0, tuple(devices), tuple(devices))
    kinds = {name: next(iter(fed.devices.values())).net for name, fed in feds.items()}
    models = {
        name: [
            train({}, Message(), device, StepId(seed, 0, 0, who), training=TRAINING)[1].params
            for who, device in fed.devices.items()
        ]
        for name, fed in feds.items()
    }
    counts = torch.stack([torch.bincount(device.data.train.y, minlength=10) for device in devices.values()])
    votes = to_weights(voting_weights(counts, "counts").float())
    told = {
        who: read_sketch(sketch(device.data.train, 10, SKETCHES.rank, SKETCHES.minimum))
        for who, device in devices.items()
    }
    bare = {
        who: {label: replace(one, residual=torch.zeros(())) for label, one in parts.items()}
        for who, parts in told.items()
    }
    x, y = draw(told, counts, SKETCHES.draws, round_info.generator("draws"))
    plain, _ = draw(
        bare, counts, SKETCHES.draws, round_info.generator("draws")
    )  # the same draws without residual noise
    images = [device.data.train for device in devices.values()]
    real = torch.cat([part.inputs() for part in images]), torch.cat([part.y for part in images])

    def answers(name: str, inputs: torch.Tensor) -> torch.Tensor:
        parts = torch.split(inputs, 2048)
        return torch.cat([combine([predict(m, kinds[name], part, 256) for m in models[name]], votes) for part in parts])

    def share(logits: torch.Tensor) -> float:
        return float((logits.argmax(1) == test.y).double().mean())

    def student(name: str, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        targets = targets_of(labels, answers(name, inputs).exp(), SKETCHES.hard)
        params = learn(kinds[name], inputs, targets, SKETCHES.training, round_info)
        return predict(params, kinds[name], test.x, 256).softmax(1)

    mlp, cnn = (student(name, x, y) for name in ("mlp", "cnn"))
    return {
        **{f"best {name}": max(accuracy(m, kinds[name], test) for m in models[name]) for name in NETS},
        **{f"ensemble of {name}s": share(answers(name, test.x)) for name in NETS},
        "mlp on draws": share(mlp),
        "cnn on draws": share(cnn),
        "cnn and mlp on draws, their mean": share(cnn + mlp),
        "cnn, draws without residual noise": share(student("cnn", plain, y)),
        "cnn, residual noise smoothed": share(student("cnn", plain + smoothed(x - plain), y)),
        "cnn, draws clipped": share(student("cnn", x.clamp(0, 1), y)),
        "cnn on the real images": share(student("cnn", *real)),
    }


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("FEDCORE_DATA", "datasets")
    mnist = fc.load("mnist", root=folder, download=False)
    for seed in range(int(sys.argv[2]) if len(sys.argv) > 2 else 1):
        for what, value in measure(mnist, seed).items():
            print(f"seed {seed}: {what:<36} {value:.3f}", flush=True)
