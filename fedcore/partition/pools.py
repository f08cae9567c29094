"""Pools: the examples that are divided separately, of each device, of each domain, or all together."""

from collections.abc import Callable, Mapping

import numpy as np

from fedcore.data import Dataset
from fedcore.errors import InputError
from fedcore.partition.held_out import draw
from fedcore.partition.schemes import Index, by_device, by_domain, draws

FROM_DATA = ("by_device", "by_domain")


EVERYONE = "everyone"


def pools_of(dataset: Dataset, name: str, domains: str) -> dict[str, Index]:
    """Return the examples to divide separately: of each device, of each domain, or of all together."""
    if domains == "split":
        if name in FROM_DATA:
            raise InputError(f"federation.domains = 'split': must be mixed with federation.partition = {name!r}")
        if dataset.domain is None:
            raise InputError("federation.domains = 'split': must be mixed, the data name no domains")
        return by_domain(dataset.domain)
    if name == "by_device":
        return by_device(dataset.device)
    if name == "by_domain":
        return by_domain(dataset.domain)
    return {EVERYONE: np.arange(len(dataset.train))}


def limit_pools(
    pools: Mapping[str, Index], labels: Index, limit: int, devices: int, min_size: int, domains: str, seed: int
) -> dict[str, Index]:
    """Keep at most `limit` examples of all pools; of split domains each keeps its devices' part."""
    if domains != "split":
        return _limit_examples(pools, labels, limit, draws(seed, "examples"))
    numbers = devices_per_pool(pools, devices, min_size)
    return {
        who: _limit_examples({who: pool}, labels, round(limit * numbers[who] / devices), draws(seed, who))[who]
        for who, pool in pools.items()
    }


def _limit_examples(
    pools: Mapping[str, Index], labels: Index, examples: int, rng: np.random.Generator
) -> dict[str, Index]:
    """Keep at most `examples` examples of all pools together."""
    everything = np.concatenate(list(pools.values()))
    chosen = np.zeros(len(labels), dtype=bool)
    chosen[draw(everything, labels, min(examples, len(everything)), rng, whole=True)[0]] = True
    return {who: index[chosen[index]] for who, index in pools.items()}


def devices_per_pool(pools: Mapping[str, Index], devices: int, min_size: int) -> dict[str, int]:
    """Return the number of devices of each domain, assigned in turn while it has min_size examples for one more."""
    if devices < len(pools):
        raise InputError(f"federation.devices = {devices}: must be at least {len(pools)}, one for each domain")
    numbers = dict.fromkeys(pools, 0)
    for placed in range(devices):
        room = [who for who, index in pools.items() if len(index) >= (numbers[who] + 1) * min_size]
        if not room:
            raise InputError(
                f"federation.devices = {devices}: must be at most {placed}, so many devices of federation.min_size = "
                f"{min_size} examples find room in the domains"
            )
        numbers[min(room, key=numbers.__getitem__)] += 1
    for who, number in numbers.items():
        if not number:
            raise InputError(
                f"federation.min_size = {min_size}: domain {who!r} has {len(pools[who])} examples; lower it"
            )
    return numbers


def divide_pools(
    divided: Callable[[Index, int, int], dict[str, Index]], pools: Mapping[str, Index], numbers: Mapping[str, int],
    seed: int,
) -> dict[str, Index]:  # fmt: skip
    """Divide each domain, by separate random draws, among devices named after it."""
    own: dict[str, Index] = {}
    for domain, number in numbers.items():
        try:
            shares = divided(pools[domain], number, int(draws(seed, "domain", domain).integers(2**63)))
        except InputError as refused:
            raise InputError(f"{refused} (in domain {domain!r})") from None
        own |= {f"{domain}{who.removeprefix('device')}": index for who, index in shares.items()}
    return own
