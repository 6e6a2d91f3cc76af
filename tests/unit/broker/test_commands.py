import pytest

from broker import panel
from broker.commands import COMMANDS, CallExtension, CheckHealth, SetLimits, Sleep, SwitchModel, parse_command
from broker.errors import InvalidRequestError


def test_the_names_are_stable_and_none_is_celery_s_own():
    from celery.worker.control import Panel

    own = {name for name, handler in Panel.data.items() if handler.__module__.startswith("celery.")}
    assert list(COMMANDS) == [
        "check_health",
        "memory",
        "set_limits",
        "sleep",
        "wake",
        "reload",
        "switch_model",
        "call_extension",
    ]
    assert not own & set(COMMANDS)
    assert {"ping", "shutdown"} <= own


def test_arguments_become_what_the_command_says():
    assert parse_command("set_limits", {"slots": "8", "kv_tokens": 0}) == SetLimits(slots=8)
    assert parse_command("check_health", {"deep": True}) == CheckHealth(deep=True)
    assert parse_command("call_extension", {"method": "add", "arguments": ["a=1"]}) == CallExtension(
        method="add", arguments=("a=1",)
    )
    assert parse_command("sleep", {"finish": "true"}) == Sleep(finish=True)
    assert parse_command("switch_model", {"model": "m"}) == SwitchModel(model="m")


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("nothing", {}, "there is no command 'nothing'; there are check_health, memory,"),
        ("set_limits", {}, "set_limits: give slots or kv_tokens, above 0"),
        ("set_limits", {"slots": -1}, "above 0"),
        ("set_limits", {"slots": "many"}, "Expected `int`"),
        ("sleep", {"finish": "perhaps"}, "Expected `bool`"),
        ("switch_model", {}, "missing required field `model`"),
        ("switch_model", {"model": ""}, "model must not be empty"),
        ("wake", {"soon": True}, "unknown field `soon`"),
    ],
)
def test_what_cannot_be_done_is_refused(name, arguments, why):
    with pytest.raises(InvalidRequestError, match=why):
        parse_command(name, arguments)


def test_celery_s_command_line_leaves_it_to_the_worker_to_say_what_is_wrong():
    from celery.worker.control import Panel

    panel.register()
    for name in COMMANDS:
        assert [convert("perhaps") for _, convert in Panel.meta[name].args] == ["perhaps"] * len(Panel.meta[name].args)
