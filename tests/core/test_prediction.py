"""Predictions of several devices' examples at once: the bits of one after another, and fewer passes."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from fedcore import nets
from fedcore.core import prediction
from fedcore.core.prediction import predict, predict_all
from fedcore.execute.workers import one_thread
from fedcore.types.federation import Net
from fedcore.types.method import generator

SIZES = [*range(1, 13), 4, 8, 8, 8, 15, 16, 24, 31, 33, 40, 4, 70]


class AmongOthers(nn.Module):
    """A net of a user's own whose answer depends on what else is in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x - x.mean(0))


class Padded(nn.Module):
    """A user's encoder, which takes PyTorch's fast path in evaluation: it writes 0 at padded places."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encode, self.fc = nn.TransformerEncoder(layer, 1), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        padded = (x[..., 0] > 1).long().cummax(1).values.bool()
        return self.fc(self.encode(x, src_key_padding_mask=padded).mean(1))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_users_net_predicts_by_the_calls_of_its_own_evaluation():
    net, x = Net(Padded, content="own"), torch.randn(40, 5, 8, generator=generator("x"))
    x[:, 0] = 0.0  # the first place of an example is never padded
    params, plain = nets.init(net, generator("params")), Padded().eval()
    plain.load_state_dict(params)
    with torch.no_grad():
        torch.testing.assert_close(predict(params, net, x, 40), plain(x), rtol=0, atol=1e-6)
    assert not torch.allclose(plain(x), predict(params, net, x, 40), atol=1e-2), "with gradients it takes another path"


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (nets.net("mlp", shape=(8,), classes=3), (8,)),
        (nets.net("lenet", shape=(1, 28, 28), classes=10), (1, 28, 28)),
        (nets.net("dfl_cnn", shape=(1, 28, 28), classes=10), (1, 28, 28)),
        (Net(AmongOthers), (8,)),
    ],
    ids=["mlp", "lenet", "dfl_cnn", "own"],
)
@pytest.mark.slow
def test_several_parts_have_the_bits_of_one_after_another(net: Net, shape: tuple[int, ...], monkeypatch):
    passes = []
    real = prediction._filled

    def count(batches: Sequence[Tensor], size: int) -> Tensor:
        passes.append(len(batches))
        return real(batches, size)

    monkeypatch.setattr(prediction, "_filled", count)
    monkeypatch.setattr(prediction, "WORTH", 4)
    monkeypatch.setattr(prediction, "_ALIKE", {})
    params = nets.init(net, generator("params"))
    parts = [torch.randint(0, 256, (size, *shape), dtype=torch.uint8, generator=generator(size)) for size in SIZES]
    with one_thread():
        alone = [predict(params, net, x, 1024) for x in parts]
        found = predict_all(params, net, parts, 1024)
    assert all(map(torch.equal, alone, found))
    assert bool(prediction._ALIKE) == (net.build is not AmongOthers)
    assert not passes or prediction._ALIKE
    if prediction._ALIKE and all(prediction._ALIKE.values()):  # on some processors a convolution's bits depend on it
        assert max(passes) > 1
