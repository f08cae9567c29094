"""Pools: each domain is divided by itself."""

import numpy as np
from partitions import DOMAINS, FROM_DATA, LABELS, LEAVES_OUT, OWNERS, SETTINGS, dataset, equal, everything, refusal

from fedcore.partition import PARTITIONS, partition


def test_split_domains_are_limited_alike_for_each_device():
    """A small domain gives what it has; the examples of a domain do not depend on alpha."""
    marks = ["west" if i < 40 else "east" for i in range(200)]
    asked = {**SETTINGS, "domains": "split", "shared_test": 0.0, "min_size": 1}
    kept = {}
    for alpha in (1.0, 100.0):
        made = partition(dataset(LABELS, domains=marks), **{**asked, "alpha": alpha}, examples=120)
        sizes = {who: sum(map(len, parts.values())) for who, parts in made.devices.items()}
        assert sizes["east-00"] + sizes["east-01"] == 60
        assert sizes["west-00"] + sizes["west-01"] == 40
        kept[alpha] = sorted(int(i) for parts in made.devices.values() for index in parts.values() for i in index)
    assert kept[1.0] == kept[100.0]


def test_split_domains_keep_every_device_in_one():
    data = dataset(LABELS, OWNERS, None, DOMAINS)
    for name in sorted(set(PARTITIONS) - set(FROM_DATA)):
        made = partition(data, **{**SETTINGS, "name": name, "devices": 5, "domains": "split"})
        assert everything(made).tolist() == list(range(200)) or name in LEAVES_OUT
        assert list(made.devices) == ["east-00", "east-01", "east-02", "west-00", "west-01"]
        for who, own in made.devices.items():
            assert {DOMAINS[i] for index in own.values() for i in index} == {who[:4]}
        assert [DOMAINS[i] for i in made.shared].count("east") == 25  # a fifth of each domain's 125 and 75
        assert len(made.shared) == 40


def test_mixed_domains_are_not_looked_at():
    names = [dataset(LABELS), dataset(LABELS, None, None, DOMAINS)]
    assert equal(*(partition(data, **SETTINGS) for data in names))


def test_a_domain_is_divided_apart_from_the_others():
    """What one domain holds and how it is divided does not depend on another one, but each has draws of its own."""
    whole = dataset(LABELS, None, None, DOMAINS)
    more = dataset(np.arange(240) % 5, None, None, [*DOMAINS, *["west"] * 40])
    one, other = (partition(data, **{**SETTINGS, "domains": "split"}).devices for data in (whole, more))
    for who in ("east-00", "east-01"):
        assert {k: v.tolist() for k, v in one[who].items()} == {k: v.tolist() for k, v in other[who].items()}
    twins = dataset(np.arange(400) // 2 % 5, None, None, ["east", "west"] * 200)
    made = partition(twins, **{**SETTINGS, "domains": "split", "shared_test": 0.0}).devices
    assert len(made["east-00"]["train"]) != len(made["west-00"]["train"])


def test_devices_go_to_domains_in_turn_as_long_as_there_is_room():
    domains = ["a"] * 100 + ["b"] * 24 + ["c"] * 76
    asked = {"name": "iid", "shared_test": 0.0, "domains": "split", "min_size": 10}
    for devices, expected in {3: (1, 1, 1), 4: (2, 1, 1), 8: (3, 2, 3), 9: (4, 2, 3), 16: (7, 2, 7)}.items():
        made = partition(dataset(LABELS, None, None, domains), **{**SETTINGS, **asked, "devices": devices})
        firsts = [who[0] for who in made.devices]
        assert tuple(map(firsts.count, "abc")) == expected
    data = dataset(LABELS, None, None, domains)
    assert "federation.devices = 2: must be at least 3, one for each domain" in refusal(data, **asked, devices=2)
    assert "federation.devices = 30: must be at most 19" in refusal(data, **asked, devices=30)
    line = refusal(data, **{**asked, "min_size": 25}, devices=4)
    assert "federation.min_size = 25: domain 'b' has 24 examples" in line


def test_a_refusal_names_the_domain():
    owners = [f"w{i % 2}" if i < 100 else f"v{i % 9}" for i in range(200)]
    data = dataset(LABELS, owners, None, ["few"] * 100 + ["many"] * 100)
    line = refusal(data, name="by_writer", devices=6, domains="split")
    assert line.startswith("federation.devices = 3: must be 1 to 2, the number of writers")
    assert line.endswith("(in domain 'few')")
    for name in FROM_DATA:
        assert f"must be mixed with federation.partition = '{name}'" in refusal(data, name=name, domains="split")
