"""The command of a user as a scaler: what it is asked, one at a time, and what is said when it fails."""

import shlex
import sys

import pytest

from broker.errors import ConfigurationError
from driver.scalers.command import CommandScaler, command_scaler, command_words
from driver.settings import DriverSettings
from tests.support.waiting import wait_until


@pytest.fixture
def make(tmp_path):
    """A scaler by a small program, which gets the number and a log file as arguments."""
    made = []

    def scaler(program, *, timeout_s=30.0, retry_s=30.0):
        script = tmp_path / "scale.py"
        script.write_text(
            f"import sys, time\nn, log = int(sys.argv[1]), open({str(tmp_path / 'log')!r}, 'a')\n{program}"
        )
        made.append(CommandScaler(shlex.join([sys.executable, "-S", "-E", str(script), "{n}"]), timeout_s, retry_s))
        return made[-1]

    yield scaler
    for item in made:
        item.close()


@pytest.fixture
def asked(tmp_path):
    """The numbers that the program was asked for."""
    return lambda: [int(line) for line in (tmp_path / "log").read_text().split()] if (tmp_path / "log").exists() else []


LOG = "print(n, file=log, flush=True)\n"


def test_each_number_is_asked_for_once(make, asked):
    scaler = make(LOG)
    for wanted in (2, 2, 2):
        assert scaler.scale(wanted, []) == ""
    wait_until(lambda: asked() == [2])
    scaler.scale(3, [])
    wait_until(lambda: asked() == [2, 3])


def test_a_number_that_changes_while_the_command_runs_waits_for_its_end(make, asked, tmp_path):
    scaler = make(
        LOG + f"import os\nwhile n == 1 and not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)\n" + LOG
    )
    scaler.scale(1, [])
    wait_until(lambda: asked() == [1])
    for wanted in (2, 3, 4):
        scaler.scale(wanted, [])
    (tmp_path / "go").touch()
    wait_until(lambda: len(asked()) == 4)
    assert asked() == [1, 1, 4, 4]  # never two at a time, and only the last number counts


def test_a_failure_is_told_and_tried_again(make, asked):
    scaler = make(LOG + "if len(open(log.name).readlines()) < 3: sys.exit('no such service')\n", retry_s=0.01)
    scaler.scale(1, [])
    wait_until(lambda: "exit code 1: no such service" in scaler.scale(1, []) or len(asked()) == 3)
    wait_until(lambda: scaler.scale(1, []) == "")
    assert asked() == [1, 1, 1]


def test_another_number_is_asked_for_at_once_after_a_failure(make, asked):
    scaler = make(LOG + "sys.exit(n == 1)\n")
    scaler.scale(1, [])
    wait_until(lambda: scaler.scale(1, []))
    scaler.scale(2, [])
    wait_until(lambda: scaler.scale(2, []) == "")
    assert asked() == [1, 2]


def test_a_command_that_does_not_end_is_ended(make):
    scaler = make("time.sleep(600)\n", timeout_s=0.2)
    scaler.scale(1, [])
    problem = wait_until(lambda: scaler.scale(1, []))
    assert "did not end within 0.2 s" in problem


def test_a_command_that_is_not_there_is_told():
    scaler = CommandScaler("/no/such/program {n}", 1.0)
    scaler.scale(1, [])
    problem = wait_until(lambda: scaler.scale(1, []))
    assert problem == "/no/such/program cannot be run: No such file or directory"
    scaler.close()


def test_closing_ends_the_command_that_runs(make, asked):
    scaler = make(LOG + "time.sleep(600)\n")
    scaler.scale(1, [])
    wait_until(asked)
    scaler.close()
    scaler.close()
    scaler.scale(2, [])
    assert asked() == [1]


def test_the_number_is_put_in_without_a_shell():
    assert command_words("docker compose up -d --scale 'gpu-worker={n}' ; rm") == [
        *("docker", "compose", "up", "-d", "--scale", "gpu-worker={n}", ";", "rm")
    ]


@pytest.mark.parametrize("command", ["", "kubectl scale", "kubectl 'scale {n}", "   "])
def test_a_command_that_cannot_be_is_refused(command):
    with pytest.raises(ConfigurationError, match="scale_command"):
        command_words(command)


def test_the_settings_may_name_none():
    assert command_scaler(DriverSettings()) is None
    assert command_scaler(DriverSettings(scale_command="x {n}")) is not None
