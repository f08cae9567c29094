import hashlib
import importlib
import inspect
import random
import sys
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest
import torch
from federations import NBYTES, NET, federation, model

from fedcore.errors import InputError
from fedcore.execute.workers import Workers
from fedcore.types import imports
from fedcore.types.federation import Data, Net, nbytes
from fedcore.types.method import GLOBAL_RANDOMNESS, Message, Method, Model, RoundInfo, Stage, StepId, Update, generator


def drawn(generator):
    return torch.rand(4, generator=generator).tolist()


def test_bytes_are_elements_times_item_size():
    params = {"a": torch.zeros(2, 3), "b": torch.zeros(5, dtype=torch.int64), "c": torch.zeros(7, dtype=torch.bool)}
    assert nbytes(params) == 6 * 4 + 5 * 8 + 7
    assert nbytes({}) == 0
    assert nbytes(model()) == NBYTES == 256
    assert nbytes({"part of another": torch.zeros(100)[:3]}) == 12


@pytest.mark.parametrize("kind", [Message, Update])
def test_what_travels_is_parameters_and_extra(kind):
    assert kind({"a": torch.zeros(3)}, {"a": torch.zeros(2, dtype=torch.float64)}).nbytes == 12 + 16
    assert kind().nbytes == 0


@pytest.mark.parametrize(("kind", "word"), [(Message, "message"), (Update, "update")])
def test_only_tensors_travel(kind, word):
    with pytest.raises(InputError, match=rf"^{word}: loss is float, must be a tensor$"):
        kind({}, {"loss": 0.3})


def test_stages_are_a_tuple():
    stage = Stage(print, print)
    assert Method(print, (stage,), print).stages == (stage,)
    for stages in (stage, [stage], ("train",)):
        with pytest.raises(InputError, match=r"^Method\.stages: must be a tuple of stages, \(Stage\(\.\.\.\),\), not"):
            Method(print, stages, print)


def test_two_plain_numbers_travel_free():
    assert Update(size=1000, score=0.5).nbytes == 0


def test_images_are_scaled_and_numbers_are_not():
    images = Data(torch.tensor([[0, 51], [255, 102]], dtype=torch.uint8), torch.tensor([0, 1]))
    assert images.inputs().dtype == torch.float32
    torch.testing.assert_close(images.inputs(), torch.tensor([[0.0, 0.2], [1.0, 0.4]]))
    torch.testing.assert_close(images.inputs(torch.tensor([1])), torch.tensor([[1.0, 0.4]]))
    numbers = Data(torch.tensor([[3.0], [300.0]]), torch.tensor([0, 1]))
    assert numbers.inputs(slice(1, 2)).tolist() == [[300.0]]
    assert (len(images), len(numbers)) == (2, 2)


def test_a_net_without_a_table_cannot_be_aligned():
    assert NET.table["fc2.weight"] == ("h2", "h1")
    with pytest.raises(InputError, match=r"^net\.name: .*no table"):
        _ = Net(NET.build).table


def test_the_public_part_holds_no_examples_but_the_shared_ones():
    fed = federation("ab")
    assert fed.public.names == ("a", "b")
    assert set(vars(fed.public)) == {"nets", "test", "classes", "server_data"}
    assert fed.public.nets == {"a": NET, "b": NET}
    assert fed.public.test is fed.test
    assert fed.public.server_data is fed.server_data


def test_a_generators_seed_is_a_digest_of_its_words():
    digest = hashlib.blake2b(b"3\x1finit", digest_size=8).digest()
    assert generator(3, "init").initial_seed() == int.from_bytes(digest, "little") // 2
    assert drawn(generator(1, 23)) != drawn(generator(12, 3))


def test_a_local_steps_draws_depend_on_seed_stage_round_unit_and_purpose():
    step = StepId(seed=1, stage=2, round=3, unit="a")
    assert drawn(step.generator("batches")) == drawn(generator(1, 2, 3, "a", "batches"))
    numbers = (0, 2, 3, "a"), (1, 0, 3, "a"), (1, 2, 0, "a"), (1, 2, 3, "b"), (1, 2, 3, ("a", "b"))
    others = [StepId(*of) for of in numbers]
    draws = [
        drawn(step.generator("batches")),
        drawn(step.generator()),
        *(drawn(o.generator("batches")) for o in others),
    ]
    assert len({tuple(numbers) for numbers in draws}) == len(draws)


def test_a_turn_knows_where_its_units_stand_and_draws_for_itself():
    round_info = RoundInfo(seed=1, stage=2, round=3, units=("a",), names=("a", "b"))
    assert round_info.step_id("a") == StepId(1, 2, 3, "a")
    assert drawn(round_info.generator("x")) == drawn(generator(1, 2, 3, "server", "x"))
    assert drawn(round_info.generator("x")) != drawn(round_info.step_id("a").generator("x"))


