import gc
import os
import platform
import resource
import signal
import subprocess
import sys
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial, wraps
from operator import itemgetter, truediv
from pathlib import Path

import numpy as np
import pytest
import torch
from federations import bits
from process_forks import new_processes, run

from fedcore import Data, Device, InputError, Message, Net, Splits, StepId, Training, nets, train
from fedcore.core.evaluation import score
from fedcore.core.rounds import receive
from fedcore.execute.packing import LARGE
from fedcore.execute.workers import Inline, WorkerDied, Workers, examples, shares
from fedcore.types.federation import NO_DATA
from fedcore.types.method import Model, RoundInfo, Update

SGD = Training(optimiser="sgd", lr=0.1, momentum=0.0, weight_decay=0.0, schedule="constant", batch=64, epochs=1)
NET = nets.net("mlp", shape=(28, 28), classes=10, widths=[120, 60])
NONE = Data(torch.empty(0, 28, 28), torch.empty(0).long())

pytestmark = pytest.mark.slow  # these tests start processes


@pytest.fixture(scope="module")
def workers():
    """As a program has them that opened no template; all others but those of the fixture `anew` are forks."""
    with Workers(2, nice=5) as pool:
        with new_processes():
            pool.start()
        yield pool


@pytest.fixture
def anew():
    with new_processes():
        yield


@pytest.fixture(scope="module")
def one_worker():
    with Workers(1) as pool:
        yield pool


def data(count, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (count, 28, 28), dtype=torch.uint8, generator=g)
    return Data(x, torch.randint(0, 10, (count,), generator=g))


def device(name, count, seed=0):
    return Device(name, NET, Splits(data(count, seed), data(50, seed + 1), NONE))


def spoil(examples):
    return int(examples.x.zero_().sum())


def total(examples):
    return int(examples.x.sum())


def kept(pool):
    """How many large data one of the workers holds."""
    return pool.call(Path.read_text, Path("/proc/self/maps")).count("memfd:fedcore") - 1  # 1: what is received


