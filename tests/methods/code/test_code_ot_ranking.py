import math
from dataclasses import replace

import pytest
import torch
from federations import NBYTES, NET, NETS, SGD, data, federation, last, model

from fedcore import Data, Device, Splits, StepId, Update, initial_messages
from fedcore.core.training import accuracy
from fedcore.methods import method
from fedcore.methods.code.code_ot import (
    CLASS_HITS,
    begin_ranking,
    class_scores,
    count_hits,
    rank_ascending,
    ranked_method,
)
from fedcore.pipeline.cache.keys import key


def biased(guess):
    """A model that says the same class to everything."""
    params = {name: torch.zeros_like(tensor) for name, tensor in model().items()}
    params["fc3.bias"][guess] = 1.0
    return params


def test_the_least_accurate_comes_first_and_equal_ones_go_by_name():
    scores = {"d": 0.5, "a": 0.9, "c": 0.1, "b": 0.5}
    assert rank_ascending({}, {name: Update(score=score) for name, score in scores.items()}, NETS) == [
        "c", "b", "d", "a",
    ]  # fmt: skip


def test_nothing_speaks_for_a_model_that_was_not_scored():
    scores = {"a": math.nan, "b": 0.0, "c": math.nan}
    assert rank_ascending({}, {name: Update(score=score) for name, score in scores.items()}, NETS) == ["a", "c", "b"]


def test_an_exam_on_the_servers_test_set_overrules_what_devices_say():
    examples = Data(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 1, 2, 2, 2]))
    updates = {name: Update(biased(k), score=1.0 - k) for k, name in enumerate("abc")}
    assert rank_ascending({}, updates, NETS) == ["c", "b", "a"]
    assert [accuracy(updates[name].params, NET, examples) for name in "abc"] == [1 / 6, 2 / 6, 3 / 6]
    assert rank_ascending({"test/x": examples.x, "test/y": examples.y}, updates, NETS) == ["a", "b", "c"]


def test_an_exam_without_examples_leaves_the_order_of_names():
    none = data(0)
    updates = {name: Update(biased(0), score=score) for name, score in (("b", 0.1), ("a", 0.9))}
    assert rank_ascending({"test/x": none.x, "test/y": none.y}, updates, NETS) == ["a", "b"]


def test_the_server_keeps_its_test_set_only_for_an_exam():
    public = federation().public
    for shared_init in (True, False):
        sent = initial_messages(public, 0, shared_init=shared_init)[1]
        server, messages = begin_ranking(public, 0, shared_init=shared_init, rank_by="validation")
        assert server == {}
        assert messages.keys() == sent.keys()
        server, messages = begin_ranking(public, 0, shared_init=shared_init, rank_by="test")
        assert server["test/x"] is public.test.x
        assert server["test/y"] is public.test.y
        torch.testing.assert_close(messages["a"].params, sent["a"].params, rtol=0, atol=0)


def device(y):
    examples = Data(torch.randn(len(y), 4, generator=torch.Generator().manual_seed(0)), torch.tensor(y))
    return Device("a", NET, Splits(data(3), examples, data(3)))


def test_marks_are_counts_of_what_a_model_gets_right():
    marked = count_hits(Update(biased(1), {"more": torch.ones(1)}, 7, 0.5), device([0, 1, 1, 2]), StepId(0, 0, 0, "a"))
    assert marked.extra[CLASS_HITS].tolist() == [[1, 2, 1], [0, 2, 0]]
    assert set(marked.extra) == {"more", CLASS_HITS}
    assert (marked.size, marked.score) == (7, 0.5)
    nothing = count_hits(
        Update(biased(1)), replace(device([0]), data=Splits(data(3), data(0), data(3))), StepId(0, 0, 0, "a")
    )
    assert nothing.extra[CLASS_HITS].tolist() == [[0, 0, 0], [0, 0, 0]]


def test_class_scores_by_hand():
    hits = {"one class": torch.tensor([[9, 0, 0], [9, 0, 0]]), "all": torch.tensor([[2, 3, 4], [1, 3, 2]])}
    shares = [11 / 18, 3 / 18, 4 / 18]
    scores = class_scores(hits)
    assert scores["one class"] == pytest.approx(shares[0] * 9 / 10)
    assert scores["all"] == pytest.approx(shares[0] * 1 / 3 + shares[1] * 3 / 4 + shares[2] * 2 / 5)


def test_a_device_that_knows_one_class_ranks_behind_one_that_knows_all():
    """Although it is never wrong about its own examples."""
    updates = {
        "a": Update(biased(0), {CLASS_HITS: torch.tensor([[9, 0, 0], [9, 0, 0]])}, score=1.0),
        "b": Update(biased(1), {CLASS_HITS: torch.tensor([[6, 6, 6], [5, 5, 4]])}, score=14 / 18),
    }
    assert rank_ascending({}, updates, NETS) == ["a", "b"]
    assert rank_ascending({}, {name: replace(update, extra={}) for name, update in updates.items()}, NETS) == ["b", "a"]


def test_without_any_validation_example_names_decide():
    hits = torch.zeros(2, 3, dtype=torch.int64)
    assert rank_ascending({}, {name: Update(biased(0), {CLASS_HITS: hits}) for name in "ba"}, NETS) == ["a", "b"]


@pytest.mark.slow
def test_marks_travel_only_for_their_exam_and_training_is_the_same():
    stages = {rank_by: ranked_method(SGD, len, rank_by).stages[0] for rank_by in ("classes", "validation", "test")}
    assert [stage.attach for stage in stages.values()] == [count_hits, None, None]
    assert len({key(stage.local) for stage in stages.values()}) == 1
    sent = {}
    for rank_by in stages:
        one = last(method("best_local", nets=NETS, training=SGD, shared_init=False, rank_by=rank_by), federation())
        sent[rank_by] = set(one.up.values())
    assert sent == {"classes": {NBYTES + 2 * 3 * 8}, "validation": {NBYTES}, "test": {NBYTES}}
