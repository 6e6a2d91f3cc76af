import os
import threading

import pytest

from broker.chat import ChatMessage
from broker.messages import FinishReason, Request, SamplingParams
from gpu_worker.engine import faults
from gpu_worker.engine.simulated import SimulatedEngine, SimulatedOptions


class ManualClock:
    def __init__(self):
        self.time_s = 0.0

    def now_s(self):
        return self.time_s

    def sleep(self, seconds):
        self.time_s += seconds


def request(prompt="one two three", **params):
    return Request(params=SamplingParams(**params), prompt=prompt)


def run(engine, *requests):
    for index, item in enumerate(requests):
        engine.submit(str(index), item)
    done = {}
    while len(done) < len(requests):
        done |= {item.request_id: item for item in engine.step(1.0)}
    return [done[str(index)] for index in range(len(requests))]


def test_the_answer_follows_from_the_request():
    engine = SimulatedEngine()
    same = request(max_tokens=20, seed=1)
    first, second, seed, prompt = run(
        engine, same, same, request(max_tokens=20, seed=2), request("other", max_tokens=20, seed=1)
    )
    assert first.text == second.text
    assert len({first.text, seed.text, prompt.text}) == 3


def test_greedy_ignores_the_seed():
    one, two = run(SimulatedEngine(), request(temperature=0, seed=1), request(temperature=0, seed=2))
    assert one.token_ids == two.token_ids


def test_prompt_and_answer_are_counted():
    chat = Request(params=SamplingParams(max_tokens=5), messages=(ChatMessage(role="user", content="a b c"),))
    plain, turns = run(SimulatedEngine(), request(max_tokens=3), chat)
    assert (plain.usage.prompt_tokens, plain.usage.completion_tokens) == (3, 3)
    assert (turns.usage.prompt_tokens, turns.usage.completion_tokens) == (4, 5)


def test_speeds_are_kept():
    clock = ManualClock()
    engine = SimulatedEngine(SimulatedOptions(tokens_per_s=10, prefill_tokens_per_s=3), clock=clock)
    engine.submit("a", request(max_tokens=20))
    assert engine.step(0) == []
    clock.time_s = 1.0  # the prompt is read
    engine.step(0)
    assert engine.generated("a") == ()
    clock.time_s = 1.51
    engine.step(0)
    assert len(engine.generated("a")) == 5
    clock.time_s = 3.01
    (done,) = engine.step(0)
    assert len(done.token_ids) == 20


def test_no_more_run_than_there_are_slots():
    engine = SimulatedEngine(SimulatedOptions(slots=2))
    for name in "abc":
        engine.submit(name, request(max_tokens=4))
    engine.step(0)
    assert (engine.load.running, engine.load.waiting) == (2, 1)


def test_free_time_gives_one_token_a_step():
    engine = SimulatedEngine()
    engine.submit("a", request(max_tokens=4))
    engine.step(0)
    assert (len(engine.generated("a")), engine.load.steps, engine.load.generated_tokens) == (1, 1, 1)


def test_a_failing_request_fails_alone():
    engine = SimulatedEngine(SimulatedOptions(faults=True))
    bad, good = run(engine, request(f"x {faults.FAIL}"), request())
    assert bad.error.code == "engine_error"
    assert good.finish_reason is FinishReason.LENGTH


def test_memory_that_runs_out_shrinks_the_slots_and_keeps_every_request():
    asked = [request(f"{place} two three", max_tokens=20, seed=place) for place in range(8)]
    undisturbed = run(SimulatedEngine(), *asked)
    engine = SimulatedEngine(SimulatedOptions(slots=8, memory_tokens=70, quiet_steps=30))
    assert run(engine, *asked) == undisturbed
    shrunk = engine.capacity.slots
    assert shrunk in {2, 3}
    for _ in range(20):
        run(engine, request(max_tokens=20))
    assert shrunk < engine.capacity.slots < 8


def test_one_that_does_not_fit_alone_fails_alone():
    engine = SimulatedEngine(SimulatedOptions(slots=8, memory_tokens=70))
    good = [request(str(place), max_tokens=10) for place in range(4)]
    bad, *others = run(engine, request("x " * 60, max_tokens=50), *good)
    assert bad.error.code == "out_of_memory"
    assert "shorter prompt" in bad.error.message
    assert [done.text for done in others] == [done.text for done in run(SimulatedEngine(), *good)]
    assert engine.capacity.slots == 8


def test_a_request_can_ask_for_too_little_memory():
    bad, good = run(SimulatedEngine(SimulatedOptions(faults=True)), request(faults.OOM), request())
    assert (bad.error.code, good.error) == ("out_of_memory", None)


def test_faults_are_only_words_unless_allowed():
    (done,) = run(SimulatedEngine(), request(f"{faults.DIE} {faults.HANG} {faults.FAIL}"))
    assert done.error is None


def test_a_hanging_step_lets_others_look_and_ends_with_the_engine():
    engine = SimulatedEngine(SimulatedOptions(faults=True))
    engine.submit("a", request(faults.HANG))
    thread = threading.Thread(target=engine.step, args=(0.0,))
    thread.start()
    while engine.load.running == 0:
        assert thread.is_alive()
    assert engine.generated("a") == ()
    engine.close()
    thread.join(60)
    assert not thread.is_alive()


def test_dying_kills_the_process(monkeypatch):
    killed = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))
    engine = SimulatedEngine(SimulatedOptions(faults=True))
    engine.submit("a", request(faults.DIE))
    engine.step(0)
    assert killed == [(os.getpid(), 9)]


@pytest.mark.parametrize(
    "params",
    [
        {"logprobs": 0},
        {"logit_bias": {1: 1}},
        {"repetition_penalty": 1.1},
        {"presence_penalty": 1},
        {"frequency_penalty": -1},
    ],
)
def test_what_needs_scores_is_refused_by_name(params):
    bad, good = run(SimulatedEngine(), request(**params), request(repetition_penalty=1.0))
    assert bad.error.code == "unsupported_parameter"
    assert bad.error.message.startswith(f"{next(iter(params))} is not offered by the simulated engine")
    assert good.error is None


def test_one_that_memory_has_driven_out_has_begun():
    engine = SimulatedEngine(SimulatedOptions(slots=2, memory_tokens=10))
    for name in "abc":
        engine.submit(name, request("one two", max_tokens=8))
    assert engine.not_begun() == ("a", "b", "c")
    while engine.load.running != 1:
        engine.step(0.0)
    assert engine.load.waiting == 2
    assert engine.not_begun() == ("c",)
