"""YAML files and values, read by the rules of YAML 1.2; what would exhaust the memory is refused."""

import re
from contextlib import suppress
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, ScalarEvent

from fedcore.errors import InputError

DEPTH, VALUES = 50, 100_000
"""The deepest nesting of a YAML file, and its most values, those of its aliases written out."""

TAG = "tag:yaml.org,2002:"
WHOLE = re.compile(r"[-+]?(0|[1-9]\d*)", re.ASCII)


def _whole_number(_: Any, node: Any) -> int | str:
    """Return a whole number, or the text where it is written as a name may be: 01, 1_000, 0x10."""
    return int(node.value) if WHOLE.fullmatch(node.value) else str(node.value)


VALUES_OF_YAML: Any = type("Values", (SafeConstructor,), {})
"""What makes the values of a file."""
VALUES_OF_YAML.add_constructor(f"{TAG}int", _whole_number)
NAMES = ("exclude", "features", "ignore", "categorical", "label", "device", "id", "missing_values", "positive")
"""Settings of names: numbers and days stay texts there, unless Python writes them alike: 1.50, +1, 2024-01-02."""
TIGHT = re.compile(r"""("[^"]*"|'[^']*')|([{,]\s*[^\s:,{}"'][^:,{}]*):(?=[^\s/])""")
"""A name and a colon without a blank after it, but in quotes (the first group) or before a path."""
KEYED = ("costs", "budget")
"""Settings whose keys are names."""
READS: Any = {"int": _whole_number, "float": lambda _, node: float(node.value), "timestamp": lambda *_: None}


def _keep_names(node: Any, of: str) -> None:
    """Let names in a value be texts. of: the setting whose value it is."""
    reads = READS.get(node.tag.removeprefix(TAG))
    if of in NAMES and reads and node.value[-1:].isdigit() and str(reads(None, node)) != node.value:
        node.tag = f"{TAG}str"
    for part in node.value if isinstance(node.value, list) else ():
        if isinstance(part, tuple):
            _keep_names(part[0], NAMES[0] if of in KEYED else "")
            _keep_names(part[1], of if of in KEYED else str(part[0].value).rpartition(".")[2])
        else:
            _keep_names(part, of)


def template() -> Path:
    """Return the folder with the files of a project: in an installed package, or in fedcore's own repository."""
    package = Path(__file__).parents[1]
    return package / "template" if (package / "template").is_dir() else package.parent


def read_mapping(path: Path, content: str) -> dict[str, Any]:
    """Read a YAML file that holds a mapping. content: what it should hold, for messages."""
    try:
        values = _load(path.read_text("utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; run this in the project's folder") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except (YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not YAML: {_message(error)}") from None
    if not isinstance(values, dict):
        raise InputError(f"{path}: must hold {content}, has {type(values).__name__}")
    return values


def parse_value(key: str, text: str) -> Any:
    """Return a typed YAML value; raises InputError, which names the key.

    In a mapping no blank is needed after a colon: {a:1} is {a: 1}, where YAML has the name "a:1" without a value.
    """
    of, found = key.rpartition(".")[2], list[Any]()
    for words in (text, *[TIGHT.sub(lambda tight: tight[1] or f"{tight[2]}: ", text)] * (text[:1] == "{")):
        with suppress(YAMLError):
            found.append(_load(words, True, of))  # libyaml refuses a colon in a list: [methods:median, fedavg]
    if not found:
        example = {"[": "[a, b]", "{": "{a: {b: 1}}"}.get(text[:1])
        quotes = f"; if it has blanks, put quotes around it: '{key}={example}'" if example else ""
        raise InputError(f"{key} = {text!r}: not a YAML value{quotes}")
    return found[-1] if _lacks_value(found[0]) else found[0]


def _lacks_value(value: Any) -> bool:
    """Tell whether a mapping has a name with a colon and without a value."""
    pairs = value.items() if isinstance(value, dict) else ()
    return any((of is None and ":" in str(name)) or _lacks_value(of) for name, of in pairs)


def _load(text: str, pure: bool = False, of: str = "") -> Any:
    """Return the values of a YAML text, as a copy that may be changed. Raises YAMLError."""
    return deepcopy(_parse(text, pure, of))


@lru_cache(64)  # a run reads all studies several times
def _parse(text: str, pure: bool, of: str) -> Any:
    _check_size(text, pure)
    try:
        reader = YAML(typ="safe", pure=pure)  # by libyaml: the parser in Python takes five times as long
        reader.Constructor = VALUES_OF_YAML
        if node := reader.compose(text):
            _keep_names(node, of)
        return reader.constructor.construct_document(node) if node else None
    except (ValueError, TypeError, AttributeError, OverflowError) as error:  # such as a day that is none
        raise YAMLError(str(error)) from None


def _check_size(text: str, pure: bool) -> None:
    """Refuse what would take too much memory or never end, before anything is built."""
    total, opened, sizes = 0, list[tuple[str | None, int]](), dict[str, int]()
    for event in YAML(typ="safe", pure=pure).parse(text):
        match event:
            case AliasEvent():
                if sizes.get(event.anchor) == 0:
                    raise YAMLError(f"the alias *{event.anchor} refers to what contains it")
                total += sizes.get(event.anchor, 1)
            case ScalarEvent() | CollectionStartEvent():
                total += 1
                if event.anchor is not None:
                    sizes[event.anchor] = int(isinstance(event, ScalarEvent))  # 0: not ended
                if isinstance(event, CollectionStartEvent):
                    opened.append((event.anchor, total))
            case CollectionEndEvent():
                anchor, before = opened.pop()
                if anchor is not None:
                    sizes[anchor] = total - before + 1
        if len(opened) > DEPTH:
            raise YAMLError(f"nested more than {DEPTH} deep")
        if total > VALUES:
            raise YAMLError(f"more than {VALUES} values, those of aliases written out")


def _message(error: Exception) -> str:
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem} (line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1})"
    return " ".join(str(error).split())
