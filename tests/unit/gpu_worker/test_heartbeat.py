import logging
import threading

import pytest

from broker.errors import BrokerRefusedError, BrokerUnavailableError
from broker.records import BeatAnswer, BeatReply, Heartbeat
from gpu_worker import heartbeat as heartbeat_module
from gpu_worker.heartbeat import Heart
from tests.support.waiting import wait_until

REPORT = Heartbeat(state="ready")
GO_ON = BeatAnswer(reply=BeatReply.GO_ON)


class FakePulse:
    """Answers each beat as told; the last answer is repeated."""

    def __init__(self, *answers, settled=True):
        self._answers = list(answers)
        self.is_settled = settled
        self.beats = []

    def beat(self, heartbeat):
        self.beats.append(heartbeat)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def replies():
    return []


@pytest.fixture
def make_heart(replies):
    hearts = []

    def make(pulse, interval_s=600.0):
        heart = Heart(pulse, interval_s, lambda: REPORT, replies.append)
        hearts.append(heart)
        return heart

    yield make
    for heart in hearts:
        heart.stop()


def test_a_beat_reports_and_passes_on_the_reply(make_heart, replies):
    pulse = FakePulse(BeatAnswer(reply=BeatReply.DRAIN, recalled=2))
    make_heart(pulse).step()
    assert pulse.beats == [REPORT]
    assert replies == [BeatAnswer(reply=BeatReply.DRAIN, recalled=2)]


def test_after_a_beat_that_failed_the_next_does_not_wait_for_the_interval(make_heart, replies, monkeypatch):
    monkeypatch.setattr(heartbeat_module, "RETRY_S", 0.01)
    heart = make_heart(FakePulse(BrokerUnavailableError("down"), BrokerUnavailableError("down"), GO_ON), 600.0)
    heart.start()
    wait_until(lambda: replies, what="the beat after the outage")
    assert replies == [GO_ON]


@pytest.mark.parametrize("kind", [BrokerUnavailableError, BrokerRefusedError])
def test_an_outage_is_logged_once_and_outlived(make_heart, replies, caplog, kind):
    down = kind("down")
    heart = make_heart(FakePulse(down, down, GO_ON, down, GO_ON))
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            heart.step()
    assert replies == [GO_ON] * 2
    assert [record.getMessage() for record in caplog.records] == ["no heartbeat: down"] * 2


def test_the_first_beat_comes_at_once(make_heart):
    pulse = FakePulse(GO_ON)
    make_heart(pulse).start()
    wait_until(lambda: pulse.beats)
    assert pulse.beats == [REPORT]


def test_a_wanted_beat_does_not_wait_for_the_interval(make_heart):
    pulse = FakePulse(GO_ON)
    heart = make_heart(pulse)
    heart.start()
    wait_until(lambda: len(pulse.beats) == 1)
    number = heart.beat_now()
    wait_until(lambda: len(pulse.beats) == 2)
    assert heart.answered(number, 30.0)


def test_it_beats_on_by_itself(make_heart):
    pulse = FakePulse(GO_ON)
    make_heart(pulse, interval_s=0.001).start()
    wait_until(lambda: len(pulse.beats) >= 5)
    assert set(pulse.beats) == {REPORT}


def test_a_beat_that_leaves_something_to_tell_is_followed_by_one_more(make_heart, replies):
    recalled = BeatAnswer(reply=BeatReply.GO_ON, recalled=2)
    pulse = FakePulse(recalled, GO_ON, settled=False)
    make_heart(pulse).step()
    assert pulse.beats == [REPORT] * 2
    assert replies == [recalled, GO_ON]


def test_a_stop_in_between_is_heeded():
    pulse = FakePulse(GO_ON, settled=False)
    heart = Heart(pulse, 600.0, lambda: REPORT, lambda _: heart.stop())
    heart.step()
    assert pulse.beats == [REPORT]


def test_after_a_stop_it_beats_no_more(make_heart):
    pulse = FakePulse(GO_ON)
    heart = make_heart(pulse, interval_s=0.001)
    heart.start()
    wait_until(lambda: pulse.beats)
    heart.stop()
    heart.stop()
    count = len(pulse.beats)
    heart.beat_now()
    assert len(pulse.beats) == count
    assert not [thread for thread in threading.enumerate() if thread.name == "heartbeat"]


def test_the_reply_may_stop_it(replies):
    pulse = FakePulse(BeatAnswer(reply=BeatReply.FENCED))
    heart = Heart(pulse, 0.001, lambda: REPORT, lambda _: heart.stop())
    heart.start()
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name == "heartbeat"])
    assert len(pulse.beats) == 1


def test_a_heart_that_never_started_can_be_stopped(make_heart):
    pulse = FakePulse(GO_ON)
    make_heart(pulse).stop()
    assert pulse.beats == []


def test_one_bad_beat_does_not_stop_the_heart(make_heart, replies, caplog):
    heart = make_heart(FakePulse(RuntimeError("the sensor is gone"), GO_ON), interval_s=0.01)
    heart.start()
    wait_until(lambda: replies)
    assert "a heartbeat failed" in caplog.text
