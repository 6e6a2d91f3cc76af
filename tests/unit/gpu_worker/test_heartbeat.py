import logging
import threading

import pytest

from broker.errors import BrokerRefusedError, BrokerUnavailableError
from broker.records import BeatAnswer, BeatReply, Heartbeat
from gpu_worker.heartbeat import Heart
from tests.support.waiting import wait_until

REPORT = Heartbeat(state="ready")
GO_ON = BeatAnswer(reply=BeatReply.GO_ON)


class FakeSessions:
    """Answers each beat as told; the last answer is repeated."""

    def __init__(self, *answers):
        self._answers = list(answers)
        self.beats = []

    def beat(self, session_id, worker, heartbeat):
        self.beats.append((session_id, worker, heartbeat))
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

    def make(sessions, interval_s=600.0):
        heart = Heart(sessions, "s", "gpu0@host", interval_s, lambda: REPORT, replies.append)
        hearts.append(heart)
        return heart

    yield make
    for heart in hearts:
        heart.stop()


def test_a_beat_reports_and_passes_on_the_reply(make_heart, replies):
    sessions = FakeSessions(BeatAnswer(reply=BeatReply.DRAIN, recalled=2))
    make_heart(sessions).step()
    assert sessions.beats == [("s", "gpu0@host", REPORT)]
    assert replies == [BeatAnswer(reply=BeatReply.DRAIN, recalled=2)]


@pytest.mark.parametrize("kind", [BrokerUnavailableError, BrokerRefusedError])
def test_an_outage_is_logged_once_and_outlived(make_heart, replies, caplog, kind):
    down = kind("down")
    heart = make_heart(FakeSessions(down, down, GO_ON, down, GO_ON))
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            heart.step()
    assert replies == [GO_ON] * 2
    assert [record.getMessage() for record in caplog.records] == ["no heartbeat: down"] * 2


def test_the_first_beat_comes_at_once(make_heart):
    sessions = FakeSessions(GO_ON)
    make_heart(sessions).start()
    wait_until(lambda: len(sessions.beats) == 1)


def test_a_wanted_beat_does_not_wait_for_the_interval(make_heart):
    sessions = FakeSessions(GO_ON)
    heart = make_heart(sessions)
    heart.start()
    wait_until(lambda: len(sessions.beats) == 1)
    heart.beat_now()
    wait_until(lambda: len(sessions.beats) == 2)


def test_it_beats_on_by_itself(make_heart):
    sessions = FakeSessions(GO_ON)
    make_heart(sessions, interval_s=0.001).start()
    wait_until(lambda: len(sessions.beats) >= 5)


def test_after_a_stop_it_beats_no_more(make_heart):
    sessions = FakeSessions(GO_ON)
    heart = make_heart(sessions, interval_s=0.001)
    heart.start()
    wait_until(lambda: sessions.beats)
    heart.stop()
    heart.stop()
    count = len(sessions.beats)
    heart.beat_now()
    assert len(sessions.beats) == count
    assert not [thread for thread in threading.enumerate() if thread.name == "heartbeat"]


def test_the_reply_may_stop_it(replies):
    sessions = FakeSessions(BeatAnswer(reply=BeatReply.FENCED))
    heart = Heart(sessions, "s", "w", 0.001, lambda: REPORT, lambda _: heart.stop())
    heart.start()
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name == "heartbeat"])
    assert len(sessions.beats) == 1


def test_a_heart_that_never_started_can_be_stopped(make_heart):
    sessions = FakeSessions(GO_ON)
    make_heart(sessions).stop()
    assert sessions.beats == []


def test_one_bad_beat_does_not_stop_the_heart(make_heart, replies, caplog):
    heart = make_heart(FakeSessions(RuntimeError("the sensor is gone"), GO_ON), interval_s=0.01)
    heart.start()
    wait_until(lambda: replies)
    assert "a heartbeat failed" in caplog.text
