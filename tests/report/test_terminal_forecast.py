"""What a run would cost, in the terminal."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from fedcore.errors import InputError
from fedcore.report.terminal import CostEstimate, print_forecast

ONE = CostEstimate("code", "lmf", 1200, 200, 90.25, 2e9, frozenset(), anew=90.25)


def printed(*rows: CostEstimate) -> list[list[str]]:
    out = StringIO()
    print_forecast(rows, console=Console(file=out, width=100))
    return [line.split() for line in out.getvalue().splitlines() if line.strip()]


def test_a_method_is_one_line_over_its_settings_and_seeds():
    lines = printed(ONE, ONE, replace(ONE, method="code_ot", steps=5, cached=5, seconds=0.0))
    assert ["code", "lmf", "2,400", "400", "180.5", "4", "GB"] in lines
    assert ["code", "code_ot", "5", "5", "0.0", "2", "GB"] in lines
    assert ["all", "2,405", "405", "180.5", "6", "GB"] in lines
    assert " ".join(lines[-6]) == "Seconds are medians of earlier steps here."
    assert " ".join([*lines[-3], *lines[-2]]).startswith(
        "Bytes are estimates: methods of several stages and boosted trees "
    )


def test_start_and_record_are_those_of_the_last_run_or_a_range():
    top = "Starting and recording come on top: "
    assert f"{top}10 to 60 s, and up to 2 s for each method and seed.".split() in printed(ONE)
    out = StringIO()  # its 21 runs and the 48 without a device, which are not counted
    print_forecast([ONE], console=Console(file=out, width=100), beside=(136.0, 21), runs=490)
    assert f"{top}about 16 min for 490 methods and seeds, by the last run here." in out.getvalue()
    for row, sum_is in ((ONE, "about"), (replace(ONE, unknown=frozenset({"train"})), "over")):
        out = StringIO()
        print_forecast([row], console=Console(file=out, width=100), beside=(68.0, 29), runs=600)
        said = f"{top}about 20 min for 600 methods and seeds, by the last run here.\nIn all: {sum_is} 22 min.\n"
        assert said in out.getvalue()


def test_runs_without_a_device_are_counted():
    said = [" ".join(line) for line in printed(ONE, *[replace(ONE, method="lmf without each device", without=40)] * 2)]
    assert "For a new device: 80 runs without a device; run.new_device=shared skips them." in said


def test_a_plan_without_a_step_to_compute_says_so():
    read = [" ".join(line) for line in printed(replace(ONE, cached=1200, seconds=3.5))]
    assert "code lmf 1,200 1,200 3.5 2 GB" in read
    assert "Nothing to compute: seconds are of reading the cache." in read


def test_a_kind_of_step_that_has_no_time_is_named():
    lines = printed(ONE, replace(ONE, study="dfl", unknown=frozenset({"train", "fuse"})))
    assert [line[4] for line in lines if line[:2] in (["code", "lmf"], ["dfl", "lmf"])] == ["90.2", "90.2+"]
    assert "Not run here, and left out (+): 2 kinds of steps." in [" ".join(line) for line in lines]


def test_before_anything_has_run_seconds_are_not_known():
    lines = [" ".join(line) for line in printed(replace(ONE, seconds=0.0, unknown=frozenset({"train"})))]
    assert "code lmf 1,200 200 not known 2 GB" in lines
    assert "Seconds are not known yet: nothing has run here. Run one seed first: add seed=0" in lines


def test_a_sum_with_rows_that_may_stop_may_be_less():
    out = StringIO()
    print_forecast([ONE], stops_rows=True, console=Console(file=out, width=100))
    assert out.getvalue().endswith("Fewer if methods that cannot win stop after three seeds (run.stop_rows).\n")


def test_bounds_have_no_column_of_what_is_cached_and_say_what_they_are():
    lines = [" ".join(line) for line in printed(ONE, ONE.times(9, bound=True))]
    assert "code lmf 12,000 902.5 20 GB" in lines
    assert "study method steps seconds traffic" in lines
    assert any(line.startswith("Not all is looked up: a long run's first rounds stand for all") for line in lines)
    lines = [" ".join(line) for line in printed(ONE.times(9, bound=True), replace(ONE, unknown=frozenset({"fuse"})))]
    assert "to compute for all later ones. Steps are thus upper bounds." in " ".join(lines)
    assert "Not run here, and left out (+): 1 kind of steps." in lines


def test_what_cannot_run_is_named_with_the_reason_or_refused():
    refused = replace(ONE, method="fedavg", steps=0, cached=0, seconds=0.0, traffic=0.0, refused="rounds: too many")
    lines = [" ".join(line) for line in printed(ONE, refused, refused)]
    assert lines.count("code: fedavg is left out: rounds: too many") == 1
    assert not any(line.startswith("code fedavg") for line in lines)
    with pytest.raises(InputError, match=r"^rounds: too many$"):
        printed(refused)


def test_nothing_to_run_is_no_error():
    assert ["all", "0", "0", "0.0", "0"] in printed()
