"""`scripts/bench` still runs: every scenario in its short form; peers' scripts as processes that leave nothing."""

import sys

import psutil
import pytest
from typer.testing import CliRunner

from tests.bench import peer
from tests.bench.__main__ import app
from tests.bench.everything import SCENARIOS
from tests.bench.peer import PYTHON, PeerError, run_peer
from tests.support.waiting import wait_until

GOOD = """
import json, redis, sys
told = json.loads(sys.argv[1])
redis.Redis.from_url(told["broker_url"]).ping()
print("a word before")
print(json.dumps({"requests_per_s": told["requests"] * 2}))
"""
HANGS = """
import os, pathlib, subprocess, sys
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
pathlib.Path("pids").write_text(f"{os.getpid()} {child.pid}")
child.wait()
"""


@pytest.mark.parametrize("name", [scenario.name for scenario in SCENARIOS])
def test_every_scenario_runs_in_its_short_form(name, monkeypatch):
    monkeypatch.setenv(PYTHON, "no-peers")
    done = CliRunner().invoke(app, [name, "--quick"])
    assert done.exit_code == 0, done.output
    assert "  round 1 of 1: " in done.output
    assert "\n|---|" in done.output


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Puts a peer's script into the place of the real ones, to be run by this Python."""
    monkeypatch.setenv(PYTHON, sys.executable)
    monkeypatch.setattr(peer, "PEERS", tmp_path)

    def write(text):
        (tmp_path / "peer.py").write_text(text)
        return tmp_path

    return write


def test_a_peer_has_a_server_of_its_own_and_gives_figures(script):
    script(GOOD)
    assert run_peer("peer.py", {"requests": 4}, 30) == {"requests_per_s": 8}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("raise SystemExit('2 results are wrong')", "ended with 1: 2 results are wrong"),
        ("print('nothing')", "gave no figures"),
        ('print(\'{"requests_per_s": "many"}\')', "gave no figures"),
    ],
)
def test_a_peer_that_fails_says_why(script, text, reason):
    script(text)
    with pytest.raises(PeerError, match=reason):
        run_peer("peer.py", {}, 30)


def test_a_peer_that_hangs_is_ended_with_all_that_it_started(script):
    folder = script(HANGS)
    with pytest.raises(PeerError, match="took longer than 2 s"):
        run_peer("peer.py", {}, 2)
    pids = [int(pid) for pid in (folder / "pids").read_text().split()]
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids), what=f"the end of {pids}")
