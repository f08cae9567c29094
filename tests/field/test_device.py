"""A device answers what it agreed to, once for each turn, from the memory that the server means."""

import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from every_method import ROWS
from federations import NET, bits, data, federation, model
from in_process import InProcess, plan_for

from fedcore import InputError
from fedcore.field.answers import read_update
from fedcore.field.device import FieldDevice
from fedcore.field.examples import write_examples
from fedcore.field.wire import pack, unpack
from fedcore.types.federation import Splits

DITTO = plan_for(replace(ROWS["ditto"], settings={**ROWS["ditto"].settings, "rounds": 4}), federation("abcd"))


@pytest.fixture
def device(tmp_path):
    made = InProcess(federation("a"), tmp_path).devices["a"]
    assert reply(made, pack({"ask": "join", "plan": DITTO.to_json()}))[0]["reply"] == "joined"
    return made


def reply(device, call):
    return unpack(device.answer(call), "answer")


def visit_call(round=0, memory="", params=None, **words):
    told = {"ask": "visit", "run": "trial", "stage": 0, "round": round, "memory": memory}
    return pack({**told, **words}, {"params": model("start") if params is None else params, "extra": {}})


def why(device, call):
    words, tensors = reply(device, call)
    assert (words["reply"], tensors) == ("refused", {})
    return words["why"]


def test_a_repeated_call_gets_the_same_answer_without_another_step(device, tmp_path):
    first = device.answer(visit_call())
    (path,) = (tmp_path / "a" / "trial").glob("turn-*")
    written = path.stat().st_mtime_ns
    assert device.answer(visit_call()) == first
    again = FieldDevice("a", device.data, tmp_path / "a", device.consent)
    assert again.answer(visit_call()) == first
    assert path.stat().st_mtime_ns == written


def test_an_owner_reads_what_has_left_in_a_log_of_the_devices_own(device, tmp_path):
    answer = device.answer(visit_call())
    why(device, visit_call(9))  # what is refused is no answer
    joined, update = (tmp_path / "a" / "left.log").read_text().splitlines()
    assert joined.partition(" run ")[2].startswith("trial (ditto, seed 0): numbers and digest of its examples, ")
    assert update.partition(" run ")[2] == f"trial: update of round 1 of stage 1, {len(answer)} bytes"


def test_a_stored_turn_of_an_earlier_version_tells_no_steps(device, tmp_path):
    path = tmp_path / "a" / "trial" / "turn-0-0"
    device.answer(visit_call())
    header, parts = unpack(path.read_bytes(), "")
    del header["steps"]
    path.write_bytes(pack(header, parts))
    words, tensors = reply(FieldDevice("a", device.data, tmp_path / "a", device.consent), visit_call())
    assert read_update(pack(words, tensors), "a", NET)[1].steps == 0
    with pytest.raises(InputError, match=r"^answer of a: steps = -1: must be a whole number$"):
        read_update(pack({**words, "steps": -1}, tensors), "a", NET)


def test_the_memory_stays_and_its_digest_alone_is_told(device):
    words, tensors = reply(device, visit_call())
    assert words.keys() == {"reply", "memory", "nbytes", "size", "score", "steps"}
    assert tensors.keys() == {"params", "extra"}
    assert words["nbytes"] == 4 * 64  # a personal model of 64 numbers
    assert tensors["params"].keys() == model().keys()


def test_no_other_method_gets_the_memory_of_a_run(device):
    fedavg = plan_for(ROWS["fedavg"], federation("abcd"))
    said = "run trial: a knows another run of this name; give another name"
    assert why(device, pack({"ask": "join", "plan": fedavg.to_json()})) == said
    assert reply(device, pack({"ask": "join", "plan": DITTO.to_json()}))[0]["reply"] == "joined"


def test_a_device_that_lost_its_memory_refuses_to_train_on(device, tmp_path):
    memory = reply(device, visit_call())[0]["memory"]
    for path in (tmp_path / "a" / "trial").glob("turn-*"):
        path.unlink()
    device = FieldDevice("a", device.data, tmp_path / "a", device.consent)
    assert why(device, visit_call(1, memory)) == (
        "run trial: a has not the memory that the server knows of; start another run"
    )


