"""The seconds of a round that DFL prints (Section IV-B3: ResNet-20 on FEMNIST), as bytes over one link's rate."""

import pytest
import torch

from fedcore import Data, Device, Federation, Splits, Training, nets
from fedcore.config.params import read
from fedcore.config.studies import find_study
from fedcore.core.rounds import run
from fedcore.execute.workers import Inline
from fedcore.methods import method
from fedcore.results import tidy

SECONDS = {"dfl": 0.36, "scaffold": 0.71, "fedgen": 0.48}
DOWN = {"dfl": 963.0, "scaffold": 1924.4, "fedgen": 1653.3}
UP = {"dfl": 963.0, "scaffold": 1924.4, "fedgen": 962.2}
"""Kilobytes, as printed; FedGen's generator is sent down only."""


def rates(sizes: dict[str, float]) -> tuple[float, float]:
    """The rates in KB/s at which every method takes its printed seconds, rounded to hundredths: least and greatest."""
    least = max(sizes[name] / (seconds + 0.005) for name, seconds in SECONDS.items())
    return least, min(sizes[name] / (seconds - 0.005) for name, seconds in SECONDS.items())


def test_the_printed_seconds_fit_one_rate_both_ways_and_none_one_way():
    least, greatest = rates({name: UP[name] + DOWN[name] for name in SECONDS})
    link = find_study(read(), "dfl_table4").link
    assert least < link / 1000 < greatest
    assert greatest / least < 1.01
    least, greatest = rates(DOWN)
    assert least > greatest


@pytest.mark.slow
def test_our_bytes_take_the_printed_seconds():
    """To 4 %: Table IV's generator is that of ten classes; SCAFFOLD has no variate for batch norm's statistics."""
    net = nets.net("resnet20", shape=(1, 28, 28), classes=62, bottleneck=True)
    draw = torch.Generator().manual_seed(0)
    examples = Data(torch.rand(4, 1, 28, 28, generator=draw), torch.arange(4))
    none = Data(examples.x[:0], examples.y[:0])
    fed = Federation({name: Device(name, net, Splits(examples, none, none)) for name in "ab"}, examples, 62, none)
    training = Training(optimiser="sgd", lr=0.01, batch=4, epochs=1)
    own = {"dfl": {}, "scaffold": {}, "fedgen": {"noise": 64, "hidden": 512, "steps": 1}}
    for name, settings in own.items():
        built = method(name, nets=dict.fromkeys("ab", net), training=training, shared_init=True, rounds=3, **settings)
        played = list(run(built, fed, 0, Inline(), every=3))
        rows = tidy.rows(tidy.Row("s", "d", "base", name, 0), played, [one.report for one in played], {})
        seconds = tidy.transfer_seconds(rows, 5.4e6)
        assert seconds[seconds["round"] == 2]["value"].mean() == pytest.approx(SECONDS[name], rel=0.04)
