"""Descriptions that fit into MLflow."""

from fedcore.pipeline.record.contents import NOTE, REST, shorten_note


def test_a_long_description_ends_before_a_table_and_names_the_page() -> None:
    table = "\n".join(["| row | 0.123 |"] * 200)
    head, *tables = "Which?\n\n**An answer**", *(f"### {name}\n\n{table}" for name in ("first", "second", "third"))
    note = "\n\n".join([head, *tables])
    assert len(note) > NOTE
    assert shorten_note(note) == "\n\n".join([head, *tables[:2], REST])
    assert shorten_note(note[:NOTE]) == note[:NOTE]
    assert shorten_note("?" * (NOTE + 1)) == REST
