"""A step's key: equal where the result must be, different where it may be."""

import ast
import gc
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial, wraps
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import process_forks
import pytest
import torch
from project import Project

from fedcore import InputError, Net, Stage, StepId, Training
from fedcore.methods import METHODS
from fedcore.pipeline.cache import keys
from fedcore.pipeline.cache.keys import Digest, key
from fedcore.pipeline.cache.store import Ref

# sources, on packages that the tests write


STEP = '''
"""A module."""
import math
from typing import NamedTuple
import keyed_beside
import numpy as np
from .helpers import near, unused
from . import helpers, deep
from .deep import tables
from fedcore.types.method import step_word

LIMIT = 3
REST = 4

@step_word("walk")
def step(x, *, rate=1):
    """Do a step."""
    # a remark
    return near(x) + LIMIT + helpers.far(x) + tables.WEIGHTS["a"] + other(x) + keyed_beside.own(x)

def other(x):
    def inner(y):
        """Do it inside."""
        from .helpers import half
        return half(y) * math.pi
    return inner(x)

def apart(x):
    return unused(x) + REST

class Shape(NamedTuple):
    """A class."""
    side: int = LIMIT

    def area(self):
        return near(self.side)
'''
HELPERS = """
from .deep.tables import WEIGHTS as weights, spell

def near(x):
    return x + 1

def far(x):
    return below(x) + len(spell(x))

def below(x):
    return x * 2 + len(weights)

def half(x):
    return x / 2

def unused(x):
    return x * 3
"""
TABLES = """
WEIGHTS = {"a": 1}
WEIGHTS["b"] = 2
OTHER = {"c": 3}
WEIGHTS.update(d=4)
try:
    from json import dumps as written
except ImportError:
    raise

if True:
    def spell(x):
        return written(x) + "!"
"""
BESIDE = """
def own(x):
    return x + 1

def idle(x):
    return x
"""