def test_a_damaged_memory_is_noticed(device, tmp_path):
    memory = reply(device, visit_call())[0]["memory"]
    (path,) = (tmp_path / "a" / "trial").glob("turn-*")
    path.write_bytes(path.read_bytes()[:-1])
    assert why(device, visit_call(1, memory)).startswith("a: turn-0-0: damaged or no parcel of fedcore")


def test_the_memory_before_stays_until_the_server_has_the_next(device):
    first = reply(device, visit_call())[0]["memory"]
    late = reply(device, visit_call(1, first))[0]["memory"]
    call = visit_call(2, first, model("other"))  # so that its memory differs from the late one by more than rounding
    one, two = reply(device, call), reply(device, call)
    assert one[0]["reply"] == "visited"
    assert bits(one) == bits(two)
    assert why(device, visit_call(3, late)).startswith("run trial: a has not the memory")  # two answers that got lost


def test_a_turn_is_answered_for_one_call_alone(device):
    device.answer(visit_call())
    assert why(device, visit_call(params=model("other"))) == "round 1 of stage 1: a has answered another call for it"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (b"", "call: damaged or no parcel of fedcore ("),
        (visit_call()[:-1], "call: damaged or no parcel of fedcore ("),
        (pack({"ask": "run"}), "call: must ask to join, numbers, "),
        (pack({}), "call: must ask to join, numbers, "),
        (visit_call(stage=1), "run trial: has 1 stages"),
        (visit_call(round=4), "run trial: stage 1 has 4 rounds"),
        (visit_call(round=-1), "call: round = -1: must be a whole number"),
        (visit_call(round=True), "call: round = True: must be a whole number"),
        (
            visit_call(params={"fc1.weight": torch.ones(2)}),
            "the server's message: tensor fc1.weight is torch.float32 (2,)",
        ),
        (
            visit_call(params=model() | {"fc1.bias": torch.full((5,), torch.nan)}),
            "the server's message: tensor fc1.bias has",
        ),
        (pack({"ask": "join", "plan": "x"}), "plan: no plan of a run ("),
        (pack({"ask": "score", "run": "trial", "memory": "f00"}), "run trial: a has not the memory"),
    ],
)
def test_a_wrong_call_is_refused_in_one_line(device, call, said):
    assert why(device, call).startswith(said)
    assert "\n" not in why(device, call)
    assert reply(device, visit_call())[0]["reply"] == "visited"


@pytest.mark.parametrize("run", ["other", "../a/trial", ""])
def test_a_device_says_that_it_has_not_joined_a_run(device, run):
    words, tensors = reply(device, visit_call(run=run))
    assert (words, tensors) == ({"reply": "unknown", "why": f"run {run}: a has not joined it"}, {})


def test_an_error_inside_a_step_tells_the_server_no_details(device, monkeypatch, logged):
    def fail(*args):
        raise RuntimeError("the example 12345 of a patient")

    monkeypatch.setattr("fedcore.field.device.visit", fail)
    assert why(device, visit_call()) == "RuntimeError on the device, see its log"
    assert "12345" in logged.text


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (data(5), "the run's"),
        (type(data(5))(torch.zeros(3, 4), torch.tensor([0, 1, 3])), "a: it has class 3, the run has 3 classes"),
    ],
)
def test_other_examples_than_the_runs_are_refused_before_it(part, said, tmp_path: Path):
    if said == "the run's":
        part = type(part)(torch.zeros(3, 5), part.y[:3])
        said = "a: its examples have shape (5,), the run's (4,)"
    made = FieldDevice("a", Splits(part, data(0), data(0)), tmp_path, {"ditto"})
    assert why(made, pack({"ask": "join", "plan": DITTO.to_json()})) == said


def test_a_long_step_is_said_to_be_at_work_and_is_not_started_twice(tmp_path, monkeypatch):
    from threading import Event

    from fedcore.core.rounds import visit

    go, calls = Event(), []

    def slow(*args):
        calls.append(args)
        go.wait(20)
        return visit(*args)

    slow.__module__ = visit.__module__  # a step of one's own may change no such event
    monkeypatch.setattr("fedcore.field.device.visit", slow)
    made = FieldDevice("a", federation("a").devices["a"].data, tmp_path, {"ditto"}, wait=0.01)
    go.set()
    made.answer(pack({"ask": "join", "plan": DITTO.to_json()}))
    go.clear()
    assert [reply(made, visit_call())[0]["reply"] for _ in range(3)] == ["working"] * 3
    go.set()
    while (words := reply(made, visit_call())[0])["reply"] == "working":
        pass
    assert (words["reply"], len(calls)) == ("visited", 1)


