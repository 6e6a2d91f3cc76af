import pytest

from broker.messages import Request, SamplingParams
from broker.records import ClaimedRequest
from gpu_worker.engine.simulated import SimulatedEngine, SimulatedOptions
from gpu_worker.inbox import Inbox
from gpu_worker.seat import Seat
from tests.support.waiting import wait_until


@pytest.fixture
def seat():
    made = Seat(64, pytest.fail)
    yield made
    made.clear(60)


def generate(seat, tokens):
    inbox = Inbox()
    request = Request(prompt="x", params=SamplingParams(max_tokens=tokens, min_tokens=tokens))
    seat.loop.submit("batch", (ClaimedRequest(index=0, request=request),), inbox)
    assert inbox.take(60).completed[0].error is None


def test_an_empty_seat_has_nothing_to_say(seat):
    assert (seat.engine, seat.loop, seat.view(), seat.last_step_s) == (None, None, None, None)
    assert seat.clear(60)


def test_counters_go_on_when_another_engine_takes_the_seat(seat):
    seat.put(SimulatedEngine())
    generate(seat, 5)
    before = seat.view()
    assert before.load.generated_tokens == 5
    assert seat.last_step_s is not None
    first = seat.loop
    assert seat.clear(60)
    assert (seat.engine, seat.loop) == (None, None)
    assert seat.view().load.generated_tokens == 5
    seat.put(SimulatedEngine(SimulatedOptions(slots=3)))
    assert seat.loop is not first
    assert seat.view().capacity.slots == 3
    generate(seat, 4)
    after = seat.view().load
    assert after.generated_tokens == 9
    assert after.steps > before.load.steps


def test_an_engine_that_is_worked_on_is_asked_nothing(seat):
    engine = SimulatedEngine()
    seat.put(engine)
    with seat.hold() as held:
        assert held is engine
        engine.resize(slots=1)
        assert seat.engine is None
        assert seat.view().capacity.slots == 32
        assert seat.loop is not None
    assert seat.view().capacity.slots == 1


def test_an_engine_whose_step_does_not_end_is_told(seat):
    class Wedged(SimulatedEngine):
        stepping = False

        def step(self, timeout_s):
            self.stepping = True
            while not self.let_go:
                self._closed.wait(0.01)
            return []

        let_go = False

    engine = Wedged()
    seat.put(engine)
    wait_until(lambda: engine.stepping)
    assert not seat.clear(0.05)
    assert seat.loop.answered_s > 0
    engine.let_go = True
    assert seat.clear(60)