class Package:
    """A package whose source is written and written again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "keyed"
        self.files = {"__init__.py": "", "steps.py": STEP, "helpers.py": HELPERS, "deep/__init__.py": "",
                      "deep/tables.py": TABLES, "../keyed_beside.py": BESIDE}  # fmt: skip
        self.write({})
        self.steps = import_module("keyed.steps")

    def write(self, changes: dict[str, tuple[str, str]]) -> None:
        for name, text in self.files.items():
            old, new = changes.get(name, ("", ""))
            assert old in text, f"{name}: no {old!r}"
            path = self.folder / name
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_text(text.replace(old, new, 1) if old else text)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(tmp_path)
    yield Package(tmp_path)
    for name in [name for name in sys.modules if name.startswith("keyed")]:
        del sys.modules[name]
    for part in (keys.source, keys._definitions, keys._find):
        part.cache_clear()


REACHED = {
    "its own body": ("steps.py", "+ LIMIT", "- LIMIT"), "its default": ("steps.py", "rate=1", "rate=2"),
    "a constant": ("steps.py", "LIMIT = 3", "LIMIT = 5"), "a function beside it": ("steps.py", "math.pi", "math.e"),
    "an imported function": ("helpers.py", "x + 1", "x + 2"),
    "a function of an imported module": ("helpers.py", "below(x)", "below(-x)"),
    "a function that one inside imports": ("helpers.py", "x / 2", "x / 3"),
    "a function behind it": ("helpers.py", "x * 2", "x * 4"),
    "a table, through two modules": ("deep/tables.py", '"a": 1', '"a": 2'),
    "a table, by a line that fills it": ("deep/tables.py", '["b"] = 2', '["b"] = 3'),
    "a table, by a call that fills it": ("deep/tables.py", "d=4", "d=5"),
    "a function of a module beside its package": ("../keyed_beside.py", "x + 1", "x + 2"),
    "a function under a condition": ("deep/tables.py", '"!"', '"?"'),
    "where a name of another package comes from": ("deep/tables.py", "import dumps", "import loads"),
    "where a name comes from": ("steps.py", "from .helpers import near", "from .helpers import far as near"),
}  # fmt: skip
WITHOUT = {
    "a comment": ("steps.py", "# a remark", "# another"),
    "its word": ("steps.py", '"walk"', '"run"'),
    "its docstring": ("steps.py", "Do a step.", "Take a step, differently."),
    "the docstring of a function inside": ("steps.py", "Do it inside.", "Do it there."),
    "the module's docstring": ("steps.py", "A module.", "Another."),
    "layout": ("steps.py", "near(x) + LIMIT + helpers", "(near(x)\n        +   LIMIT) + helpers"),
    "a function that it does not reach": ("helpers.py", "x * 3", "x * 5"),
    "a constant that it does not reach": ("steps.py", "REST = 4", "REST = 5"),
    "a table that it does not reach": ("deep/tables.py", '"c": 3', '"c": 4'),
    "a class that it does not reach": ("steps.py", "int = LIMIT", "int = 2 * LIMIT"),
    "a function that it does not reach beside its package": ("../keyed_beside.py", "x\n", "-x\n"),
    "an import that it does not use": ("steps.py", "import math\n", "import math\nimport json\n"),
}


def changed(package: Package, file: str, old: str, new: str, name: str = "step") -> str:
    package.write({file: (old, new)})
    for part in (keys.source, keys._definitions, keys._find):
        part.cache_clear()
    return key(getattr(package.steps, name), 1)


@pytest.mark.parametrize("what", REACHED)
@pytest.mark.slow
def test_source_that_a_step_uses_changes_its_key(package: Package, what: str):
    before = changed(package, "steps.py", "", "")
    assert changed(package, *REACHED[what]) != before
    assert changed(package, "steps.py", "", "") == before


@pytest.mark.parametrize("how", ["from keyed import fast", "from keyed.fast import two", "import keyed.fast"])
def test_a_compiled_module_changes_the_key_by_its_bytes(package: Package, how: str, monkeypatch: pytest.MonkeyPatch):
    used = {"import keyed.fast": "keyed.fast.two"}.get(how, how.split()[-1])
    (package.folder / "steps.py").write_text(f"{how}\ndef step(x):\n    return {used}\n")
    file, found = package.folder / f"fast{EXTENSION_SUFFIXES[0]}", []
    monkeypatch.setitem(sys.modules, "keyed.fast", SimpleNamespace(__file__=str(file)))
    for content in (b"\0one", b"\0two", b"\0one"):
        file.write_bytes(content)
        for part in (keys.source, keys._definitions, keys._find):
            part.cache_clear()
        found.append(keys.source("keyed.steps", "step"))
    assert found[0] == found[2] != found[1]


REGISTRY = "TABLE = {}\ndef register(fn):\n    TABLE[fn.__name__] = fn\n    return fn\n"
NET = "def net(x):\n    return scale(x)\n"
SCALE = "def scale(x):\n    return 2 * x\n"
INDIRECT = {
    "registered by a decorator": (f"{REGISTRY}@register\n{SCALE}def net(x):\n    return TABLE['scale'](x)\n", ""),
    "imported by a star": ("from keyed.indirect import *\ndef net(x):\n    return scale(x)\n", SCALE),
    "named as a builtin": (f"{SCALE.replace('scale', 'filter')}def net(x):\n    return filter(x)\n", ""),
    "taken by getattr": (
        "from keyed import indirect\ndef net(x, of='scale'):\n    return getattr(indirect, of)(x)\n", SCALE),
    "imported in a with": (
        "import contextlib\nwith contextlib.suppress(ImportError):\n    from keyed.indirect import scale\n"
        "def net(x):\n    return scale(x)\n", SCALE),
    "taken from globals": (f"{SCALE}def net(x, of='scale'):\n    return globals()[of](x)\n", ""),
    "taken from this module by sys": (
        f"import sys\n{SCALE}def net(x, of='scale'):\n    return getattr(sys.modules[__name__], of)(x)\n", ""),
    "taken from this module by sys under another name": (
        f"from sys import modules as m\n{SCALE}def net(x, of='scale'):\n    return vars(m[__name__])[of](x)\n", ""),
    "taken from another module by sys": (
        "import sys, keyed.indirect\ndef net(x):\n    return sys.modules['keyed.indirect'].scale(x)\n", SCALE),
    "taken from a module by sys that another imports": (
        "from sys import modules\nfrom keyed import helpers\n"
        "def net(x):\n    return modules.get('keyed.indirect').scale(x)\n", SCALE),
    "taken from this module's variables by sys": (
        f"import sys\n{SCALE}def net(x, of='scale'):\n    return vars(sys.modules[__name__])[of](x)\n", ""),
    "named in a text that is evaluated": (
        "from keyed import indirect\ndef net(x):\n    return eval('indi' + 'rect.scale')(x)\n", SCALE),
    "named in a text that is executed": (
        "import keyed.indirect as i\nexec('f = i.scale')\ndef net(x):\n    return f(x)\n", SCALE),
    "named in a text, of this module": (f"{SCALE}def net(x):\n    return eval('sca' + 'le')(x)\n", ""),
    "named in a text that is evaluated by builtins": (
        f"import builtins\n{SCALE}def net(x):\n    return builtins.eval('sca' + 'le')(x)\n", ""),
    "imported by its path": (
        "from importlib.util import module_from_spec, spec_from_file_location\n"
        "s = spec_from_file_location('other', 'keyed/indirect.py')\n"
        "m = module_from_spec(s)\ns.loader.exec_module(m)\ndef net(x):\n    return m.scale(x)\n", SCALE),
    "imported by its path beside the file": (
        "import importlib.util as u\nfrom pathlib import Path\n"
        "def net(x):\n    s = u.spec_from_file_location('other', Path(__file__).parent / 'indirect.py')\n"
        "    s.loader.exec_module(m := u.module_from_spec(s))\n    return m.scale(x)\n", SCALE),
    "of a module with another name": ("import keyed.indirect as i\nj = i\ndef net(x):\n    return j.scale(x)\n", SCALE),
    "set from outside": (
        "from keyed import indirect\nindirect.S = 2\ndef net(x):\n    return indirect.S * x\n", "S = 1\n"),
    "imported in a class": (
        "class Net:\n    from keyed import indirect\ndef net(x):\n    return Net().indirect.scale(x)\n", SCALE),
    "imported by a function for all": (
        f"def load():\n    global scale\n    from keyed.indirect import scale\nload()\n{NET}", SCALE),
    "one of two by its name": (
        "try:\n    from keyed.indirect import scale\nexcept ImportError:\n    from .helpers import far as scale\n"
        + NET, SCALE),
    "imported for what it sets": (
        "import keyed.indirect\nfrom keyed import deep\ndef net(x):\n    return deep.S * x\n",
        "from keyed import deep\ndeep.S = 2\n"),
    "seen by a metaclass": (
        "from keyed.indirect import Base\nclass A(Base):\n    s = 2\ndef net(x):\n    return Base.of[0].s * x\n",
        "class Base(metaclass=type):\n    of = []\n"),
    "imported by importlib's function under another name": (
        "from importlib import import_module as get\ndef net(x):\n    return get(name='keyed.indirect').scale(x)\n",
        SCALE),
    "of a file that is named as Python's": ("import sched\ndef net(x):\n    return sched.scale(x)\n", SCALE),
    "of a file that is named as a package": ("import slugify\ndef net(x):\n    return slugify.scale(x)\n", SCALE),
    "imported by its name": (
        "import importlib\ndef net(x):\n    return importlib.import_module('keyed.indirect').scale(x)\n", SCALE),
    "of a module for what its import does": (
        "import keyed.deep\nfrom keyed.indirect import done\ndef net(x):\n    return keyed.deep.S * x\n",
        "import keyed.deep\nkeyed.deep.S = 2\ndone = True\n"),
    "set by a call whose value has a name": (
        "S = {}\ndef fill(v):\n    S['s'] = v\n    return True\nok = fill(2)\ndef net(x):\n    return S['s'] * x\n",
        ""),
    "registered as a subclass": (
        "from keyed.indirect import Base\nclass A(Base):\n    s = 2\ndef net(x):\n    return Base.of['A'].s * x\n",
        "class Base:\n    of = {}\n    def __init_subclass__(cls):\n        cls.of[cls.__name__] = cls\n"),
    "imported by a star after its own": (f"def scale(x):\n    return x\nfrom keyed.indirect import *\n{NET}", SCALE),
    "given by a module's __getattr__": (
        "from keyed import indirect\ndef net(x):\n    return indirect.scale(x)\n",
        "OTHERS = {'scale': lambda x: 2 * x}\n"
        "def __getattr__(name):\n    if name in OTHERS:\n        return OTHERS[name]\n    raise AttributeError\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", INDIRECT)
@pytest.mark.slow
def test_source_that_no_name_reaches_changes_a_users_key(package: Package, what: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "slugify", raising=False)
    monkeypatch.chdir(package.folder.parent)

    def key_of(*texts: str) -> str:
        shadow = re.match(r"import (sched|slugify)\n", texts[0])
        for name, text in zip(("taking", f"../{shadow[1]}" if shadow else "indirect"), texts, strict=True):
            (package.folder / f"{name}.py").write_text(text)
        for part in (keys.source, keys._definitions, keys._find, keys.versions_of):
            part.cache_clear()
        return keys.source("keyed.taking", "net")

    before = key_of(*INDIRECT[what])
    assert key_of(*(text.replace("2", "5") for text in INDIRECT[what])) != before
    assert key_of(*INDIRECT[what]) == before


READS = {
    "at import": "import os\nG = float(os.environ.get('GAMMA', '2'))\ndef net(x):\n    return G * x\n",
    "in a function": "import os as o\ndef net(x):\n    return float(o.getenv('GAMMA')) * x\n",
    "under another name": "def net(x):\n    from os import environ as e\n    return float(e['GAMMA']) * x\n",
    "by a star": "from os import *\ndef net(x):\n    return float(environ['GAMMA']) * x\n",
    "as bytes": "from os import environb as of\nG = float(of[b'GAMMA'])\ndef net(x):\n    return G * x\n",
    "by getattr": "import os\ndef net(x):\n    return float(getattr(os, 'environ')['GAMMA']) * x\n",
    "in a path": "import os.path\ndef net(x):\n    return float(os.path.expandvars('$GAMMA')) * x\n",
    "by a function of another file": "from keyed.indirect import read\ndef net(x):\n    return read('GAMMA') * x\n",
    "by another file's name": "from keyed.indirect import settings as of\ndef net(x):\n    return of['GAMMA'] * x\n",
    "through another file": "from keyed import indirect\ndef net(x):\n    return indirect.of.environ['GAMMA'] * x\n",
    "in a condition": "import os\nS = 1\nif os.getenv('GAMMA') == '3':\n    S = 2\ndef net(x):\n    return S * x\n",
}
READER = "import os as of\nfrom os import environ as settings\ndef read(name):\n    return float(settings[name])\n"


@pytest.mark.parametrize("what", READS)
def test_environment_variables_that_a_users_source_names_are_in_its_key(
    package: Package, what: str, monkeypatch: pytest.MonkeyPatch
):
    for name, text in (("taking", READS[what]), ("indirect", READER)):
        (package.folder / f"{name}.py").write_text(text)

    def key_of(**values: str) -> str:
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        keys.source.cache_clear()
        return keys.source("keyed.taking", "net")

    first = key_of(GAMMA="2", OTHER="2")
    assert key_of(OTHER="3") == first != key_of(GAMMA="3")
    assert key_of(GAMMA="2") == first
    monkeypatch.delenv("GAMMA")
    assert key_of() != first


def test_texts_of_source_that_reads_no_environment_are_no_variables(package: Package, monkeypatch: pytest.MonkeyPatch):
    (package.folder / "taking.py").write_text("def net(x):\n    return {'GAMMA': x}\n")
    seen = set()
    for value in "23":
        monkeypatch.setenv("GAMMA", value)
        keys.source.cache_clear()
        seen.add(keys.source("keyed.taking", "net"))
    assert len(seen) == 1


READ_FILES = {
    "at import": "import numpy\nG = numpy.loadtxt('g.json')\ndef net(x):\n    return G * x\n",
    "in the call": "import json\ndef net(x):\n    with open('g.json') as of:\n        return json.load(of) * x\n",
    "by a name": "import numpy as np\nFILE = 'g.json'\ndef net(x):\n    return np.loadtxt(FILE) * x\n",
    "beside it": "from pathlib import Path\nG = float((Path(__file__).parent / 'h.json').read_text())\n"
    "def net(x):\n    return G * x\n",
    "to numbers": "import numpy, pandas\nG = pandas.read_csv('g.json', header=None).to_numpy()\n"
    "def net(x):\n    return G * x\n",
    "and takes an entry": "import json\ndef net(x):\n    return {'w': json.load(open('g.json'))}.get('w', x)\n",
    "otherwise": "import numpy\nG = numpy.genfromtxt('g.json')\ndef net(x):\n    return G * x\n",
    "in a folder": "import os, numpy\nG = numpy.loadtxt(os.path.join('sub', 'g.json'))\ndef net(x):\n    return G\n",
    "by parts": "from pathlib import Path\nG = (Path('.') / 'sub' / 'g.json').read_text()\n"
    "def net(x):\n    return G * x\n",
    "and saves": "import numpy\nfrom pathlib import Path\nG = numpy.loadtxt('g.json')\ndef net(x):\n"
    "    numpy.savetxt('log.csv', G)\n    Path('other.csv').write_text('')\n    return x\n",
    "through another file": "from keyed.indirect import load\ndef net(x):\n    return load() * x\n",
    "and keeps a log": "import numpy\nG = numpy.loadtxt('g.json')\nLOG = 'log.csv'\ndef net(x):\n"
    "    with open(LOG, 'a') as of:\n        of.write(f'{G}')\n    open('other.csv', mode='w')\n    return x\n",
}


@pytest.mark.parametrize("what", READ_FILES)
def test_files_that_a_users_source_names_are_in_its_key(
    package: Package, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    indirect = "import json\ndef load():\n    return json.loads(open('g.json').read())\n"
    for name, text in (("taking", READ_FILES[what]), ("indirect", indirect)):
        (package.folder / f"{name}.py").write_text(text)
    (tmp_path / "sub").mkdir()
    places = {
        "beside it": package.folder / "h.json",
        **dict.fromkeys(("in a folder", "by parts"), tmp_path / "sub" / "g.json"),
    }
    place = places.get(what, tmp_path / "g.json")

    def key_of(read: str, log: str = "") -> str:
        place.write_text(read)
        for name in ("log.csv", "other.csv", "unnamed.json"):
            (tmp_path / name).write_text(log)
        keys.source.cache_clear()
        return keys.source("keyed.taking", "net")

    first = key_of("2")
    assert key_of("2", "a line") == first != key_of("3")
    assert key_of("2") == first


def test_files_of_one_name_in_two_folders_are_both_in_the_key(package: Package, tmp_path: Path, monkeypatch: Any):
    monkeypatch.chdir(tmp_path)
    read = "float((Path(__file__).parent / 'h.json').read_text())"
    source = f"from pathlib import Path\nG = {read}\ndef net(x):\n    return G\n"
    (package.folder / "taking.py").write_text(source)
    seen = set()
    for inner, outer in ("11", "12", "21"):
        (package.folder / "h.json").write_text(inner)
        (tmp_path / "h.json").write_text(outer)
        keys.source.cache_clear()
        seen.add(keys.source("keyed.taking", "net"))
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("text", "name"), [("{'gamma': x}", "gamma"), ("open('.fedcore/journal.jsonl').read()", ".fedcore/journal.jsonl")]
)
def test_files_that_are_not_read_or_that_runs_write_are_in_no_key(
    package: Package, tmp_path: Path, monkeypatch: Any, text: str, name: str
):
    monkeypatch.chdir(tmp_path)
    (package.folder / "taking.py").write_text(f"def net(x):\n    return {text}\n")
    seen = set()
    (tmp_path / name).parent.mkdir(exist_ok=True)
    for value in "23":
        (tmp_path / name).write_text(value)
        keys.source.cache_clear()
        seen.add(keys.source("keyed.taking", "net"))
    assert len(seen) == 1


@pytest.mark.parametrize("what", WITHOUT)
@pytest.mark.slow
def test_source_that_a_step_does_not_use_leaves_its_key(package: Package, what: str):
    before = changed(package, "steps.py", "", "")
    assert changed(package, *WITHOUT[what]) == before


@pytest.mark.parametrize("name", ["Shape", "shape"])
@pytest.mark.slow
def test_a_class_and_a_value_of_it_count_with_its_methods(package: Package, name: str):
    package.steps.shape = package.steps.Shape()
    before = changed(package, "steps.py", "", "", name=name)
    assert changed(package, "steps.py", "near(self.side)", "near(-self.side)", name=name) != before
    assert changed(package, "steps.py", "A class.", "Another class.", name=name) == before
    assert changed(package, "helpers.py", "x + 1", "x + 2", name=name) != before


@pytest.mark.slow
def test_a_collection_that_parses_disturbs_no_key(package: Package):
    def parse(phase: str, found: object) -> None:
        ast.parse("x")

    before, often = changed(package, "steps.py", "", ""), gc.get_threshold()
    gc.callbacks.append(parse)
    gc.set_threshold(10)
    try:
        assert changed(package, "steps.py", "", "") == before
    finally:
        gc.set_threshold(*often)
        gc.callbacks.remove(parse)
    assert gc.isenabled()


@pytest.mark.slow
def test_another_function_has_another_key(package: Package):
    assert key(package.steps.step, 1) != key(package.steps.other, 1)
    same = "def a(x):\n    return x\n\ndef b(x):\n    return x\n"
    (package.folder / "twins.py").write_text(same)
    twins = import_module("keyed.twins")
    assert key(twins.a, 1) != key(twins.b, 1)


# values


def near(x: int) -> int:
    return x


@dataclass(frozen=True)
class Point:
    x: int
    y: int
    note: str = field(default="", metadata={"digest": False})


@dataclass(frozen=True)
class Spot:
    x: int
    y: int


ONE = torch.arange(6.0).reshape(2, 3)
DIFFERENT: dict[str, tuple[Any, Any]] = {
    "a number": (1, 2), "whole and real": (1, 1.0), "a bit and a number": (True, 1), "a number and its text": (1, "1"),
    "nothing and its text": (None, "None"), "small changes": (0.1, 0.1 + 1e-16), "signs of zero": (0.0, -0.0),
    "lists and tuples": ([1, 2], (1, 2)), "order": ((1, 2), (2, 1)),
    "order of keys": ({"a": 1, "b": 2}, {"b": 2, "a": 1}), "keys": ({"a": 1}, {"b": 1}),
    "nesting": ((1, (2, 3)), ((1, 2), 3)), "joined texts": (("ab", "c"), ("a", "bc")),
    "a separator in a text": (("a\x1fb",), ("a", "b")), "nothing and an empty tuple": ((), ((),)),
    "tensors": (ONE, ONE + 1), "shapes": (ONE, ONE.reshape(3, 2)), "kinds of tensors": (ONE, ONE.double()),
    "a tensor and an array": (ONE, ONE.numpy()), "arrays": (np.arange(3), np.arange(3)[::-1]),
    "arrays of objects": (np.array(["a", 1], object), np.array(["a", 2], object)),
    "kinds of arrays": (np.arange(3), np.arange(3, dtype=np.int32)), "fields": (Point(1, 2), Point(2, 1)),
    "classes with the same fields": (Point(1, 2), Spot(1, 2)), "references": (Ref("a", 1), Ref("b", 1)),
    "functions": (near, len), "settings bound by name": (partial(near, rate=1), partial(near, rate=2)),
    "settings bound by place": (partial(near, 1), partial(near, 2)), "bound and not": (near, partial(near)),
    "sets": ({1, 2}, {1, 3}),
    "training": (Training("adam", 0.1, 0.0, 0.0, "constant", 8, 1), Training("adam", 0.1, 0.0, 0.0, "constant", 8, 2)),
    "fractions of devices": (Stage(near, None, fraction=0.5), Stage(near, None, fraction=1.0)),
}  # fmt: skip
EQUAL: dict[str, Callable[[], tuple[Any, Any]]] = {
    "tensors that lie differently": lambda: (ONE, ONE.T.contiguous().T),
    "arrays that lie differently": lambda: (np.arange(6)[::2], np.array([0, 2, 4])),
    "arrays of equal objects": lambda: tuple(np.array([f"a{n}", 1.5], object) for n in (1, True + 0)),
    "sets in another order": lambda: ({1, 2, 3}, {3, 2, 1}),
    "a field that is not part of it": lambda: (Point(1, 2, "a"), Point(1, 2, "b")),
    "a net's table of axes": lambda: (Net(near, {"w": (None,)}), Net(near, None)),
    "how many rounds follow": lambda: (Stage(near, None, rounds=1), Stage(near, None, rounds=10)),
    "the bytes of a reference": lambda: (Ref("a", 1), Ref("a", 2)),
    "partials made twice": lambda: (partial(near, rate=(1, 2)), partial(near, rate=(1, 2))),
}


@pytest.mark.parametrize("what", DIFFERENT)
@pytest.mark.slow
def test_different_values_have_different_keys(what: str):
    one, other = DIFFERENT[what]
    assert key(near, one) != key(near, other)
    assert key(near, {"deep": [one]}) != key(near, {"deep": [other]})


@pytest.mark.parametrize("what", EQUAL)
@pytest.mark.slow
def test_equal_values_have_equal_keys(what: str):
    one, other = EQUAL[what]()
    assert key(near, one) == key(near, other)
    assert key(near, {"deep": [one]}) == key(near, {"deep": [other]})


def test_the_digest_of_a_value_never_changes():
    """Else every step of every cache would be computed again."""
    steps = StepId(0, 1, 2, "d0"), StepId(0, 1, 2, ("d0", "d1"))
    plain = "a", 1, -1, True, False, 1.0, -0.0, 0.0, None
    value = (*plain, Ref("f" * 40, 7), {"k": ("b", [2, "2"]), "n": {3}}, *steps, ())
    for _ in range(2):  # the second time from memory
        assert Digest().of(value) == "7e60bb32decb4feb6177628cebd06b49bd1619b3"


def test_a_key_is_forty_hexadecimal_digits():
    assert len(key(near)) == 40
    assert int(key(near), 16) >= 0


@wraps(near)
def renamed(x: int) -> int:
    return -x


class Holder:
    def method(self) -> None: ...

    @staticmethod
    def alone() -> None: ...


def closure() -> Callable[[], None]:
    def inside() -> None: ...

    return inside


@pytest.mark.parametrize(
    "value",
    [lambda: 1, Holder().method, Holder.alone, closure(), renamed, object(), Holder(), iter([]), 1j, b"bytes", Path()],
    ids=["a lambda", "a bound method", "a static method", "a closure", "a function with another's name", "an object",
         "an instance", "an iterator", "a complex number", "bytes", "a path"],
)  # fmt: skip
def test_a_value_without_source_or_fixed_value_has_no_key(value: Any):
    for step, argument in ((value, 1), (near, value), (partial(near, rate=value), 1), (near, {"a": [value]})):
        with pytest.raises(InputError, match=r"^a step cannot be keyed by"):
            key(step, argument)


def test_shared_parts_are_digested_once_and_never_mixed_up():
    digest = Digest()
    made = [digest.of({"a": number}) for number in range(200)]  # dicts that die at once, so that ids are used again
    assert len(set(made)) == 200
    shared = Point(1, 2)
    assert digest.of((shared, shared)) == Digest().of((Point(1, 2), Point(1, 2)))


# the library's own steps, on a copy of the project


EDITS = (
    "fedcore/methods/code/fusion.py:code", "fedcore/methods/code/fusion.py:lmf",
    "fedcore/methods/code/transport.py:newton", "fedcore/core/training.py:plain_step", "fedcore/core/training.py:#",
    "fedcore/core/aggregation.py:mean", "fedcore/core/evaluation.py:metrics", "fedcore/report/figures/drawing.py:png",
)  # fmt: skip
IN_ROUNDS = (
    "fedprox", "fedper", "ditto", "fixed_depth", "fedasa", "dfl", "dfl_diagonal", "fd", "scaffold", "fedgen",
    "label_smoothing", "fedopt", "fednova", "feddyn", "moon", "fedrep", "fedbabu", "fedbn", "fedproto",
    "pfedme", "apfl", "fedala", "perfedavg",
)  # fmt: skip
"""Methods with a training of their own."""
UNAVERAGED = {"fd", "fedproto"}
"""Those of them that average no models."""
TUNED = {"fedbabu local 1", "perfedavg local 1"}
"""The last stage of methods whose devices tune the model in the end."""
TRANSFERS = {
    "st_lf", "least_bound", "least_error", "most_similar", "best_source", "rnd_alpha", "fedavg_alpha", "avg_degree",
    "rnd_psi", "psi_fedavg", "single_match",
}  # fmt: skip
"""Methods of several stages: who trains first, then reports, then sends."""
ALIGNED = {"fada": 3, "psi_fada": 2}
"""The same, and the stage from which on devices train and average again, the server training identifiers."""
VOTING = {"ensemble", "gaussian_distillation", "pleas", "personal_distillation", "stack"}
"""Methods whose devices keep what they train in a first stage and send something of it in the second."""
DISTILLED = {"gaussian_distillation receive 1", "personal_distillation receive 1"}
FUSED = {f"{name} {step}" for name in ("lmf", "code_ot", "regmean") for step in ("receive 0", "chunk")}
UNTRAINED = ("analytic", "analytic_local", "majority", "majority_per_device", "pooled", "xgb_bagging", "xgb_local")
"""Methods that train no net on devices."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The keys after each edit, and those of another process with another order of hashes."""
    project = Project.copy(tmp_path_factory.mktemp("keys"))
    # Its sources are the repository's.
    fork = process_forks.run("-m", "probe_keys", folder=project.folder, strict=False)
    again = json.loads(fork.out)[""]
    return {"again": again, **json.loads(project.run("python", "-m", "probe_keys", *EDITS, PYTHONHASHSEED="0").out)}