LIGHT = """
import sys, time, warnings
warnings.simplefilter("ignore")
for name in "pandas scipy sklearn cvxpy ot pyarrow clarabel cloudpickle rich PIL mlflow".split():
    sys.modules[name] = None  # as if it were not installed
import torch
torch_seconds = time.process_time()
import fedcore.cli.device, fedcore.field.keys
if sys.argv[1] == "flare":
    import fedcore.field.cells
from pathlib import Path
from fedcore import InputError
from fedcore.field.answers import read_update
from fedcore.field.device import FieldDevice
from fedcore.field.examples import read_examples
print(torch_seconds, time.process_time() - torch_seconds)
device = FieldDevice("a", read_examples(Path(sys.argv[2])), Path(sys.argv[3]), ["fedavg", "ditto", "code_ot", "dfl"])
for call in sys.argv[4:]:
    sys.stdout.buffer.write(device.answer(bytes.fromhex(call)).hex().encode() + b"\\n")
"""


@pytest.mark.slow
def test_a_device_needs_neither_data_frames_nor_solvers_nor_seconds(tmp_path):
    fed, calls = federation("abcd"), []
    for number, name in enumerate(["fedavg", "ditto", "code_ot", "dfl"]):
        plan = replace(plan_for(ROWS[name], fed), run=f"run{number}")
        calls += [pack({"ask": "join", "plan": plan.to_json()}), visit_call(run=plan.run)]
        calls.append(pack({"ask": "score", "run": plan.run}, {"params": model("x"), "extra": {}}))
    write_examples(tmp_path / "examples", fed.devices["a"].data)
    flare = "flare" if find_spec("nvflare") else ""
    words = [sys.executable, "-W", "ignore", "-c", LIGHT, flare, str(tmp_path / "examples"), str(tmp_path / "a")]
    done = subprocess.run([*words, *(call.hex() for call in calls)], capture_output=True, text=True, check=True)
    (of_torch, of_fedcore), *answers = [line.split() for line in done.stdout.splitlines()]
    replies = [unpack(bytes.fromhex(answer), "answer")[0]["reply"] for (answer,) in answers]
    assert replies == ["joined", "visited", "scored"] * 4
    assert float(of_fedcore) < float(of_torch)  # .4 s beside 1.3 s: a process starts in under 3


def test_a_device_scores_a_model_of_each_round_and_few_more(device):
    """By many models of its choice a server would learn of single examples; four rounds, four devices."""
    calls = [
        pack({"ask": "score", "run": "trial", "memory": ""}, {"params": model(str(k)), "extra": {}}) for k in range(9)
    ]
    device.answer(visit_call())
    memory = reply(device, visit_call())[0]["memory"]
    calls = [pack({"ask": "score", "run": "trial", "memory": memory}, unpack(call, "")[1]) for call in calls]
    assert [reply(device, call)[0]["reply"] for call in (*calls[:8], calls[0])] == ["scored"] * 9
    assert why(device, calls[8]) == "run trial: a has scored 8 models, for each round and each device one"


def test_a_pair_is_begun_a_few_times_alone(tmp_path, monkeypatch):
    """The other side would learn of single examples by errors of many classifiers; also after a restart."""
    monkeypatch.setattr("fedcore.field.device.BEGINNINGS", 2)
    link = InProcess(federation("ab"), tmp_path)
    reply(link.devices["a"], pack({"ask": "join", "plan": plan_for(ROWS["st_lf"], federation("ab")).to_json()}))
    call = visit_call(stage=2, ask="pair", pair=["a", "b"], part=0)
    assert reply(link.devices["a"], call)[0]["reply"] == "part"
    link.start("a")
    assert reply(link.devices["a"], call)[0]["reply"] == "part"
    link.start("a")
    assert why(link.devices["a"], call) == "round 1 of stage 3: a has begun this pair 2 times"


def test_no_name_of_a_run_is_that_of_another_file(device, tmp_path):
    for run in ("salt", "secret", "data", "scored"):
        again = FieldDevice("a", device.data, tmp_path / run, device.consent)
        for _ in range(2):
            told, _ = reply(again, pack({"ask": "join", "plan": replace(DITTO, run=run).to_json()}))
            assert told["reply"] == "joined"
