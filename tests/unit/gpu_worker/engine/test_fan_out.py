import pytest

from broker.messages import FinishReason, OutputError, Request, SamplingParams, Usage
from gpu_worker.engine.base import Completion
from gpu_worker.engine.fan_out import FanOut


class FakeEngine:
    """Ends what the test says."""

    def __init__(self):
        self.held = {}
        self.ending = []

    def submit(self, request_id, request, *, generated=()):
        self.held[request_id] = (request, generated)

    def step(self, timeout_s):
        ended, self.ending = self.ending, []
        return ended

    def cancel(self, request_id):
        return done(request_id, 9) if self.held.pop(request_id, None) else None

    def generated(self, request_id):
        return (1, 2) if request_id in self.held else ()

    def not_begun(self):
        return tuple(self.held)

    def end(self, place, *tokens, error=None):
        request_id = list(self.held)[place]
        self.ending.append(done(request_id, *tokens, error=error))


def done(request_id, *tokens, error=None):
    return Completion(
        request_id=request_id,
        text="".join(map(str, tokens)),
        token_ids=tokens,
        finish_reason=FinishReason.STOP,
        usage=Usage(prompt_tokens=3, completion_tokens=len(tokens)),
        error=error and OutputError(code=error, message=error),
    )


@pytest.fixture
def inner():
    return FakeEngine()


@pytest.fixture
def engine(inner):
    return FanOut(inner)


def request(n):
    return Request(params=SamplingParams(n=n), prompt="x")


def test_one_text_passes_through(engine, inner):
    engine.submit("a", request(1), generated=(4,))
    assert inner.held == {"a": (request(1), (4,))}
    inner.end(0, 5)
    assert engine.step(0) == [done("a", 5)]
    assert engine.generated("a") == (1, 2)


def test_several_texts_are_one_completion_when_all_are_there(engine, inner):
    engine.submit("a", request(3))
    inner.end(2, 7)
    assert engine.step(0) == []
    assert engine.generated("a") == (1, 2, -1, 1, 2, -1, 7)
    inner.end(0, 5, 6)
    inner.end(1)
    (joined,) = engine.step(0)
    assert joined.request_id == "a"
    assert [choice.token_ids for choice in joined.choices] == [(5, 6), (), (7,)]
    assert (joined.text, joined.token_ids) == ("56", (5, 6))
    assert (joined.usage.prompt_tokens, joined.usage.completion_tokens) == (3, 3)
    assert joined.checkpoint == (5, 6, -1, -1, 7)


def test_each_text_goes_on_from_its_own_tokens(engine, inner):
    engine.submit("a", request(2), generated=(1, -1, 2, 3))
    assert [generated for _, generated in inner.held.values()] == [(1,), (2, 3)]


def test_one_that_fails_ends_them_all(engine, inner):
    engine.submit("a", request(3))
    inner.end(0, 1)
    inner.end(1, error="engine_error")
    inner.end(2, 3)
    (failed,) = engine.step(0)
    assert (failed.request_id, failed.error.code) == ("a", "engine_error")
    assert failed.finish_reason is FinishReason.ERROR
    assert inner.held == {}


def test_a_cancelled_one_gives_what_each_text_had(engine, inner):
    engine.submit("a", request(2))
    inner.end(0, 5)
    engine.step(0)
    cancelled = engine.cancel("a")
    assert [choice.token_ids for choice in cancelled.choices] == [(5,), (9,)]
    assert engine.cancel("a") is None
    inner.end(0, 6)  # it was on its way
    assert engine.step(0) == []


def test_one_in_hand_is_not_taken_twice(engine, inner):
    engine.submit("a", request(2))
    engine.submit("a", request(2))
    assert len(inner.held) == 2


def test_a_request_has_begun_when_one_of_its_texts_has(engine, inner):
    for name, texts in (("a", 2), ("b", 1), ("c", 2)):
        engine.submit(name, request(texts))
    assert engine.not_begun() == ("a", "b", "c")
    del inner.held[next(iter(inner.held))]  # the first text of a has begun
    assert engine.not_begun() == ("b", "c")
