"""Features of devices' test examples from the shared parts of their models, in two dimensions (FedASA, Fig. 13)."""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedcore.core.prediction import IMAGE_BATCH
from fedcore.errors import InputError
from fedcore.nets.copies import load
from fedcore.nets.parts import depth_of, features, max_depth, require_comparable
from fedcore.types.federation import Data, Device, Params
from fedcore.types.method import Message, Model

POINTS = 600
"""Approximate maximum number of embedded examples, taken evenly from all devices."""

COMPONENTS = 50
"""Principal components used as t-SNE's input, as its authors recommend."""


def embed(
    models: Mapping[str, Model], messages: Mapping[str, Message], devices: Mapping[str, Device], *, seed: int
) -> dict[str, Tensor]:
    """Return xy (N, 2) float64, class numbers y (N,) and device (N,), the device's position in `devices`.

    Features are the output of the last shared part: the deepest cell up to which `messages` has all tensors; without
    any, the deepest cell. They are flattened and embedded together by t-SNE (van der Maaten and Hinton 2008),
    perplexity 30. The same values give the same bits.

    Raises InputError for a net that is not a sequence, features of different sizes, several models on a device,
    features that are the same for all examples, or fewer than four examples.
    """
    step = -(-sum(len(device.data.test) for device in devices.values()) // POINTS) or 1
    features, labels, owners = [], [], []
    for i, (name, device) in enumerate(devices.items()):
        require_comparable(device.net)
        if len(models[name].params) > 1:
            raise InputError("features: a device runs several models, which have no features in common")
        if models[name].net is not None:
            raise InputError("features: a device runs a net that is not its own, and has no part that is shared")
        depth = depth_of(device.net, messages[name].params)
        test = Data(device.data.test.x[::step], device.data.test.y[::step])
        features += [shared(device, models[name].params[0], depth if depth >= 0 else max_depth(device.net), test)]
        labels.append(test.y)
        owners.append(torch.full_like(test.y, i))
    if len({x.shape[1] for x in features if len(x)}) > 1:
        raise InputError("features: the devices' shared parts end in features of different sizes")
    x = torch.cat([x for x in features if len(x)] or features)
    if len(x) < 4:
        raise InputError(f"features: there are {len(x)} test examples, t-SNE needs four")
    if bool((x == x[0]).all()):
        raise InputError("features: they are the same for all examples")
    return {"xy": tsne(x, seed), "y": torch.cat(labels), "device": torch.cat(owners)}


def shared(device: Device, model: Params, depth: int, data: Data) -> Tensor:
    """Return the output of the cell at a depth, (N, D)."""
    module = load(device.net, model).eval()
    with torch.no_grad():
        parts = [
            features(device.net, module, data.inputs(slice(start, start + IMAGE_BATCH)))[depth].flatten(1)
            for start in range(0, len(data), IMAGE_BATCH)
        ]
    return torch.cat(parts) if parts else torch.empty(0, 0)


def tsne(x: Tensor, seed: int) -> Tensor:
    """Embed points (N, D) in two dimensions, (N, 2) float64, in one thread, as sums depend on their order."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        points = x.double().numpy()
        if min(points.shape) > COMPONENTS:
            points = PCA(COMPONENTS, svd_solver="randomized", random_state=seed).fit_transform(points)
        plane = TSNE(perplexity=min(30.0, (len(points) - 1) / 3), init="pca", random_state=seed)
        return torch.from_numpy(plane.fit_transform(points)).double()
