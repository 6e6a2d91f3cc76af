"""A command gets as many keys as it speaks of, each once; that they are the right ones is tested in `tests/redis`."""

import re
from importlib.resources import files

import pytest

from broker import ledger_keys
from broker.keys import Keys

NAMES = Keys("ns")
KEYS = {
    "abandon": ledger_keys.abandon(NAMES, "j"),
    "assign": ledger_keys.assign(NAMES, "s", "b", "j", "gpu0@host"),
    "cancel": ledger_keys.cancel(NAMES, "j"),
    "claim": ledger_keys.claim(NAMES, "s", "b", "j"),
    "commit": ledger_keys.commit(NAMES, "s", "b", "j"),
    "finish": ledger_keys.finish(NAMES, "s", "b"),
    "release": ledger_keys.release(NAMES, "s", "b", "j"),
    "submit": ledger_keys.submit(NAMES, "j"),
}


@pytest.mark.parametrize("command", KEYS)
def test_a_command_gets_the_keys_that_its_header_numbers(command):
    text = files("broker").joinpath("lua", f"{command}.lua").read_text("utf-8")
    header = re.search(r"^-- KEYS (.*?)^-- (?:ARGV|Returns)", text, re.MULTILINE | re.DOTALL)[1]
    numbers = [int(number) for number in re.findall(r"(?:^|\s)(\d+) [a-z]", header)]
    assert numbers == list(range(1, len(KEYS[command]) + 1))


@pytest.mark.parametrize("command", KEYS)
def test_no_key_is_given_twice(command):
    assert len(set(KEYS[command])) == len(KEYS[command])
