"""A flow or its parts are killed or stopped, an equal one runs beside it, or the bucket of two machines is harmed."""

import pytest
from scenarios import Bucket, Hurt

from fedcore.pipeline.command import CONTINUE


def test_a_flow_outlives_its_server_a_worker_and_the_records_process(hurt: Hurt):
    assert hurt.healed.said is not None
    assert hurt.healed.said.code == 0, hurt.healed.said.err
    assert hurt.healed.said.err == "fedcore: the Prefect server was gone; it was started again\n"
    assert hurt.healed.record == hurt.calm.record


def test_two_equal_flows_leave_the_record_of_one(hurt: Hurt):
    """Runs, points, model versions, models and inputs, none of them twice."""
    assert hurt.twins.record == hurt.calm.record
    assert hurt.calm.record["inputs"] > hurt.calm.record["models"] > 0


def test_of_two_equal_flows_one_computes_a_step_and_the_other_takes_it(hurt: Hurt):
    computed = [step["key"] for step in hurt.twins.computed()]
    assert len({*computed}) == len(computed)
    assert {*computed} == {step["key"] for step in hurt.calm.computed()}


def test_whatever_was_killed_the_results_are_the_same(hurt: Hurt):
    assert hurt.same


def test_a_flow_that_is_asked_to_end_says_one_line_and_leaves_nothing(hurt: Hurt):
    assert (hurt.ended.code, hurt.ended.err) == (143, f"fedcore: stopped; {CONTINUE}\n")
    assert hurt.left == []


def test_a_flow_whose_server_is_stopped_says_one_line_and_goes_on_later(hurt: Hurt):
    line = f"fedcore: the Prefect server was stopped; {CONTINUE}\n"
    assert (hurt.alone.code, hurt.alone.err) == (1, line)
    assert len(hurt.again.computed("train")) < hurt.again.count("train")


def test_a_flow_on_a_dask_cluster_outlives_a_worker(hurt: Hurt):
    """It computes the same steps, each once, and says where the cluster is."""
    assert hurt.spread.said is not None
    assert (hurt.spread.said.code, hurt.spread.said.err) == (0, "")
    assert hurt.spread.said.out.startswith("dask: 2 workers, http://127.0.0.1:")
    keys = [step["key"] for step in hurt.spread.computed()]
    assert len(keys) == len({*keys})
    assert {*keys} == {step["key"] for step in hurt.calm.computed()}
    assert hurt.spread.record == hurt.calm.record


def test_a_plan_counts_the_steps_of_a_run_and_those_in_the_cache(hurt: Hurt):
    """Before: none has a time. After: the traffic of each method as it was."""
    steps = len({step["key"] for step in hurt.calm.steps})
    before, after = (
        {words[0]: words[1:] for line in plan.splitlines() if (words := line.split())[:1] in (["all"], ["code"])}
        for plan in hurt.plans
    )
    assert before["all"][:4] == [str(steps), "0", "not", "known"]
    assert after["all"][:3] == [str(steps), str(steps), "0.0"]
    assert "Run one seed first: add seed=0\n" in hurt.plans[0]
    assert "+" not in hurt.plans[1]


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
