"""What every Lua command must keep to, whichever server runs it; what each does is tested in `tests/redis`."""

import re
from importlib.resources import files

import pytest

from broker.scripts import COMMANDS


def code(command):
    """A command's text without its comments."""
    text = files("broker").joinpath("lua", f"{command}.lua").read_text("utf-8")
    return re.sub(r"--.*", "", text)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_variable_is_negated_for_a_command(command):
    """A zero would be sent as "-0", which Valkey reads and Redis 7 refuses."""
    assert not re.findall(r",\s*-[a-z_].*", code(command))


@pytest.mark.parametrize("command", COMMANDS)
def test_no_key_is_made_up_inside(command):
    """Every key comes in KEYS."""
    calls = re.findall(r"redis\.call\('[A-Z]+', ([^,)]+)", code(command))
    assert all(first.startswith(("KEYS[", "unpack(KEYS")) for first in calls)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_clock_but_the_servers(command):
    assert not re.findall(r"\bos\.|math\.random", code(command))