class Picky(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def raise_picky():
    raise Picky("one", "two")


def note(path, seconds):
    with open(path, "a") as file:
        print(os.getpid(), file=file)
    time.sleep(seconds)


@pytest.mark.parametrize(
    "training",
    [SGD, replace(SGD, optimiser="adam", lr=0.001), replace(SGD, momentum=0.9)],
    ids=["sgd", "adam", "heavy"],
)
def test_the_same_bits_here_and_in_one_worker_and_in_two(workers, one_worker, training):
    fed = {name: device(name, 100 + 64 * i, i) for i, name in enumerate("abcde")}
    message = Message(nets.init(NET, torch.Generator().manual_seed(1)))
    calls = {name: ({}, message, fed[name], StepId(0, 0, 0, name)) for name in fed}
    runs = [execute.map(partial(train, training=training), calls) for execute in (Inline(), one_worker, workers)]
    for name in fed:
        here, *there = (run[name][1] for run in runs)
        for update in there:
            assert (update.size, update.score) == (here.size, here.score)
            torch.testing.assert_close(update.params, here.params, rtol=0, atol=0)


def niceness():
    return [os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in os.listdir("/proc/self/task")]


def test_workers_stand_back_as_far_as_they_are_told(one_worker, workers):
    here = os.getpriority(os.PRIO_PROCESS, 0)
    assert set(one_worker.call(niceness)) == {here}
    assert set(workers.call(niceness)) == {min(here + 5, 19)}


def test_results_come_in_the_order_of_the_keys(workers):
    for execute in (Inline(), workers):
        assert list(execute.map(abs, {k: (k,) for k in (3, -1, 2)}).items()) == [(3, 3), (-1, 1), (2, 2)]
        assert execute.map(abs, {}) == {}
        assert execute(os.getpid) == os.getpid()


def test_the_largest_device_goes_first(one_worker):
    calls = {name: (device(name, count),) for name, count in (("a", 10), ("b", 30), ("c", 20))}
    ends = one_worker.map(_when, calls)
    assert sorted(ends, key=ends.get) == ["b", "c", "a"]
    assert examples(({}, (device("a", 10), device("b", 5)), 3)) == 15


def test_a_function_with_the_name_of_another_is_sent_by_value(one_worker):
    assert one_worker.call(wraps(_when)(lambda x: -x), 3) == -3


def _when(_):
    return time.monotonic()


TENSORS = {
    "float32": torch.arange(6.0).view(2, 3), "float64": torch.tensor([1 / 3], dtype=torch.float64),
    "bfloat16": torch.arange(5).bfloat16(), "int64": torch.tensor([-(2**62)]),
    "bool": torch.tensor([True, False, True]), "scalar": torch.tensor(3), "empty": torch.empty(0, 4, dtype=torch.int32),
    "turned": torch.arange(6).view(2, 3).t(), "every other": torch.arange(10.0)[::2], "complex": torch.tensor([1 + 2j]),
    "large": torch.arange(3e6),
}  # fmt: skip


def test_tensors_arrive_as_they_were(workers):
    for _ in range(2):
        for name, tensor in TENSORS.items():
            back = workers.call(itemgetter("tensor"), {"tensor": tensor})
            assert back.dtype == tensor.dtype, name
            assert torch.equal(back, tensor), name
    back = workers.call(dict, TENSORS)
    torch.testing.assert_close(back, TENSORS, rtol=0, atol=0)
    first = workers.call(itemgetter("float32"), TENSORS)
    workers.call(torch.zeros, 1000)
    assert torch.equal(first, TENSORS["float32"]), "a result must outlive the next call"
    assert back["float32"].untyped_storage().nbytes() == 24
    assert workers.call(itemgetter(0), [np.arange(3.0)]).tolist() == [0, 1, 2], "arrays travel in the pickle"


def many_tensors():
    """128 tensors of every kind: mixed types, empty, of no dimension, not contiguous, of one storage."""
    g = torch.Generator().manual_seed(2)
    shared = torch.randn(40, 3, generator=g)
    kinds = [
        shared[3:7], shared[5:9], shared.t()[1], torch.randn(3, 5, generator=g).t(),
        torch.randn(7, generator=g).bfloat16(), torch.randn(5, generator=g).double()[::2], torch.tensor(12),
        torch.empty(0, 3), torch.ones(3, requires_grad=True), torch.randn(2, 1, 3, 3, generator=g),
        torch.tensor([1 + 2j, 3j]).conj(),
    ]  # fmt: skip
    return {f"tensor{i}": kinds[i % len(kinds)] for i in range(128)}


def change_one(sent):
    """Change each tensor alone, and say which others it changed."""
    before = {name: tensor.clone() for name, tensor in sent.items()}
    changed = []
    for name, tensor in sent.items():
        tensor.add_(1)
        changed += [(name, other) for other in sent if other != name and not torch.equal(sent[other], before[other])]
        tensor.copy_(before[name])
    return changed


def test_a_model_of_128_tensors_arrives_as_it_was(workers):
    sent = many_tensors()
    back = workers.call(dict, sent)
    assert list(back) == list(sent)
    for name, tensor in sent.items():
        assert (back[name].dtype, back[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(back[name], tensor), name
        assert back[name].is_contiguous(), name
        assert not back[name].requires_grad, name
    assert all(tensor.data_ptr() % 64 == 0 for tensor in back.values() if tensor.dtype.is_floating_point)
    workers.map(dict, {i: ({name: torch.zeros(9) for name in sent},) for i in range(4)})
    assert torch.equal(back["tensor0"], sent["tensor0"]), "a result must outlive the next call"


def test_tensors_that_arrive_together_are_changed_one_by_one(workers):
    sent = {name: tensor.detach() for name, tensor in many_tensors().items() if not tensor.is_complex()}
    assert workers.call(change_one, sent) == []
    assert change_one(workers.call(dict, sent)) == []
    back = workers.call(dict, sent)
    weight, other = back["tensor3"].requires_grad_(), back["tensor9"]
    loss = (weight * weight).sum()
    other.zero_()  # autograd must not take it for a change of the weight
    loss.backward()
    assert torch.equal(weight.grad, 2 * weight)
    assert back["tensor0"].untyped_storage().nbytes() >= back["tensor0"].nbytes


def test_a_model_that_is_named_twice_stays_one(workers):
    model = {str(i): torch.tensor(i) for i in range(40)}
    first, second, other = workers.call(list, (model, model, dict(model)))
    assert first is second
    assert other is not first
    torch.testing.assert_close(other, model)


def test_parameters_and_gradients_flags_do_not_hinder(workers):
    weight = torch.nn.Parameter(torch.ones(3))
    assert torch.equal(workers.call(itemgetter(0), [weight]), weight)


def blocks():
    """Return how many blocks of shared memory are open here; other threads open and close files of their own."""
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            count += os.readlink(descriptor).startswith("/memfd:fedcore")
    return count


def test_large_data_is_sent_once_and_forgotten_with_its_owner(one_worker):
    gc.collect()  # what earlier tests left must not be counted
    large = data(LARGE // 784 + 1)
    first = one_worker.call(id, large)
    before, files = kept(one_worker), blocks()
    assert one_worker.call(id, large) == first
    assert one_worker.call(id, replace(large)) != first
    assert kept(one_worker) == before  # the replaced one is gone again
    del large
    gc.collect()
    assert kept(one_worker) == before - 1
    assert blocks() == files - 1


def test_a_worker_cannot_spoil_data_for_others(workers, one_worker):
    large = data(2 * LARGE // 784)
    expected = total(large)
    assert workers.call(spoil, large) == 0
    assert total(large) == expected
    assert one_worker.call(total, large) == expected


def test_what_a_step_raises_is_raised_here_with_its_traceback(workers):
    with pytest.raises(InputError, match="nope") as refused:
        workers.call(partial(nets.net, shape=(1,), classes=2), "nope")
    assert "In the worker process" in refused.value.__notes__[0]
    assert "raise InputError" in refused.value.__notes__[0]
    assert "\n" not in str(refused.value)
    with pytest.raises(RuntimeError, match="Picky: one and two"):
        workers.call(raise_picky)
    with pytest.raises(ZeroDivisionError):
        workers.map(truediv, {"a": (1, 1), "b": (1, 0)})
    assert workers.call(abs, -1) == 1


def test_what_cannot_be_sent_says_so_and_harms_nothing(workers):
    with pytest.raises(TypeError, match="pickle"):
        workers.call(id, threading.Lock())
    with pytest.raises(TypeError, match="pickle"):
        workers.call(threading.Lock)
    assert workers.call(abs, -1) == 1


CELL = """
import math
from dataclasses import dataclass
import torch
from torch import nn

SCALE = 3.0

@dataclass(frozen=True)
class Point:
    x: torch.Tensor
    def grown(self):
        return Point(self.x * SCALE)

class Wrong(Exception):
    def __init__(self, one, two=2):
        super().__init__(one)

def step(point, shift):
    def inner(x):
        return math.sqrt(2) * x.sin() + shift
    return Point(inner(point.grown().x)), factorial(5)

def factorial(n):
    return n * factorial(n - 1) if n else 1

def scaled(number):
    return number * SCALE

def fail(point):
    raise Wrong("not like this")

class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.lay = nn.Linear(784, 10)
    def forward(self, x):
        return self.lay(x.flatten(1))
"""


@pytest.fixture
def cell():
    """The names that a notebook's cell defines."""
    module = types.ModuleType("__main__")
    exec(CELL, module.__dict__)
    return module


def test_lambdas_and_closures_run_in_workers(workers):
    scale = torch.arange(3.0)

    def closure(x):
        return (x * scale).sin()

    for fn in (lambda x: (x * scale).sin(), closure, partial(lambda y, x: (x * y).sin(), scale)):
        calls = {i: (torch.arange(3.0) + i,) for i in range(4)}
        here, there = Inline().map(fn, calls), workers.map(fn, calls)
        torch.testing.assert_close(there, here, rtol=0, atol=0)
    assert workers.call(lambda: lambda: 5)() == 5


def test_a_notebook_cell_runs_in_workers(workers, cell):
    calls = {i: (cell.Point(torch.arange(5.0) + i), 0.1) for i in range(4)}
    here, there = Inline().map(cell.step, calls), workers.map(cell.step, calls)
    for i in calls:
        assert type(there[i][0]) is cell.Point
        assert torch.equal(there[i][0].x, here[i][0].x)
        assert there[i][1] == here[i][1] == 120
    for cell.SCALE in (1.0, 2.0):  # a later cell changes what an earlier one reads
        assert workers.map(cell.scaled, {i: (i,) for i in range(4)}) == {i: cell.SCALE * i for i in range(4)}


def test_an_exception_of_a_cell_is_raised_as_itself(workers, cell):
    with pytest.raises(cell.Wrong, match="not like this") as wrong:
        workers.call(cell.fail, None)
    assert "In the worker process" in wrong.value.__notes__[0]


def test_a_net_that_a_cell_defines_trains_in_workers(workers, cell):
    for build in (cell.Small, lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))):
        fed = replace(device("a", 100), net=Net(build))
        args = partial(train, training=SGD), {}, Message(), fed, StepId(0, 0, 0, "a")
        here, there = Inline().call(*args)[1], workers.call(*args)[1]
        torch.testing.assert_close(there.params, here.params, rtol=0, atol=0)


def test_a_failure_drops_what_has_not_begun(one_worker, tmp_path):
    calls = {i: (str(tmp_path / f"{i}"), 0.0) for i in range(20)}
    with pytest.raises(TypeError):
        one_worker.map(note, {"bad": (), **calls})
    one_worker.call(abs, 1)
    assert len(list(tmp_path.iterdir())) < 20


def test_a_dead_worker_is_named_and_replaced(one_worker):
    large = data(LARGE // 784 + 1)
    one_worker.call(total, large)
    pid = one_worker.call(os.getpid)
    with pytest.raises(WorkerDied, match=r"was ended by SIGKILL .* while it ran .*raise_signal"):
        one_worker.call(signal.raise_signal, signal.SIGKILL)
    assert one_worker.call(os.getpid) != pid
    assert one_worker.call(total, large) == total(large)
    with pytest.raises(WorkerDied, match=r"exit code 3 while it ran .*_exit"):
        one_worker.map(partial(os._exit), {"a": (3,)})
    assert one_worker.map(abs, {"a": (-1,)}) == {"a": 1}


def test_many_threads_may_call(workers):
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda i: workers.call(abs, -i), range(100))) == list(range(100))
        assert list(threads.map(lambda i: workers.map(abs, {i: (-i,)})[i], range(20))) == list(range(20))


def test_workers_start_when_first_needed_or_all_at_once(anew):
    """And compute with one thread."""
    before = _children()
    pool = Workers(2)
    assert _children() == before
    with pool:
        assert pool.call(torch.get_num_threads) == 1
        assert len(_children()) == len(before) + 1
        pool.start()
        assert len(_children()) == len(before) + 2
        pool.start()
        assert len(_children()) == len(before) + 2
        assert len(set(pool.map(_pid_and_wait, dict.fromkeys(range(2), ())).values())) == 2
    assert _children() == before
    with pytest.raises(RuntimeError, match="closed"):
        pool.call(abs, 1)


def _pid_and_wait() -> int:
    time.sleep(0.3)
    return os.getpid()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries are left as they are")
def test_a_worker_keeps_the_memory_of_its_last_minibatch(workers, one_worker):
    for pool in (workers, one_worker):
        assert pool.call(pages_fetched) < 100


def pages_fetched():
    """How many pages the system hands out when 36 to 84 MB are allocated that were allocated and freed before."""
    middle = []
    for size in range(3_000_000, 8_000_000, 1_000_000):
        fetched = []
        for _ in range(7):  # now and then one of them finds its place taken, and the next ones do not
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            together = [torch.ones(size) for _ in range(3)]
            del together
            fetched.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        middle.append(sorted(fetched)[3])
    return sum(middle)


def _children():
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def changes(memory, message, device, step_id, *, what, rate):
    """Change in place one of the tensors that it is given, or a copy."""
    sent = message.params["w"]
    given = {"params.w": sent, "data.train.x": device.data.train.x, "w": memory["w"], "rate": rate, "": sent.clone()}
    given[what].add_(1)
    return {"w": memory["w"] - 1}, Update({"w": sent + 1})


def puts_others_in(*given, setting):
    """Put a tensor into each dict that it is given."""
    for part in ({"": setting, **given[0]}, *given[1], {"": given[2][0].params}, given[2][1].params):
        for inner in [part, *part.values()]:
            getattr(inner, "params", inner if isinstance(inner, dict) else {})["w"] = torch.ones(2)


def deploys_in_place(memory, message):
    message.params["1.bias"].add_(1)
    return Model((message.params,))


def sums_in_place(server, updates, round_info):
    updates["a"].params["1.bias"].mul_(0.5)
    return server, {}


@pytest.mark.parametrize("what", ["params.w", "data.train.x", "w", "rate", ""])
@pytest.mark.parametrize("at", [1, 5])
def test_a_step_of_ones_own_that_changes_what_it_is_given_is_refused(what, at):
    step = partial(changes, what=what, rate=torch.ones(2))
    given = {"w": torch.tensor([0.0, torch.nan])}, Message({"w": torch.zeros(2)}), device("a", 4), StepId(0, 0, at, "a")
    says = rf"test_workers:changes: changes {what} in place, which other steps read"
    with pytest.raises(InputError, match=says) if what else nullcontext():
        Inline().call(step, *given)


VELOCITIES, COUNT, FIRST, CACHE, LOG = {}, [0], None, {}, []


class Momentum:
    def __init__(self):
        self.velocity = torch.zeros(2)

    def __call__(self, memory, message, device, step_id):
        self.velocity = 0.9 * self.velocity + 1
        return memory, Update({"w": message.params["w"] - self.velocity})


def keeps(memory, message, device, step_id, *, what, velocity=torch.zeros(2)):  # noqa: B008
    """Keep something beside the memory, in a global, an attribute or a default."""
    global FIRST
    if what == "VELOCITIES":
        VELOCITIES.setdefault(step_id.unit, torch.zeros(2)).add_(1)
    elif what == "COUNT":
        COUNT[0] += 1
    elif what == "FIRST":
        FIRST = {"a": torch.ones(2)} if FIRST is None else FIRST
    elif what == "default":
        velocity.add_(1)
    else:
        CACHE[step_id.unit] = torch.ones(2)
        LOG.append(step_id.round)
    return memory, Update({"w": message.params["w"] + 1})


def receives(server, updates, round_info, *, what):
    keeps({}, Message({"w": torch.zeros(2)}), None, StepId(0, 0, 0, "a"), what=what)
    return server, {}


@pytest.mark.parametrize("what", ["VELOCITIES", "COUNT", "FIRST", "default", "velocity", "CACHE"])
@pytest.mark.parametrize("where", ["device", "server"])
def test_a_step_of_ones_own_that_keeps_something_is_refused(what, where):
    """In the first two rounds of a device; a cache or a log of new entries is none."""
    global FIRST
    FIRST = None
    VELOCITIES.clear()
    step = Momentum() if what == "velocity" else partial(keeps, what=what)
    with nullcontext() if what == "CACHE" else pytest.raises(InputError, match=f"changes its .*{what}.*as memory"):
        for at in range(2):
            if where == "device" or what == "velocity":
                Inline().call(step, {}, Message({"w": torch.zeros(2)}), device("a", 4), StepId(0, 0, at, "a"))
            else:
                given = (
                    {},
                    {"a": Update(nets.init(Net(_linear), torch.Generator()))},
                    RoundInfo(0, 0, at, ("a",), ("a",)),
                )
                Inline()(receive, partial(receives, what=what), *given, {"a": Net(_linear)})


def test_what_a_step_puts_into_what_it_is_given_no_other_step_sees():
    sent, setting = Message({"w": torch.zeros(2)}), {"w": torch.zeros(2)}
    given = {"a": Update(sent.params)}, ({"w": torch.zeros(2)}, {}), (sent, sent)
    before = bits((given, setting))
    Inline()(partial(puts_others_in, setting=setting), *given)
    assert bits((given, setting)) == before


def test_a_server_that_sums_into_an_update_is_refused_and_a_deployment_too():
    updates = {"a": Update(nets.init(Net(_linear), torch.Generator()), size=1)}
    devices = {"a": replace(device("a", 30), net=Net(_linear))}
    with pytest.raises(InputError, match=r"deploys_in_place: changes params\.1\.bias in place"):
        Inline()(score, deploys_in_place, {}, Message(updates["a"].params), devices, NO_DATA)
    with pytest.raises(InputError, match=r"sums_in_place: changes a\.params\.1\.bias in place"):
        Inline()(receive, sums_in_place, {}, updates, RoundInfo(0, 0, 0, ("a",), ("a",)), {"a": Net(_linear)})


def test_inline_gives_the_threads_back():
    threads = torch.get_num_threads()
    assert Inline().call(torch.get_num_threads) == 1
    with pytest.raises(ZeroDivisionError):
        Inline().map(truediv, {"a": (1, 0)})
    assert torch.get_num_threads() == threads


def test_a_net_that_the_tests_define_reaches_the_workers(workers):
    fed = device("a", 30)
    there = workers.call(
        partial(train, training=SGD), {}, Message(), replace(fed, net=Net(_linear)), StepId(0, 0, 0, "a")
    )
    assert set(there[1].params) == {"1.weight", "1.bias"}


def _linear():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))


