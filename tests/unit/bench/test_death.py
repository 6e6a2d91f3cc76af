"""What the page says of a killed worker, with known figures; and the peers' side of it, with processes of our own."""

import subprocess
import sys
import threading
from importlib import import_module

import pytest

from tests.bench import death
from tests.bench.comparison import Comparison, Result, Round
from tests.bench.interruption import Killing
from tests.bench.peer import PEERS

TOLD = {"requests": 4, "tokens": 40, "tokens_per_s": 130.0, "limit_s": 10.0}


def killed(kind, seconds=None, **fields):
    found = {"undisturbed_s": 2.0, f"{kind}_lost": 0.0, f"{kind}_twice": 0.0, f"{kind}_again_tokens": 30.0}
    found |= {f"{kind}_{name}": value for name, value in fields.items()}
    return Round(figures=found | ({f"{kind}_seconds": seconds} if seconds else {}))


def rows(*results):
    text = death.body(Killing(), Comparison(results=results))
    return [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| |")]


def test_a_run_that_ends_shows_by_how_much_it_was_longer():
    row = rows(Result(name="Stoker", rounds=(killed("whole", 5.0, rerun_s=1.5), killed("whole", 7.0, rerun_s=2.5))))[-1]
    assert row.split(" | ") == [
        "| Stoker",
        "6.00 (5.00 to 7.00)",
        "4.00 (3.00 to 5.00)",
        "2.00 (1.50 to 2.50)",
        "0 (0 to 0)",
        "0 (0 to 0)",
        "30.0 (30.0 to 30.0) |",
    ]


def test_a_run_that_does_not_end_in_time_says_when_it_would():
    name = next(iter(death.CONFIGURED))
    row = rows(Result(name=name, rounds=(killed("whole", lost=1.0), killed("whole", 5.0))))[-1]
    assert "5.00; not within 15 s in 1 of 2 rounds; by configuration after the visibility timeout of 3,600 s" in row


def test_each_kind_of_death_has_a_table_of_those_that_were_killed_so():
    stoker = Result(
        name="Stoker", rounds=(Round(figures={**killed("child", 5.0).figures, **killed("whole", 6.0).figures}),)
    )
    ray = Result(name="Ray", rounds=(killed("whole", 5.0),))
    found = rows(stoker, ray)
    assert [row.split(" |")[0] for row in found if "Stoker" in row or "Ray" in row] == ["| Stoker", "| Stoker", "| Ray"]


def test_a_failure_stands_in_the_table():
    row = rows(
        Result(name="Stoker", rounds=(killed("whole", 5.0),)), Result(name="RQ", rounds=(Round(failure="too slow"),))
    )
    assert any(line.startswith("| RQ | too slow |") for line in row)


def test_every_peer_has_its_script_and_is_told_what_to_do():
    assert list(death.DEATHS) == list(death.VISIBILITY_S) == list(death.PEERS)
    assert all((PEERS / peer.script).is_file() for peer in death.PEERS.values())
    assert set(death.CONFIGURED) <= set(death.PEERS)


class Processes:
    """A system of the peers' kind: each request is a process, started again when it was killed, as often as `tries`."""

    def __init__(self, folder, tries):
        self._folder = str(folder)
        self._tries = tries
        self._done = []

    def submit(self, indices):
        done = self._done = []

        def run():
            done.extend(index for index in indices if self._succeeds(index))

        threading.Thread(target=run, daemon=True).start()

    def finished(self):
        return len(self._done)

    def _succeeds(self, index):
        program = (
            f"import sleeping; sleeping.generate({self._folder!r}, {index}, {TOLD['tokens']}, {TOLD['tokens_per_s']})"
        )
        command = [sys.executable, "-S", "-c", program]
        return any(subprocess.run(command, cwd=PEERS, check=False).returncode == 0 for _ in range(self._tries))


@pytest.fixture
def interrupted(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(PEERS))
    module = import_module("interruption")

    def measure(tries, limit_s):
        told = {**TOLD, "limit_s": limit_s, "folder": str(tmp_path)}
        run = module.Interruption(Processes(tmp_path, tries), told)
        return run.disturbed("child", module.KINDS["child"])

    yield measure
    for name in ("interruption", "sleeping"):
        sys.modules.pop(name)


def test_a_killed_request_that_runs_again_is_measured(interrupted):
    found = interrupted(tries=2, limit_s=10.0)
    assert found["child_lost"] == found["child_twice"] == 0
    assert found["child_seconds"] > found["child_rerun_s"] > 0
    assert 0 < found["child_again_tokens"] < TOLD["tokens"]


def test_a_killed_request_that_does_not_is_lost(interrupted):
    found = interrupted(tries=1, limit_s=1.5)
    assert found["child_lost"] >= 1  # that one, and on a slow machine also what was not through by then
    assert "child_seconds" not in found
    assert "child_rerun_s" not in found