@pytest.mark.parametrize("name", ["a\nb", "a\r", "\x1b[2J", "\u202eb", "\x00", "tab\t"])
def test_a_refusal_is_one_line_whatever_name_it_quotes(name):
    line = str(InputError(f"no column {name}"))
    assert line.isprintable()
    assert line == f"no column {name!r}".replace("'", "")
    assert str(InputError("größer als 1: 'ü'")) == "größer als 1: 'ü'"


def test_a_models_members_are_a_tuple():
    with pytest.raises(InputError, match=r"^Model: members is dict, must be a tuple of models: \(params,\)$"):
        Model(model())


@pytest.mark.parametrize("weights", [(1, 1), (0, 0), (2, -1), (float("nan"), 1), ((1, -1), (0, 2)), ((0, 0), (0, 0))])
def test_a_models_weights_are_on_the_simplex(weights):
    with pytest.raises(InputError, match=r"^Model: weights are \(.*, must be 0 or more and sum to 1"):
        Model((model(), model()), weights)
    Model((model(), model()), ((1, 0), (0, 2)))
    Model((model(),) * 3, (1 / 3,) * 3)


def test_a_type_of_earlier_versions_is_named_by_its_new_place():
    with pytest.raises(ImportError, match=r"fedcore\.types has no Stage; write `import fedcore as fc` and fc\.Stage"):
        exec("from fedcore.types import Stage")


HELPER = "import random, numpy as np, torch\nB = torch.rand(2).tolist(), np.random.rand(2).tolist(), random.random()\n"
DRAWING = """
import torch
A = torch.rand(2).tolist()
import drawing_helper
C = torch.rand(2).tolist()
def drawn():
    return A, drawing_helper.B, C
"""


@pytest.fixture
def drawing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The function `drawn` of a file of a user, of which another draws as well."""
    (tmp_path / "drawing_file.py").write_text(DRAWING)
    (tmp_path / "drawing_helper.py").write_text(HELPER)
    monkeypatch.syspath_prepend(str(tmp_path))
    imports.draw_alike()
    yield lambda: importlib.import_module("drawing_file").drawn
    for name in ("drawing_file", "drawing_helper"):
        sys.modules.pop(name, None)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["drawing_file", "drawing_helper"])
def test_a_users_file_draws_the_same_at_import_in_every_process(drawing, first: str):
    torch.manual_seed(len(first))
    importlib.import_module(first)
    here, file = drawing(), sys.modules["drawing_file"].__file__
    with Workers(2) as processes:
        assert processes.call(here) == here()
    for name in ("drawing_file", "drawing_helper"):
        del sys.modules[name]
    torch.manual_seed(99)
    again = drawing()
    assert again() == here()
    assert (inspect.getsource(again), again.__globals__["__spec__"].loader.get_filename()) == (
        inspect.getsource(here), file,
    )  # fmt: skip


def test_a_file_that_draws_nothing_changes_nothing_and_a_seed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "quiet_file.py").write_text("A = 1")
    (tmp_path / "seeding_file.py").write_text("import numpy as np; np.random.seed(5)")
    monkeypatch.syspath_prepend(str(tmp_path))
    imports.draw_alike()
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    for name in ("quiet_file", "seeding_file"):
        importlib.import_module(name)
        del sys.modules[name]
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(3)))
    assert np.random.random() == np.random.RandomState(5).random()  # noqa: NPY002


@pytest.mark.parametrize("generator", [0, 1, 2])
def test_a_seed_of_a_file_inside_another_holds_as_in_python(
    generator: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It alone: what the inner file draws from the other generators leaves no trace, and no function is replaced."""
    seeds = ("torch.manual_seed(42)", "np.random.seed(42)", "random.seed(42)")
    draws = ("torch.rand(3).tolist()", "np.random.rand(3).tolist()", "[random.random() for _ in range(3)]")
    head = "import random, numpy as np, torch\n"
    (tmp_path / "inner_file.py").write_text(f"{head}{seeds[generator]}\nX = {', '.join(draws)}\n{seeds[generator]}\n")
    (tmp_path / "outer_file.py").write_text(f"{head}import inner_file\nX = {', '.join(draws)}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    imports.draw_alike()
    functions = torch.manual_seed, np.random.seed, random.seed
    found = importlib.import_module("outer_file").X
    assert (torch.manual_seed, np.random.seed, random.seed) == functions
    for name in ("inner_file", "outer_file"):
        del sys.modules[name]
    exec(f"{head}{seeds[generator]}\nX = {', '.join(draws)}", plain := {})
    assert [mine == of for mine, of in zip(found, plain["X"], strict=True)] == [at == generator for at in range(3)]


def test_imports_go_on_where_another_thread_holds_the_generators(drawing):
    held, done = Event(), Event()

    def hold():
        with GLOBAL_RANDOMNESS:
            held.set()
            done.wait(60)

    holder = Thread(target=hold)
    holder.start()
    held.wait()
    assert len(drawing()()) == 3
    done.set()
    holder.join()
