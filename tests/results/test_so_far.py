from __future__ import annotations

from fedcore.results.so_far import Leader, SoFar


def leader(label: str, validation: float) -> Leader:
    return Leader(label, validation, f"{validation:.0%}")


def test_a_line_comes_with_a_row_of_each_kind_and_for_each_that_leads():
    first = SoFar()
    assert first.add(leader("local_only", 0.8), combines=False) is None
    assert first.add(leader("fedavg", 0.7), combines=True) == (
        "  so far: fedavg 70%, local_only (alone) 80%; one seed decides nothing"
    )
    assert first.add(leader("fedprox", 0.7), combines=True) is None
    assert first.add(leader("ditto", 0.9), combines=True) == (
        "  so far: ditto 90%, local_only (alone) 80%; one seed decides nothing"
    )


def test_without_training_alone_there_is_no_line():
    assert SoFar().add(leader("fedavg", 0.7), combines=True) is None