def moved(found: dict[str, Any], edit: str) -> set[str]:
    return {name for name, value in found[edit].items() if value != found[""][name]}


@pytest.mark.slow
def test_keys_are_the_same_in_every_process(found: dict[str, Any]):
    assert found["again"] == found[""]
    assert {f"{name} {step}" for name in METHODS for step in ("train", "score", "deploy", "chunk")} <= {*found[""]}
    assert {
        f"{name} receive 0"
        for name in {*METHODS}
        - TRANSFERS
        - VOTING
        - {*ALIGNED, "local_only", "analytic_local", "majority_per_device", "xgb_local"}
    } <= {*found[""]}
    assert {f"{name} {step}" for name in VOTING for step in ("local 1", "receive 1")} <= {*found[""]}
    assert {f"{name} {step}" for name in (*TRANSFERS, *ALIGNED) for step in ("local 1", "receive 1", "receive 2")} <= {
        *found[""]
    }


@pytest.mark.slow
def test_every_step_of_a_method_has_a_plain_word(found: dict[str, Any]):
    """The words of what devices do count in the progress bar, so that they are none of the server's."""
    for name, words in found["words"].items():
        assert all(word.isalpha() for word in (*words["devices"], *words["server"])), name
        assert not {*words["devices"]} & {*words["server"], "begin", "evaluate", "deploy", "rounds"}, name
    assert found["words"]["code_ot"] == {"devices": ["train"], "server": ["begin", "fuse"]}
    assert found["words"]["st_lf"] == {
        "devices": ["train", "report", "compare", "upload"], "server": ["begin", "collect", "link", "send"],
    }  # fmt: skip


