"""What the supervisor decides, with a child and a heartbeat table that do as the test says. No process is started."""

import itertools
import logging

import pytest

from broker.errors import BrokerUnavailableError, WorkerNameTakenError
from broker.records import Cause
from gpu_worker import supervisor as supervisor_module
from gpu_worker.device import Placement
from gpu_worker.exits import EXIT_CONFIGURATION, EXIT_ENGINE, EXIT_FENCED
from gpu_worker.settings import WorkerSettings
from gpu_worker.supervisor import EXIT_GIVEN_UP, FENCED_GRACE_S, HEALTHY_AFTER_S, KILL_GRACE_S, Supervisor
from tests.support.clock import FakeClock

PLACEMENT = Placement(name="gpu0@host", gpus=(0,))
LATER = 3600.0


class FakeChild:
    """Lives so long, then ends with its code; a signal ends it at once unless it is stubborn."""

    last_line = "last words"

    def __init__(self, clock, lives_s, code, *, stubborn=False, during=None):
        self._clock = clock
        self._ends_s = clock.now_s() + lives_s
        self._code = code
        self._stubborn = stubborn
        self._during = during
        self.signals = []
        self.killed_s = None

    def poll(self, timeout_s):
        if self._during is not None:
            self._during()
        if self._clock.now_s() >= self._ends_s:
            return self._code
        self._clock.advance(timeout_s)
        return None

    def terminate(self):
        self.signals.append("TERM")
        if not self._stubborn:
            self._code, self._ends_s = 0, self._clock.now_s()

    def kill(self):
        self.signals.append("KILL")
        self.killed_s = self._clock.now_s()
        self._code, self._ends_s = -9, self._clock.now_s()


class FakeSessions:
    """The heartbeat table as far as a supervisor sees it."""

    def __init__(self, clock):
        self._clock = clock
        self.taken_until_s = {}
        self.opened = []
        self.beats = []
        self.ends = []
        self.watched_s = []
        self.now_state = "ready"
        self.down = False

    def open(self, session_id, worker, instance, fields):
        self._clock.advance(1.0)
        if self._clock.now_s() < self.taken_until_s.get(worker, 0.0):
            raise WorkerNameTakenError(worker)
        self.opened.append((worker, instance))
        return 1

    def beat(self, session_id, worker, heartbeat):
        self.beats.append((worker, heartbeat.state))

    def current(self, worker, *, instance):
        assert instance == self.opened[0][1], "a supervisor speaks for its own sessions only"
        if self.down:
            raise BrokerUnavailableError("down")
        return f"session of {worker}"

    def watch(self, session_id, instance):
        assert instance == self.opened[0][1]
        self.watched_s.append(self._clock.now_s())
        return self.now_state

    def expire(self, session_id, cause, reason, *, instance):
        self.ends.append((session_id, cause, reason))
        return True


class Scene:
    """A supervisor whose children are played one after the other."""

    def __init__(self, monkeypatch, **settings):
        self.clock = FakeClock()
        self.sessions = FakeSessions(self.clock)
        self.settings = WorkerSettings(**{"restart_backoff": 0.0, "max_restarts": 3, "drain_timeout": 30.0, **settings})
        self.children = []
        self._script = []
        self.waits_s = []
        store = type(
            "Store",
            (),
            {"check": lambda: None, "sessions": self.sessions, "settings": type("S", (), {"heartbeat_timeout": 10.0})},
        )
        self.supervisor = Supervisor(store, self.settings, self.clock, {})
        monkeypatch.setattr(supervisor_module, "Child", self._start_child)
        monkeypatch.setattr(self.supervisor._stopping, "wait", self._wait)

    def plays(self, *lives):
        """Each life is (seconds, exit code, options)."""
        self._script = list(lives)
        return self

    def run(self, *placements):
        return self.supervisor.run(placements or [PLACEMENT])

    def _wait(self, seconds):
        self.waits_s.append(seconds)
        self.clock.advance(seconds)

    def _start_child(self, placement, instance, environ):
        lives_s, code, *options = self._script.pop(0)
        child = FakeChild(self.clock, lives_s, code, **(options[0] if options else {}))
        self.children.append(child)
        return child


