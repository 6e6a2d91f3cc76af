"""Which requests a loop with CUDA graphs can run, and when one without is left again."""

import math

import msgspec
import pytest

from gpu_worker.engine import graphs
from gpu_worker.engine.graphs import Graphs
from gpu_worker.engine.rows import GREEDY, LogprobRecord

SPECIAL = msgspec.structs.replace(GREEDY, record=LogprobRecord(0))


def test_a_loop_with_graphs_suits_all_but_those_that_need_python():
    kind = Graphs(on=True)
    assert kind.suit(GREEDY, eager=False, idle=True)
    assert not kind.suit(SPECIAL, eager=False, idle=True)


def test_a_new_loop_has_graphs_unless_one_in_hand_needs_python():
    kind = Graphs(on=True)
    assert not kind.choose([GREEDY, SPECIAL])
    assert kind.choose([GREEDY])


@pytest.mark.parametrize(
    ("idle", "linger_s", "kept"), [(False, -math.inf, True), (True, -math.inf, False), (True, 60, True)]
)
def test_one_without_is_left_when_it_is_idle_and_was_not_needed_for_a_while(monkeypatch, idle, linger_s, kept):
    monkeypatch.setattr(graphs, "_LINGER_S", linger_s)
    kind = Graphs(on=True)
    kind.note(SPECIAL)
    kind.choose([SPECIAL])
    assert kind.suit(GREEDY, eager=True, idle=idle) == kept


def test_one_that_runs_eagerly_for_want_of_a_gpu_is_not_left():
    kind = Graphs(on=True)
    assert kind.suit(GREEDY, eager=True, idle=True)
