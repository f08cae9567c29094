"""Flows of two machines on one bucket: their results, what is harmed there, and pruning meanwhile."""

from __future__ import annotations

import pytest
from scenarios import Bucket


@pytest.fixture
def used(bucket: Bucket | None) -> Bucket:
    if bucket is None:
        pytest.skip("moto or s3fs is not installed: no bucket")
    return bucket


def test_two_flows_at_once_have_the_results_of_one_without_a_bucket(used: Bucket):
    assert used.results["here"] == used.results["there"] == used.results["alone"] != {}


def test_harmed_blobs_of_a_bucket_are_computed_again(used: Bucket):
    """Only those: the other steps of a machine that has lost all of its blobs are taken from the bucket."""
    assert len(used.harmed) == 4
    computed = used.again.computed()
    assert 0 < len(computed) < len(used.again.steps)
    assert len({step["key"] for step in computed}) == len(computed)
    assert used.results["again"] == used.results["alone"]
    assert used.whole == used.harmed


def test_a_bucket_in_use_is_not_pruned(used: Bucket):
    assert (used.pruned.code, used.pruned.out) == (2, "")
    assert used.pruned.err.startswith("fedcore: the store s3://everyones/fedcore is in use by a flow on ")