@pytest.fixture
def scene(monkeypatch):
    return Scene(monkeypatch)


def test_a_worker_that_was_drained_ends_the_supervisor(scene):
    assert scene.plays((5, 0)).run() == 0
    assert scene.sessions.ends == [("session of gpu0@host", Cause.STOPPED, "its process ended with exit code 0")]


def test_while_its_worker_runs_the_supervisor_says_every_second_that_it_is_there(scene):
    scene.plays((5, 0)).run()
    times_s = scene.sessions.watched_s
    assert len(times_s) >= 5
    assert all(later - earlier <= 1.2 for earlier, later in itertools.pairwise(times_s))


def test_a_crash_is_reported_at_once_and_the_worker_restarted(scene):
    assert scene.plays((5, -9), (5, 0)).run() == 0
    assert scene.sessions.ends[0] == ("session of gpu0@host", Cause.CRASHED, "its process ended with SIGKILL")
    assert len(scene.children) == 2


@pytest.mark.parametrize(
    ("code", "cause"), [(EXIT_ENGINE, Cause.CRASHED), (1, Cause.CRASHED), (EXIT_FENCED, Cause.STOPPED)]
)
def test_only_a_crash_is_called_one(scene, code, cause):
    scene.plays((5, code), (5, 0)).run()
    assert scene.sessions.ends[0][1] is cause


def test_a_wrong_configuration_is_not_tried_again(scene):
    assert scene.plays((1, EXIT_CONFIGURATION)).run() == EXIT_CONFIGURATION
    assert len(scene.children) == 1


def test_too_many_crashes_in_a_row_end_it(scene, caplog):
    with caplog.at_level(logging.ERROR):
        assert scene.plays(*[(1, 1)] * 4).run() == EXIT_GIVEN_UP
    assert len(scene.children) == 4
    assert "crashed 4 times in a row; giving up; its last words: last words" in caplog.text


def test_a_long_life_ends_a_row_of_crashes(scene):
    long = (HEALTHY_AFTER_S + 1, 1)
    assert scene.plays((1, 1), (1, 1), (1, 1), long, (1, 1), (1, 1), (1, 0)).run() == 0


def test_restarts_wait_longer_with_each_crash_in_a_row(monkeypatch):
    scene = Scene(monkeypatch, restart_backoff=2.0, max_restarts=9)
    scene.plays(*[(1, 1)] * 7, (1, 0)).run()
    # Less the second that a look at the heartbeat table takes here.
    assert round(sum(scene.waits_s)) in range(2 + 4 + 8 + 16 + 30 + 30 - 7, 2 + 4 + 8 + 16 + 30 + 30 + 1)
    assert max(scene.waits_s) <= 1.0, "it must beat for its name meanwhile"
    assert scene.sessions.beats


def test_all_sessions_are_of_one_instance(scene):
    scene.plays((1, 1), (1, 0)).run()
    assert set(scene.sessions.opened) == {("gpu0@host", scene.supervisor._instance)}


# Names


def test_the_first_free_name_is_taken(scene):
    scene.sessions.taken_until_s["gpu0@host"] = scene.clock.now_s() + LATER
    scene.plays((1, 0)).run(PLACEMENT, Placement(name="gpu1@host", gpus=(1,)))
    assert [name for name, _ in scene.sessions.opened] == ["gpu1@host"]


def test_a_lone_name_is_waited_for_until_its_lease_is_over(scene):
    scene.sessions.taken_until_s["gpu0@host"] = scene.clock.now_s() + 8
    assert scene.plays((1, 0)).run() == 0


def test_a_lone_name_is_not_waited_for_for_ever(scene):
    scene.sessions.taken_until_s["gpu0@host"] = scene.clock.now_s() + LATER
    with pytest.raises(WorkerNameTakenError, match="already has gpu0@host"):
        scene.run()
    assert scene.children == []


