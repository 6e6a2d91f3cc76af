"""The work of the model benchmark, how it is measured, and what the page says of it, with known figures."""

import sys

import pytest

from tests.bench import efficiency
from tests.bench.comparison import Comparison, Result, Round
from tests.bench.model_work import Generated, Prompt, make_work, same_tokens, wrong_lengths
from tests.bench.peer import PEERS, PYTHON, PeerError
from tests.bench.resident import ResidentPeer
from tests.bench.residents import Trial, started

SCRIPT = """
import sys
sys.path.insert(0, {peers!r})
from resident import serve
def generate(work):
    if work[0]["prompt"].startswith("0 break"):
        raise SystemExit("broken")
    return [{{"tokens": [7] * item["max_tokens"], "text": "x"}} for item in work]
serve(generate)
"""


def generated(*lengths):
    return [Generated(tokens=(1,) * length, text="") for length in lengths]


def test_work_is_the_same_for_a_seed_and_no_prompt_comes_twice():
    work = make_work(200, 8, 16, seed=1)
    assert work == make_work(200, 8, 16, seed=1)
    assert work != make_work(200, 8, 16, seed=2)
    assert len({item.prompt for item in work}) == 200
    assert {item.max_tokens for item in work} == set(range(1, 17))


def test_missing_outputs_and_tokens_are_told():
    work = make_work(2, 1, 1, seed=1)
    assert wrong_lengths(work, generated(1, 1)) == ""
    assert wrong_lengths(work, generated(1)) == "1 outputs for 2 requests"
    assert "requests [1] have not" in wrong_lengths(work, generated(1, 2))


def test_same_tokens_are_counted():
    assert same_tokens(generated(1, 2, 3), generated(1, 5, 3)) == 2
    assert same_tokens(generated(1), generated(1, 5, 3)) == 1


class Fake:
    """A resident that needs two seconds for anything."""

    pids = ()

    def __init__(self, outputs=None, fault=""):
        self._outputs = outputs
        self._fault = fault
        self.closed = False

    def start(self):
        if self._fault:
            raise RuntimeError(self._fault)

    def generate(self, work, timeout_s):
        return 2.0, self._outputs or generated(*(item.max_tokens for item in work))

    def close(self):
        self.closed = True


def work_of(number):
    return make_work(3, 2, 4, seed=number)


def test_a_trial_gives_tokens_per_second_and_keeps_the_outputs_of_each_round():
    trial = Trial(Fake(), work_of)
    trial.start()
    for number in range(2):
        tokens = sum(item.max_tokens for item in work_of(number))
        assert trial.measure()["tokens_per_s"] == tokens / 2
    assert sorted(trial.outputs) == [0, 1]


def test_a_trial_refuses_what_is_wrong():
    trial = Trial(Fake(outputs=generated(9, 9, 9)), work_of)
    trial.start()
    with pytest.raises(RuntimeError, match="have not as many tokens"):
        trial.measure()


def test_one_that_does_not_start_says_so_in_every_round_and_all_are_closed():
    fakes = {"well": Fake(), "ill": Fake(fault="no model")}
    with started(fakes, lambda name, number: work_of(number)) as (contenders, _):
        assert contenders[0].measure()
        with pytest.raises(RuntimeError, match="did not start: no model"):
            contenders[1].measure()
    assert all(fake.closed for fake in fakes.values())


@pytest.fixture
def peer(monkeypatch, tmp_path):
    """A script with no model, in a process of its own."""
    monkeypatch.setenv(PYTHON, sys.executable)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(peers=str(PEERS)))
    made = ResidentPeer(str(script), {}, {})
    yield made
    made.close()


def test_a_resident_peer_is_measured_again_and_again(peer):
    peer.start()
    assert len(peer.pids) >= 3  # itself, the server and its guard
    for number in range(2):
        seconds, outputs = peer.generate(work_of(number), 10.0)
        assert seconds > 0
        assert [len(item.tokens) for item in outputs] == [item.max_tokens for item in work_of(number)]


def test_a_resident_peer_that_breaks_says_why(peer):
    peer.start()
    with pytest.raises(PeerError, match="broken"):
        peer.generate([Prompt(prompt="0 break", max_tokens=1)], 10.0)


def body(stoker, in_process):
    results = [Result(name=efficiency.STOKER, rounds=(Round(figures=figures(stoker)),))]
    if in_process:
        results.append(Result(name=efficiency.IN_PROCESS, rounds=(Round(figures=figures(in_process)),)))
    trials = {}
    for result in results:
        trials[result.name] = Trial(Fake(), work_of)
        trials[result.name].start()
        trials[result.name].measure()
    return efficiency.body(efficiency.Sizes(rounds=1), Comparison(results=tuple(results)), trials)


def figures(speed):
    return {"tokens_per_s": speed, "tokens_per_cpu_s": speed}


def test_the_goal_is_met_or_missed_by_the_ratio():
    assert "It is 0.96: met." in body(96, 100)
    assert "It is 0.94: missed." in body(94, 100)
    assert "that was not measured in this run" in body(96, 0)


def test_the_page_says_for_how_many_requests_the_tokens_are_the_same():
    assert body(96, 100).count("| 3 of 3 |") == 2


def test_who_calls_generate_gets_the_first_of_the_same_requests():
    sizes = efficiency.Sizes(requests=6, static_requests=2)
    everything = sizes.work(efficiency.STOKER, 1)
    work = {name: sizes.work(name, 1) for name in efficiency.PEERS}
    assert len(everything) == 6
    assert work[efficiency.IN_PROCESS] == everything
    assert sum(found == everything[:2] for found in work.values()) == 3


def test_every_peer_has_its_script_and_way():
    assert set(efficiency.WAYS) == set(efficiency.PEERS)
    assert all((PEERS / peer.script).is_file() for peer in efficiency.PEERS.values())
