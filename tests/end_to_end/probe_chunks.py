"""Compare a method's rounds as cached steps with the library's loop; returns the results."""

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import probe_work as work
import torch
from prefect import flow

from fedcore import Data, Device, Federation, Method, Splits, Training
from fedcore.core import rounds as library
from fedcore.core.rounds import RoundResult, deployments
from fedcore.execute.workers import Inline, Workers
from fedcore.methods import method
from fedcore.nets import net
from fedcore.pipeline import environment
from fedcore.pipeline.cache.store import Store, refs
from fedcore.pipeline.orchestration.graph import Graph
from fedcore.pipeline.run import chunks
from fedcore.pipeline.run.run_method import deploy_models

SGD = Training(optimiser="sgd", lr=0.1, momentum=0.5, weight_decay=0.0, schedule="constant", batch=8, epochs=1)
NET = net("mlp", shape=(5,), classes=3, widths=[6, 4])
NETS = dict.fromkeys("abcd", NET)
EXAM = {"rank_by": "validation", "solver": "newton", "reg": 0.05, "tol": 1e-7, "max_iterations": 1000, "p": 1}


def federation() -> Federation:
    """Four devices of different sizes, and one without validation examples."""

    def data(count: int, seed: int) -> Data:
        g = torch.Generator().manual_seed(seed)
        y = torch.randint(0, 3, (count,), generator=g)
        return Data(torch.randn(count, 5, generator=g) + y[:, None], y)

    sizes = {"a": (20, 6), "b": (31, 5), "c": (12, 0), "d": (40, 9)}
    devices = {
        name: Device(name, NET, Splits(data(train, i), data(val, 10 + i), data(7, 20 + i)))
        for i, (name, (train, val)) in enumerate(sizes.items())
    }
    return Federation(devices, data(30, 99), 3)


def stored(fed: Federation, store: Store) -> Federation:
    """The same federation as in the pipeline: devices hold references."""
    devices = {name: Device(name, device.net, store.put(device.data)) for name, device in fed.devices.items()}
    return Federation(devices, store.put(fed.test), fed.classes)


def fedavg(rounds: int, fraction: float = 1.0, shared_init: bool = True) -> Method:
    return method(
        "fedavg", nets=NETS, training=SGD, shared_init=shared_init, rounds=rounds, fraction=fraction, weights="size"
    )


def code(rounds: int) -> Method:
    return method("code_ot", nets=NETS, training=SGD, shared_init=False, rounds=rounds, order="ascending", **EXAM)


def scaffold(rounds: int) -> Method:
    return method(
        "scaffold", nets=NETS, training=replace(SGD, momentum=0.0), shared_init=True, rounds=rounds, fraction=0.5
    )


METHODS = {
    "one round": fedavg(1), "many rounds": fedavg(5),
    "some devices per round": fedavg(5, fraction=0.5, shared_init=False), "one shot": code(1), "few shots": code(3),
    "nothing sent": method("local_only", nets=NETS, training=SGD, shared_init=False),
}  # fmt: skip


def said(rounds: list[RoundResult]) -> str:
    """Return all results of some rounds except the state."""
    return repr([(r.round_info, dict(r.up), dict(r.down), r.scores) for r in rounds])


def near(rounds: list[RoundResult], others: list[RoundResult]) -> bool:
    """Tell whether two runs are equal. A tensor's place in memory may change the last bit of a float32 loss."""
    traffic = [[(r.round_info, dict(r.up), dict(r.down)) for r in run] for run in (rounds, others)]
    numbers = [[x for r in run for x in flat(r.scores)] for run in (rounds, others)]
    return traffic[0] == traffic[1] and all(
        mine == his or math.isclose(mine, his, rel_tol=1e-6) or (math.isnan(mine) and math.isnan(his))
        for mine, his in zip(*numbers, strict=True)
    )


def flat(scores: Any) -> list[float]:
    return [x for part in scores.values() for x in flat(part)] if isinstance(scores, dict) else [scores or 0.0]