def test_of_several_names_none_is_waited_for(scene):
    names = [Placement(name=f"gpu{i}@host", gpus=(i,)) for i in range(6)]
    scene.sessions.taken_until_s = {item.name: scene.clock.now_s() + LATER for item in names}
    with pytest.raises(WorkerNameTakenError, match="gpu0@host, gpu1@host, gpu2@host, gpu3@host: choose"):
        scene.run(*names)


# Stopping


def test_a_stop_drains_the_child_and_restarts_nothing(scene):
    scene.plays((LATER, 1, {"during": scene.supervisor.stop}))
    assert scene.run() == 0
    assert "TERM" in scene.children[0].signals
    assert "KILL" not in scene.children[0].signals


def test_a_stop_before_there_is_a_child_reaches_it_all_the_same(scene, monkeypatch):
    start = scene._start_child

    def stop_and_start(*arguments):
        scene.supervisor.stop()
        return start(*arguments)

    monkeypatch.setattr(supervisor_module, "Child", stop_and_start)
    assert scene.plays((LATER, 1)).run() == 0
    assert scene.children[0].signals == ["TERM"]


def test_a_stop_before_everything_starts_nothing(scene):
    scene.supervisor.stop()
    assert scene.run() == 0
    assert scene.children == []


def test_a_child_that_drains_too_long_is_killed(scene):
    stopped_s = scene.clock.now_s() + 1  # opening the session takes the fake a second
    scene.plays((LATER, 0, {"stubborn": True, "during": scene.supervisor.stop}))
    assert scene.run() == 0
    waited_s = scene.children[0].killed_s - stopped_s
    assert waited_s == pytest.approx(scene.settings.drain_timeout + KILL_GRACE_S, abs=1.0)


# A child whose session is dead, and that goes on


def test_a_fenced_child_that_does_not_end_is_killed(scene):
    started_s = scene.clock.now_s()

    def is_dead_until_killed():
        scene.sessions.now_state = "ready" if scene.children[0].killed_s else "dead"

    scene.plays((LATER, 0, {"during": is_dead_until_killed}), (1, 0))
    assert scene.run() == 0
    assert scene.children[0].signals == ["KILL"]
    assert FENCED_GRACE_S <= scene.children[0].killed_s - started_s <= FENCED_GRACE_S + 4
    assert len(scene.children) == 2


def test_a_forgotten_session_counts_as_dead(scene):
    def is_forgotten_until_killed():
        scene.sessions.now_state = "ready" if scene.children[0].killed_s else None

    scene.plays((LATER, 0, {"during": is_forgotten_until_killed}), (1, 0)).run()
    assert scene.children[0].signals == ["KILL"]


def test_a_child_that_ends_by_itself_is_not_killed(scene):
    def is_dead():
        scene.sessions.now_state = "dead"

    scene.plays((FENCED_GRACE_S, EXIT_FENCED, {"during": is_dead}), (0.5, 0)).run()
    assert scene.children[0].signals == []


def test_a_child_that_is_long_in_opening_its_session_is_not_killed_for_the_last_ones(scene):
    def dies():
        scene.sessions.now_state = "dead"

    scene.plays((1, -9, {"during": dies}), (60, 0)).run()
    assert [child.signals for child in scene.children] == [[], []]


def test_a_new_session_in_time_saves_the_child(scene):
    """The pool process behind it was replaced, and has opened a session of its own."""
    started_s = scene.clock.now_s()

    def heal():
        scene.sessions.now_state = "dead" if scene.clock.now_s() <= started_s + 3 else "ready"

    scene.plays((60, 0, {"during": heal})).run()
    assert scene.children[0].signals == []


def test_an_outage_of_redis_kills_nobody(scene, caplog):
    scene.sessions.down = True
    with caplog.at_level(logging.WARNING):
        assert scene.plays((60, 0)).run() == 0
    assert scene.children[0].signals == []
    assert "could not report the end of gpu0@host" in caplog.text
