"""YAML files: YAML 1.2's numbers, and what is refused before it takes the memory or the stack."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from project_params import refusal

from fedcore.config.files import parse_value, read_mapping

BOMB = "\n".join(f"{b}: &{b} [{','.join(10 * [f'*{a}'])}]" for a, b in pairwise("abcdefghi"))
"""Each line ten times the one before."""
MERGE_BOMB = "\n".join(f"{b}: &{b} {{<<: [{','.join(10 * [f'*{a}'])}]}}" for a, b in pairwise("abcdefghi"))


def written(folder: Path, content: str) -> Path:
    path = folder / "some.yaml"
    path.write_text(content)
    return path


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("a: &a [*a]\n", "the alias *a refers to what contains it"),
        ("a: &a\n  b: {c: *a}\n", "the alias *a refers to what contains it"),
        ("a: " + "[" * 10_000 + "]" * 10_000, "nested more than 50 deep"),
        ("a: " + "[" * 100_000, "nested more than 50 deep"),
        ("- " * 10_000 + "a", "nested more than 50 deep"),
        ("? " * 10_000, "nested more than 50 deep"),
        ("a: &a [1,1,1,1,1,1,1,1,1,1]\n" + BOMB, "more than 100000 values"),
        ("a: &a {x: 1, y: 1}\n" + MERGE_BOMB, "more than 100000 values"),
        ("a: 1\nb: 2\na: 3\n", 'found duplicate key "a"'),
        ("a: {b: 1, b: 2}\n", 'found duplicate key "b"'),
        ("a: *b\n", "found undefined alias (line 1, column 4)"),
        ("a: [\n", "(line 2, column 1)"),
        ("a: 1999-99-99\n", "month"),
        ("a: !!python/object/apply:os.getpid []\n", "python/object"),
        ("a: \0", "control characters"),
        ("- a\n", "must hold keys, has list"),
        ("", "must hold keys, has NoneType"),
    ],
)
def test_what_would_hang_or_break_is_refused_in_one_line(tmp_path: Path, content: str, says: str):
    line = refusal(read_mapping, written(tmp_path, content), "keys")
    assert says in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("+3", 3), ("010", 10), ("1e-3", 1e-3), ("1e-07", 1e-7), ("1.0e+20", 1e20), ("-0.5E3", -500.0),
        ("5.", 5.0), (".inf", float("inf")), ("true", True), ("False", False), ("yes", "yes"), ("no", "no"),
        ("on", "on"), ("1:30", "1:30"), ("1e", "1e"), ("", None), ("null", None), ("~", None), ("[1, a]", [1, "a"]),
    ],
)  # fmt: skip
def test_values_are_those_of_yaml_1_2(text: str, value: Any):
    """YAML 1.1 reads 010 as 8, 1:30 as 90, yes as true, and 1e-3 as a text."""
    parsed = parse_value("key", text)
    assert (parsed, type(parsed)) == (value, type(value))


def test_a_typed_value_that_is_no_yaml_is_refused_by_its_key():
    assert refusal(parse_value, "net.widths", "[1") == "net.widths: '[1' is not a YAML value"


def test_keys_of_a_merged_anchor_may_be_said_again(tmp_path: Path):
    assert read_mapping(written(tmp_path, "a: &a {x: 1, y: 1}\nb: {<<: *a, y: 2}\n"), "keys")["b"] == {"x": 1, "y": 2}


def test_what_was_read_can_be_changed_and_a_changed_file_is_read(tmp_path: Path):
    """Texts are parsed once; nobody else has the values."""
    path = written(tmp_path, "a: &x {b: [1]}\nc: *x\n")
    read_mapping(path, "keys")["a"]["b"].append(2)
    assert read_mapping(path, "keys") == {"a": {"b": [1]}, "c": {"b": [1]}}
    path.write_text("a: {b: [3]}\n")
    assert read_mapping(path, "keys") == {"a": {"b": [3]}}
