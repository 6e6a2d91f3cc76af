from broker.records import ScaleMode, ScaleRecord, Session
from broker.states import WorkerState
from driver.cli.scale import _as_json, _print


def sessions(*states):
    return [Session(id=str(place), worker="w", epoch=1, state=state) for place, state in enumerate(states)]


def test_each_state_of_workers_is_counted(capsys):
    table = sessions("ready", "ready", "sleeping", "dead")
    _print(ScaleRecord(), table)
    assert "2 ready, 0 loading, 0 draining, 1 sleeping" in capsys.readouterr().out
    found = _as_json(ScaleRecord(wanted=3), table)
    assert (found["ready"], found[WorkerState.SLEEPING], found["wanted"], found["bounds"]) == (2, 1, 3, None)


def test_who_has_set_the_number(capsys):
    for record, words in (
        (ScaleRecord(), "nobody"),
        (ScaleRecord(mode=ScaleMode.MANUAL, least=2, most=2), "stoker scale 2"),
        (ScaleRecord(mode=ScaleMode.AUTO, least=1, most=4), "stoker scale 1,4"),
        (ScaleRecord(wanted=1, bounds="1,4"), "the driver, --autoscale 1,4"),
        (ScaleRecord(wanted=2), "the driver, which has not decided anew yet"),
    ):
        _print(record, [])
        assert f"set by   {words}" in capsys.readouterr().out


def test_what_is_wrong_is_said(capsys):
    _print(ScaleRecord(wanted=2, problem="no such service"), [])
    assert "problem  no such service" in capsys.readouterr().out