@pytest.mark.slow
def test_editing_the_fusion_retrains_nobody(found: dict[str, Any]):
    assert moved(found, "fedcore/methods/code/fusion.py:code") == {"code_ot receive 0", "code_ot chunk"}
    assert moved(found, "fedcore/methods/code/fusion.py:lmf") == {"lmf receive 0", "lmf chunk"}
    assert moved(found, "fedcore/methods/code/transport.py:newton") == FUSED


@pytest.mark.slow
def test_editing_the_average_affects_only_averaging_methods(found: dict[str, Any]):
    averaging = {f"{name} receive 0" for name in ("fedavg", "regmean", *IN_ROUNDS) if name not in UNAVERAGED}
    averaging.add("fedasa receive 1")
    rounds = {"fedavg", "regmean", *IN_ROUNDS, *TRANSFERS, *ALIGNED} - UNAVERAGED
    played = {f"{name} chunk" for name in rounds}
    sending = {max(step for step in found[""] if step.startswith(f"{name} receive")) for name in TRANSFERS}
    sending.add("best_source receive 3")  # of all models, before the last one of the best
    hearing = {f"{name} local {k}" for name, first in ALIGNED.items() for k in (first, first + 1)}
    assert moved(found, "fedcore/core/aggregation.py:mean") == averaging | played | sending | hearing