def models(chosen: Method, fed: Federation, last: RoundResult, store: Store) -> str:
    """Return every device's deployed model, to the last bit."""
    found = {}
    for names, (deploy, memory, message) in deployments(chosen, fed, last.state):
        made = deploy(store.get(memory), store.get(message))
        found |= {n: [{k: tensor.tolist() for k, tensor in part.items()} for part in made.members] for n in names}
    return json.dumps(dict(sorted(found.items())))


class Play:
    """Successive runs of the pipeline, each with its own steps on the same cache."""

    def __init__(self, store: Store, pool: Workers, fed: Federation) -> None:
        self.store, self.pool, self.fed = store, pool, fed

    def rounds(self, chosen: Method, seed: int, every: int = 1) -> Iterator[RoundResult]:
        self.steps = Graph(self.store, self.pool)
        return chunks.rounds(chosen, self.fed, seed, self.steps, every)

    def whole(self, one: RoundResult) -> bool:
        """Tell whether all of a round's state is stored."""
        return all(self.store.holds(ref) for ref in refs(chunks.stored_parts(one.state)))

    def forget(self, one: RoundResult) -> None:
        """Delete a round's state, except the parts that existed before the first round."""
        begun = refs(chunks.stored_parts(library.begin(scaffold(1), self.fed, one.round_info.seed, self.steps)))
        Graph(self.store, self.pool).drop(chunks.stored_parts(one.state), keep=[*begun])

    def computed(self, kind: str) -> tuple[int, int]:
        steps = [step for step in self.steps.done if step.kind == kind]
        return sum(not step.cached for step in steps), len(steps)


def personal(rounds: int) -> Method:
    return method("ditto", nets=NETS, training=SGD, shared_init=True, rounds=rounds)


def let_go(play: Play, plain: Federation) -> dict[str, Any]:
    """Three rounds of a method whose devices keep models of their own, which go at the run's end."""

    def ended(rounds: int) -> RoundResult:
        return list(play.rounds(personal(rounds), 9))[-1]

    def exact(rounds: int) -> str:
        last = list(library.run(personal(rounds), plain, 9, Inline()))[-1]
        made = [store.get(store.put(deploy(memory, message))) for _, (deploy, memory, message) in
                deployments(personal(rounds), plain, last.state)]  # fmt: skip
        return repr([sorted((name, tensor.tolist()) for name, tensor in one.members[0].items()) for one in made])

    def deployed(last: RoundResult) -> str:
        made, _ = deploy_models(play.steps, personal(0), play.fed, last.state)
        return repr(
            [
                sorted((name, tensor.tolist()) for name, tensor in store.get(one).members[0].items())
                for one in made.values()
            ]
        )

    store = play.store
    first = ended(3)
    play.steps.evict_cheap()
    found: dict[str, Any] = {"gone": [store.holds(ref) for ref in refs(dict(first.state.memories))]}
    last = ended(3)
    found["again"] = play.computed("rounds")
    found["deployed"] = deployed(last) == exact(3)
    play.steps.evict_cheap()
    last = ended(5)
    found["longer"] = [play.computed("rounds"), deployed(last) == exact(5)]
    chunks.CHUNK = 0.0
    long = ended(2)
    play.steps.evict_cheap()
    found["long"] = play.whole(long)
    return found


