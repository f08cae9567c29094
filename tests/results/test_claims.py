"""A claim's rule is read, or refused in one line."""

import pytest

from fedcore.errors import InputError
from fedcore.results.claims import Claim


@pytest.mark.parametrize(
    "rule",
    [
        *("", "good", "good >", "good beats fair", "good > fair and", "good ~ fair", "good rises", "a - b - c > d"),
        *("good stays within 1 with net pairwise", "good > fair pairwise", "good pairwise falls with net"),
        *("0.9 > 0.8", "0.9 rises with round", "good > 0.9 - 0.1", "good > .", "0.5 < good"),
    ],
)
def test_a_rule_that_cannot_be_read_is_refused(rule):
    with pytest.raises(InputError, match="must be one of"):
        Claim("said", rule)


@pytest.mark.parametrize("of", ["", "accuracy", "mean of test.accuracy", "std test.accuracy", "worst of accuracy"])
def test_an_of_that_cannot_be_read_is_refused(of):
    with pytest.raises(InputError, match="must be a split and a metric"):
        Claim("said", "good > fair", metric=of)


def test_labels():
    assert Claim("said", "0.5 > a - b").labels == {"a", "b"}
    assert Claim("said", "10_rounds > 10").labels == {"10_rounds"}
    assert Claim("said", "a - b ~ c - d within 1e-3").labels == {"a", "b", "c", "d"}
    assert Claim("said", "a rises with round").labels == {"a"}
    assert Claim("said", "mu=0.1 > fedprox/mu=1 - mu=0").labels == {"mu=0.1", "fedprox/mu=1", "mu=0"}
