"""Parts of a flow are killed, the flow is asked to end, its server is stopped, or an equal flow runs beside it."""

from __future__ import annotations

from scenarios import Hurt

from tasks.config.command import CONTINUE


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