SCRIPT = """
import sys, time
from fedcore.execute.workers import Workers

def note(path, seconds):
    with open(path, "a") as file:
        import os
        print(os.getpid(), file=file, flush=True)
    time.sleep(seconds)
    return "done"

if __name__ == "__main__":
    seconds = [float(word) for word in sys.argv[2:]]
    with Workers(len(seconds)) as workers:
        print(workers.map(note, {i: (sys.argv[1], each) for i, each in enumerate(seconds)}))
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def _busy(path, process, count):
    """Wait until so many workers have begun a step; return their process numbers."""
    for _ in range(300):
        pids = path.read_text().split() if path.exists() else []
        if len(pids) == count:
            return pids
        assert process.poll() is None
        time.sleep(0.1)
    raise AssertionError("the workers did not start")


def _lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    ("number", "steps"), [(signal.SIGKILL, ["600", "0"]), (signal.SIGINT, ["600"])], ids=["killed", "interrupted"]
)
def test_workers_leave_with_their_parent_and_say_nothing(script, tmp_path, number, steps):
    """In the middle of a step of so many seconds, or idle after it."""
    pids = tmp_path / "pids"
    process = subprocess.Popen(
        [sys.executable, str(script), str(pids), *steps],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a background job ignores it
    )
    workers = _busy(pids, process, len(steps))
    assert len(set(workers)) == len(steps)
    time.sleep(0.5)
    os.killpg(process.pid, number)
    _, said = process.communicate(timeout=60)
    for _ in range(50):
        if not any(map(_lives, workers)):
            break
        time.sleep(0.1)
    assert not any(map(_lives, workers))
    assert said.count("Traceback") == (1 if number == signal.SIGINT else 0), said


def test_functions_of_the_program_itself_can_be_called(script, tmp_path):
    """A file, which is a fork here, and a module, which is a new process; the workers of both are new processes."""
    words = (str(tmp_path / "pids"), "0")
    file = run(script.name, *words, folder=tmp_path)
    assert (file.out, file.err) == ("{0: 'done'}\n", "")
    module = subprocess.run([sys.executable, "-m", "script", *words], cwd=tmp_path, capture_output=True, text=True)
    assert (module.stdout, module.stderr) == ("{0: 'done'}\n", "")


def test_shares_are_even_in_examples_and_then_in_calls():
    calls = {name: (device(name, count, 0),) for name, count in (("a", 10), ("b", 40), ("c", 25), ("d", 15))}
    assert shares(calls, 2) == [["b", "a"], ["c", "d"]]
    assert shares(dict.fromkeys(range(5), ()), 3) == [[0, 3], [1, 4], [2]]


def test_a_step_that_draws_has_other_numbers_for_each_seed():
    first, second, again = (Inline()(lambda public, seed: torch.rand(3), None, seed) for seed in (0, 1, 1))
    assert torch.equal(second, again)
    assert not torch.equal(first, second)
