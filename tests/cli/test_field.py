"""The commands of the field and of a device."""

import socket
import subprocess
import sys
import warnings

import process_forks
import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: make test installs it")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from fedcore.cli.main import main

pytestmark = pytest.mark.slow


def command(words, capsys):
    """Run a command in this process; return its exit code and what it said."""
    code = 0
    try:
        main(words)
    except SystemExit as leaving:
        code = leaving.code
    said = capsys.readouterr()
    return code, said.out + said.err


def program(folder, *words):
    """Run a command in a fork: FLARE allows one server in a process, which searches the current folder."""
    done = process_forks.run("-m", "fedcore", *words, folder=folder, strict=False)
    return done.code, done.out + done.err


def test_a_trial_says_that_the_bits_are_the_simulations(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # FLARE searches the current folder
    words = ["field", "try", "--devices", "2", "--method", "ditto", "--rounds", "1"]
    done = subprocess.run([sys.executable, "-m", "fedcore", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].startswith("ditto: the bits are those of the simulation: ")


def test_a_run_whose_devices_are_away_ends_in_one_line_that_names_them(tmp_path, capsys):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    place = str(tmp_path / "field")
    init = ["field", "init", place, "--device", "b", "--device", "a", "--address", address, "--classes", "3"]
    assert command([*init, "--shape", "4y"], capsys) == (
        2,
        "fedcore: --shape 4y: must be whole numbers, such as 12 or 1x28x28\n",
    )
    code, said = command([*init, "--shape", "4"], capsys)
    assert (code, len(said.splitlines())) == (0, 3)
    code, said = program(
        tmp_path, "field", "run", f"{place}/server", "--method", "fedavg", "--set", "rounds=2", "--deadline", "1"
    )
    assert code == 1
    assert "round 1 of stage 1: 0 of 2 devices answered, at least 2 must; absent: a, b" in said
    assert "Traceback" not in said
    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))):
        code, said = program(tmp_path, "field", "run", f"{place}/server", "--method", "fedavg", "--deadline", "10m")
    assert (code, len(said.splitlines())) == (2, 1)
    assert f"address = {address}: this machine cannot listen there" in said


LONG = "n" * 300


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["field", "run", "none"], "none: not a server's startup kit; fedcore field init makes them"),
        (["field", "run", "none", "--deadline", "0"], "Invalid value for '--deadline': '0' must be at least 1 second"),
        (["field", "run", "none", "--deadline", "soon"], "Invalid value for '--deadline': 'soon' must be at least 1"),
        (["field", "study", "none", "--seeds", "a"], "--seeds a: must be whole numbers, such as 0,1,2"),
        (["field", "start", "none"], "none: not a server's startup kit; fedcore field init makes them"),
        (["field", "stop", "none"], "none: no server has been started; fedcore field start does"),
        (["field", "status", "none"], "none: not a server's startup kit; fedcore field init makes them"),
        (
            ["field", "init", "none", "--address", "h:1", "--shape", "4"],
            "--shape, --classes, --device: without a study",
        ),
        (["field", "run", "none", "--name", "../x"], "--name ../x: must be letters and digits"),
        (["field", "run", "none", "--name", LONG], "n: must be letters and digits, at most 80"),
        (
            [
                "field",
                "init",
                LONG,
                "--address",
                "h:1",
                "--device",
                "a",
                "--device",
                "b",
                "--shape",
                "2",
                "--classes",
                "2",
            ],
            "n: File name too long",
        ),
        (["field", "start", LONG], "n: not a server's startup kit"),
        (["device", "start", LONG, "--data", "x", "--allow", "fedavg"], "n: File name too long"),
        (["predict", LONG], "n: File name too long"),
        (["field", "revoke", "none", "b"], "none: not a server's startup kit; fedcore field init makes them"),
        (["device", "start", "none", "--data", "x", "--allow", "fedavg(sums)"], "--allow fedavg(sums): not a method"),
        (
            ["device", "start", "none", "--data", "x", "--allow", "fedavg", "--sends", "rows"],
            "--sends rows: must be one of model, ",
        ),
        (["device", "start", "none", "--data", "x", "--leaf", "model"], "No such option"),
        (["field", "try", "--method", "best_source"], "method best_source: runs in a simulation only: "),
        (["field", "try", "--method", "none"], "method = 'none': allowed: "),
        (["device", "start", "none", "--data", "x"], "--allow: name the methods that may run here"),
        (["device", "start", "none", "--data", "x", "--allow", "y"], "--allow y: not a method of fedcore"),
        (["device", "start", "none", "--data", "x", "--allow", "fedavg"], "none: not a startup kit; fedcore"),
    ],
)
def test_a_wrong_command_is_refused_in_one_line(words, said, capsys):
    code, told = command(words, capsys)
    assert code == 2
    assert said in told
    assert len(told.splitlines()) == 1


def test_a_server_stays_until_it_is_stopped(tmp_path, capsys):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    kit = str(tmp_path / "field" / "server")
    words = ["--device", "b", "--device", "a", "--address", address, "--shape", "4", "--classes", "3"]
    assert command(["field", "init", str(tmp_path / "field"), *words], capsys)[0] == 0
    code, said = command(["field", "start", kit], capsys)
    assert (code, said.startswith(f"listening at {address} for 2 devices, process ")) == (0, True)
    code, said = command(["field", "status", kit], capsys)
    _, ends, *devices = said.splitlines()
    assert (ends[:22], devices) == ("certificates end on 20", ["a: away", "b: away"])
    assert command(["field", "start", kit], capsys)[0] == 2
    code, said = command(["device", "start", kit, "--data", "x", "--allow", "fedavg"], capsys)
    assert (code, ": the server's kit, which fedcore field start takes; " in said) == (2, True)
    assert command(["field", "stop", kit], capsys)[0] == 0
    assert command(["field", "status", kit], capsys)[1].splitlines()[0] == "no server has been started"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not count this memory")
def test_a_device_takes_no_more_memory_than_its_owner_allows():
    code = "import torch; from fedcore.cli.device import limit_memory; limit_memory(2.0); torch.zeros(2**30)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "can't allocate memory" in done.stderr