def kept(play: Play, plain: Federation) -> dict[str, Any]:
    """Five rounds of scaffold, a chunk each: which checkpoints stay, and which steps run without them."""
    chosen, longer = scaffold(5), scaffold(8)
    first = list(play.rounds(chosen, 7))
    found: dict[str, Any] = {"whole": [play.whole(one) for one in first]}

    def again(method: Method = chosen) -> list[Any]:
        rounds = list(play.rounds(method, 7))
        same = models(method, play.fed, rounds[-1], play.store)
        exact = list(library.run(method, plain, 7, Inline()))
        return [play.computed("rounds"), same == models(method, plain, exact[-1], play.store)]

    found["again"] = again()
    play.forget(first[-1])
    found["without the last"] = again()
    for one in first:
        play.forget(one)
    found["without any"] = again()
    play.forget(list(play.rounds(chosen, 7))[3])
    found["longer"] = again(longer)
    begun = play.rounds(chosen, 8)
    third = [next(begun) for _ in range(3)][-1]
    begun.close()
    play.forget(third)
    rounds = list(play.rounds(chosen, 8))
    found["gone when going on"] = [play.computed("rounds"), near(rounds, list(library.run(chosen, plain, 8, Inline())))]

    made = play.steps(work.bare, "given")
    play.steps.drop(made, keep=())
    found["given"] = play.store.holds(made)
    other = Graph(play.store, play.pool)
    other.drop(made, keep=[made])
    found["but"] = play.store.holds(made)
    other.drop(made, keep=())
    found["dropped"] = play.store.holds(made)
    return found


@flow(persist_result=False)
def find() -> dict[str, Any]:
    found: dict[str, Any] = {}
    plain = federation()
    with Workers(2) as pool:
        store = Store(environment.BLOBS)
        play = Play(store, pool, stored(plain, store))

        def plainly(chosen: Method, seed: int, every: int = 1) -> list[RoundResult]:
            return list(library.run(chosen, plain, seed, Inline(), every=every))

        for name, chosen in METHODS.items():
            for every in (1, 2) if name in ("many rounds", "few shots") else (1,):
                runs = []
                for chunk in (30.0, 0.0):  # all rounds in one chunk; a chunk for each
                    chunks.CHUNK = chunk
                    shutil.rmtree(environment.STEPS, ignore_errors=True)
                    runs.append(list(play.rounds(chosen, 1, every)))
                    found[f"{name}, every {every}, chunks of {chunk:g}"] = play.computed("rounds")
                reference = plainly(chosen, 1, every)
                found[f"{name}, every {every}"] = {
                    "any chunks": said(runs[0]) == said(runs[1]),
                    "the library's": near(runs[0], reference),
                    "evaluated": [one.scores is not None for one in runs[0]],
                    "models": len(
                        {models(chosen, play.fed, run[-1], store) for run in runs}
                        | {models(chosen, plain, reference[-1], store)}
                    ) == 1,
                }  # fmt: skip

        chunks.CHUNK = 0.0
        # Interrupted: the run stops after two of five rounds and starts again.
        interrupted = play.rounds(fedavg(5), 3)
        next(interrupted), next(interrupted)
        interrupted.close()
        first = play.computed("rounds")
        whole = list(play.rounds(fedavg(5), 3))
        second = play.computed("rounds")
        found["interrupted"] = [first, second, near(whole, plainly(fedavg(5), 3))]

        chunks.CHUNK = 30.0
        # A longer run continues a shorter one.
        list(play.rounds(fedavg(2), 4))
        longer = list(play.rounds(fedavg(6), 4))
        counts = play.computed("rounds")
        found["longer"] = [counts, near(longer, plainly(fedavg(6), 4))]
        # A shorter run cannot use a chunk that goes too far.
        list(play.rounds(fedavg(6), 5))
        shorter = list(play.rounds(fedavg(3), 5))
        found["shorter"] = [near(shorter, plainly(fedavg(3), 5))]
        list(play.rounds(fedavg(3), 5))
        found["shorter"].append([play.computed(kind) for kind in ("rounds", "evaluate")])

        found["let go"] = let_go(play, plain)

        chunks.CHUNK = 0.0
        found["kept"] = kept(play, plain)

        # One-shot methods share their training, whatever follows it.
        list(play.rounds(code(1), 6))
        trained = play.computed("train")
        list(play.rounds(METHODS["nothing sent"], 6))
        found["shared training"] = [trained, play.computed("train")]
        list(play.rounds(code(3), 6))
        found["few shots go on"] = [play.computed("train"), play.computed("fuse")]
    return found
