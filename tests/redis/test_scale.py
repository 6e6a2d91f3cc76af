"""How many workers are wanted: people set bounds, the leader decides, and everybody can read it."""

import json

import pytest

from broker.errors import InvalidRequestError
from broker.ledger import NotLeaderError
from broker.records import ScaleMode, ScaleRecord
from driver.cli.scale import scale as scale_command
from tests.support.stage import LEADER


@pytest.fixture
def scale(stage):
    return stage.store.scale


def want(scale, wanted, token=LEADER, **fields):
    scale.want(token, ScaleRecord(wanted=wanted, **fields))


def exported(stage):
    """What KEDA's Redis scaler would read."""
    return stage.redis.llen(stage.keys.scale_wanted)


def test_nothing_is_set_at_first(scale):
    assert scale.read() == ScaleRecord()


def test_people_set_a_number_or_bounds_and_wake_the_leader(scale, stage):
    stage.wakes()
    scale.set_manual(3)
    assert (scale.read().mode, scale.read().least, scale.read().most) == (ScaleMode.MANUAL, 3, 3)
    assert stage.wakes()
    scale.set_auto(1, 8)
    assert (scale.read().mode, scale.read().least, scale.read().most) == (ScaleMode.AUTO, 1, 8)
    scale.unset()
    assert scale.read() == ScaleRecord()


def test_bounds_of_another_time_are_not_taken_for_the_drivers_own(scale):
    want(scale, 2, bounds="2,2")
    scale.unset()
    assert (scale.read().wanted, scale.read().bounds) == (2, "")


def test_the_command_says_that_nobody_acts_on_it(stage, settings, monkeypatch, capsys):
    monkeypatch.setenv("STOKER_NAMESPACE", settings.namespace)
    scale_command("2", settings.broker_url)
    assert "problem" not in capsys.readouterr().out
    stage.redis.delete(stage.keys.leader)
    scale_command("1,2", settings.broker_url, as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert (shown["mode"], shown["bounds"], shown["wanted"]) == ("auto", "1,2", None)
    assert "no driver is running" in shown["problem"]


@pytest.mark.parametrize(("least", "most"), [(-1, 1), (2, 1), (0, 10_001)])
def test_bounds_that_cannot_be_are_refused(scale, least, most):
    with pytest.raises(InvalidRequestError):
        scale.set_auto(least, most)
    assert scale.read() == ScaleRecord()


@pytest.mark.parametrize("wanted", [3, 1, 1, 0, 5])
def test_a_decision_is_a_number_and_the_length_of_a_list(scale, stage, wanted):
    want(scale, 2)
    want(scale, wanted, bounds="0,5", reason="so much work", problem="no room")
    record = scale.read()
    assert (record.wanted, record.bounds, record.reason, record.problem) == (wanted, "0,5", "so much work", "no room")
    assert exported(stage) == wanted


def test_only_the_leader_decides(scale, stage):
    with pytest.raises(NotLeaderError):
        want(scale, 2, token="another")
    assert exported(stage) == 0


def test_the_time_of_a_decision_is_that_of_the_change(scale, stage):
    want(scale, 2)
    stage.redis.hset(stage.keys.scale, "decided_ms", 1)
    want(scale, 2, reason="again")
    assert scale.read().decided_ms == 1
    want(scale, 3)
    assert scale.read().decided_ms > 1


def test_the_decision_stays_when_people_take_theirs_back(scale, stage):
    """Who reads the number must not see a 0 until the leader has decided anew."""
    scale.set_manual(4)
    want(scale, 4)
    scale.unset()
    assert (scale.read().wanted, exported(stage)) == (4, 4)


def test_the_leader_ends_the_decision_but_not_peoples_word(scale, stage):
    scale.set_manual(4)
    want(scale, 4)
    want(scale, -1)
    assert scale.read().mode is ScaleMode.MANUAL
    scale.unset()
    want(scale, -1)
    assert not stage.has_key(stage.keys.scale)
    assert not stage.has_key(stage.keys.scale_wanted)


def test_a_record_that_cannot_be_read_counts_as_none(scale, stage):
    stage.redis.hset(stage.keys.scale, "least", "many")
    assert scale.read() == ScaleRecord()
    stage.redis.delete(stage.keys.scale)
