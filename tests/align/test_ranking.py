import math

import torch
from federations import NET, NETS, data, federation, model

from fedcore.align.ranking import begin, rank_ascending
from fedcore.local import accuracy
from fedcore.messages import initial_messages
from fedcore.types import Data, Update


def biased(guess):
    """A model that says the same class to everything."""
    params = {name: torch.zeros_like(leaf) for name, leaf in model().items()}
    params["fc3.bias"][guess] = 1.0
    return params


def test_the_least_accurate_comes_first_and_equal_ones_go_by_name():
    scores = {"d": 0.5, "a": 0.9, "c": 0.1, "b": 0.5}
    assert rank_ascending({}, {name: Update(score=score) for name, score in scores.items()}, NETS) == [
        "c",
        "b",
        "d",
        "a",
    ]


def test_nothing_speaks_for_a_model_that_was_not_scored():
    scores = {"a": math.nan, "b": 0.0, "c": math.nan}
    assert rank_ascending({}, {name: Update(score=score) for name, score in scores.items()}, NETS) == ["a", "c", "b"]


def test_an_exam_on_the_servers_test_set_overrules_what_devices_say():
    examples = Data(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 1, 2, 2, 2]))
    updates = {name: Update(biased(k), score=1.0 - k) for k, name in enumerate("abc")}
    assert rank_ascending({}, updates, NETS) == ["c", "b", "a"]
    assert [accuracy(updates[name].params, NET, examples) for name in "abc"] == [1 / 6, 2 / 6, 3 / 6]
    assert rank_ascending({"exam/x": examples.x, "exam/y": examples.y}, updates, NETS) == ["a", "b", "c"]


def test_an_exam_without_examples_leaves_the_order_of_names():
    none = data(0)
    updates = {name: Update(biased(0), score=score) for name, score in (("b", 0.1), ("a", 0.9))}
    assert rank_ascending({"exam/x": none.x, "exam/y": none.y}, updates, NETS) == ["a", "b"]


def test_the_server_keeps_its_test_set_only_for_an_exam():
    public = federation().public
    for common in (True, False):
        sent = initial_messages(public, 0, common=common)[1]
        server, messages = begin(public, 0, common=common, exam="validation")
        assert server == {}
        assert messages.keys() == sent.keys()
        server, messages = begin(public, 0, common=common, exam="test")
        assert server["exam/x"] is public.test.x
        assert server["exam/y"] is public.test.y
        torch.testing.assert_close(messages["a"].params, sent["a"].params, rtol=0, atol=0)