@pytest.mark.slow
def test_editing_the_training_retrains_everyone_and_nothing_else(found: dict[str, Any]):
    """What is combined after it depends on what was trained, by its digest, not on how."""
    trained = {name for name in found[""] if name.split(" ")[-1] in ("train", "chunk")}
    expected = trained - {f"{name} {step}" for name in UNTRAINED for step in ("train", "chunk")}
    pairs = {f"{name} local 2" for name in TRANSFERS if f"{name} receive 3" in found[""]}
    assert len(pairs) == 8, "those that train a classifier for each pair of devices"
    others = {"fedasa local 1", "fada local 2"} | {f"{name} receive {first}" for name, first in ALIGNED.items()}
    assert moved(found, "fedcore/core/training.py:plain_step") == expected | pairs | others | DISTILLED | TUNED
    assert moved(found, "fedcore/core/training.py:#") == set()


@pytest.mark.slow
def test_editing_the_evaluation_repeats_only_evaluation(found: dict[str, Any]):
    expected = {name for name in found[""] if name.split(" ")[-1] in ("score", "chunk")}
    assert moved(found, "fedcore/core/evaluation.py:metrics") == expected
    assert moved(found, "fedcore/report/figures/drawing.py:png") == set()


@pytest.mark.slow
def test_one_shot_methods_share_their_training(found: dict[str, Any]):
    """With the same message and device, training is one step for all of them."""
    trained = {found[""][f"{name} train"] for name in METHODS if name not in (*IN_ROUNDS, *UNTRAINED)}
    assert len(trained) == 1


@pytest.mark.slow
def test_another_version_of_torch_changes_every_key(found: dict[str, Any]):
    assert moved(found, "torch==0.0") == set(found[""])
