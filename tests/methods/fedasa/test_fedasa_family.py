"""FedASA and what it is compared with: what each sends on the paper's net, and that they run on other data and nets."""

from dataclasses import replace
from functools import cache

import pytest
from federations import bits
from signals import ADAM, WHOLE
from signals import federation as signals

from fedcore import Device, Federation, Method, load, nets
from fedcore.core.rounds import run
from fedcore.execute.workers import Inline
from fedcore.methods import method
from fedcore.partition import partition, splits

ONCE = replace(ADAM, epochs=1)
AVERAGED = {"fraction": 1.0}
FEDASA = {"alignment_rounds": 1, "auxiliary": None, "steps": 2, "distance": "printed", "personal_lr": None}

STEM, CELL, ALL, BUT_LAST = 10_464, 12_352, 323_434, 322_144
"""Numbers of Table VI: 10.46 K, the steps from there to 59.87 K, 323.43 K and FedPer's 322.14 K."""

SENT = {
    "local_only": ("fixed_depth", {"depth": None, "personal_lr": None}, 0),
    "fedavg": ("fedavg", {**AVERAGED, "weights": "size"}, ALL),
    "fedprox": ("fedprox", {**AVERAGED, "mu": 0.01}, ALL),
    "ditto": ("ditto", {**AVERAGED, "strength": 0.01}, ALL),
    "fedper": ("fedper", {"personal_lr": None}, BUT_LAST),
    **{f"alpha_{m}": ("fixed_depth", {"depth": m, "personal_lr": None}, STEM + m * CELL) for m in range(5)},
}
"""row -> method, its settings, and how many parameters each device sends in a round."""


def built(name: str, fed: Federation, rounds: int, **memory: object) -> Method:
    return method(name, nets=fed.public.nets, training=ONCE, shared_init=True, rounds=rounds, **memory)


@pytest.mark.slow
@pytest.mark.parametrize("row", SENT)
def test_bytes_are_shared_parameters_times_four(row):
    """Up in each round what is shared, down at first the whole common model, then what is shared, and so at the end."""
    name, memory, shared = SENT[row]
    fed = signals("ab", WHOLE, (1, 512))
    one, two = run(built(name, fed, 2, **memory), fed, 0, Inline())
    assert one.up == two.up == dict.fromkeys("ab", 4 * shared)
    assert one.down == dict.fromkeys("ab", 4 * ALL)
    assert two.down == dict.fromkeys("ab", 4 * 2 * shared)


@pytest.mark.slow
@pytest.mark.parametrize("cell", range(5))
def test_fedasa_sends_from_the_stem_to_all_cells_and_never_the_head(cell):
    """10.46 K to 59.87 K parameters: all cells while depths are found, those found after; 81.49 % less than all."""
    fed = signals("ab", WHOLE, (1, 512))
    one, two, three = run(built("fedasa", fed, 3, cell=cell, budget=None, **FEDASA), fed, 0, Inline())
    assert one.up == dict.fromkeys("ab", 4 * (STEM + 4 * CELL))
    depths = {name: int(one.report.devices["alignment"][name]["depth"]) for name in "ab"}
    assert two.up == three.up == {name: 4 * (STEM + depths[name] * CELL) for name in "ab"}
    assert two.down == two.up
    assert three.down == {name: 2 * count for name, count in three.up.items()}
    assert all(4 * 10_464 <= count <= 4 * 59_872 for count in {*one.up.values(), *two.up.values()})
    assert round(100 * (1 - max(one.up.values()) / (4 * ALL)), 2) == 81.49


@pytest.mark.slow
@pytest.mark.parametrize("depth", range(5))
def test_fedasa_under_a_budget_sends_no_more_in_any_round(depth):
    fed, budget = signals("ab", WHOLE, (1, 512)), 4 * (STEM + depth * CELL)
    rounds = list(
        run(built("fedasa", fed, 2, cell=4, budget=[budget, budget + 4 * CELL - 1], **FEDASA), fed, 0, Inline())
    )
    assert rounds[0].up == {"a": budget, "b": budget}
    assert all(count <= budget for one in rounds for count in one.up.values())


# Other data and nets: the digits, by a table of layers and by images

NETS = {"mlp": {"widths": [16, 8]}, "cnn": {"maps": [4, 8], "kernel": 3, "padding": "same", "hidden": [16]}}
LAYERS = {"mlp": (1040, 136, 90), "cnn": (40, 296, 528, 170)}
"""Parameters of each layer, by hand: 64 x 16 + 16, 16 x 8 + 8, 8 x 10 + 10; 9 x 4 + 4, 36 x 8 + 8, 32 x 16 + 16, ..."""


@cache
def digits(net: str) -> Federation:
    data = load("digits")
    made = partition(
        data, seed=0, name="dirichlet", devices=4, alpha=1.0, min_size=30, examples=700, share=0.8, val=0.2, test=0.2,
        shared_test=0.2, domains="mixed", unlabelled=0.0, hidden=0.0,
    )  # fmt: skip
    held, shared = splits(data, made)
    architecture = nets.net(net, shape=(1, 8, 8), classes=10, **NETS[net])
    return Federation({name: Device(name, architecture, memory) for name, memory in held.items()}, shared, 10)


def shares(net: str) -> dict[str, int]:
    *most, last = LAYERS[net]
    return {
        **dict.fromkeys(("fedavg", "fedprox", "ditto"), sum(most) + last), "fedper": sum(most), "local_only": 0,
        **{f"alpha_{m}": sum(most[: m + 1]) for m in range(len(most))},
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("net", "row"), [(net, row) for net in NETS for row in shares(net)])
def test_baselines_learn_the_digits(net, row):
    name, memory, _ = SENT[row]
    fed = digits(net)
    rounds = list(run(built(name, fed, 6, **memory), fed, 0, Inline()))
    for one in rounds:
        assert one.up == dict.fromkeys(fed.devices, 4 * shares(net)[row])
    first, last = (sum(one.scores[d]["test"]["loss"] for d in fed.devices) / 4 for one in (rounds[0], rounds[-1]))
    assert last < 0.8 * first
    assert sum(rounds[-1].scores[d]["test"]["accuracy"] for d in fed.devices) / 4 > 0.5


@pytest.mark.slow
def test_random_depths_on_the_digits():
    fed = digits("cnn")
    rounds = list(run(built("fixed_depth", fed, 2, depth="random", personal_lr=None), fed, 3, Inline()))
    depths = {4 * shares("cnn")[f"alpha_{m}"] for m in range(3)}
    assert set(rounds[0].up.values()) <= depths
    assert len(set(rounds[0].up.values())) > 1
    assert bits(rounds[0].up) == bits(rounds[1].up)
