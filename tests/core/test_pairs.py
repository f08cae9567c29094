"""Two sides of a step, in one place."""

import torch

from fedcore.core.pairs import converse


def side(place, words, heard):
    """Say so many words; tell at the end how many one has heard."""
    received = yield {}
    for word in words:
        heard += list(received)
        received = yield {word: torch.zeros(1)}
    heard += list(received)
    return {"place": torch.tensor(place), "count": torch.tensor(len(heard))}


def test_each_side_hears_what_the_other_said_last():
    one, other = [], []
    results = converse(side(0, "ace", one), side(1, "bdf", other))
    assert (one, other) == ([*"bdf"], [*"ace"])
    assert [(int(result["place"]), int(result["count"])) for result in results] == [(0, 3), (1, 3)]


def test_a_side_that_ends_first_says_nothing_more():
    one, other = [], []
    results = converse(side(0, "abcd", one), side(1, "x", other))
    assert (one, other) == ([*"x"], [*"ab"])
    assert [int(result["place"]) for result in results] == [0, 1]
