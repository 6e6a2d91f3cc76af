"""What is remembered of those that memory ran out with, until they have gone on."""

from types import SimpleNamespace

import pytest

from broker.messages import Request, SamplingParams
from gpu_worker.engine.book import Book, Held
from gpu_worker.engine.completions import Ending
from gpu_worker.engine.errors import EngineDeadError
from gpu_worker.engine.limits import StepSize
from gpu_worker.engine.rows import GREEDY
from gpu_worker.engine.shortage import Shortage

OOM = RuntimeError("out of memory")


class Room:
    """Says whether anything can still shrink; keeps what it is told."""

    def __init__(self):
        self.can_shrink = True
        self.told = []

    def shrink(self, used, needed_tokens, _loop, _steps):
        self.told.append(("shrink", used.rows, needed_tokens))
        return self.can_shrink

    def forgive(self):
        self.told.append("forgive")

    def settle(self):
        self.told.append("settle")


@pytest.fixture
def room():
    return Room()


@pytest.fixture
def book():
    made = Book()
    for name in "abc":
        params = SamplingParams(max_tokens=10)
        made.add(
            Held(
                request_id=name,
                request=Request(params=params, prompt="x"),
                prompt_ids=(1, 2),
                sampling=GREEDY,
                before=(),
                ending=Ending(params, (), str),
            )
        )
    return made


@pytest.fixture
def sampling():
    return SimpleNamespace(last=StepSize(), steps=0)


@pytest.fixture
def shortage(book, room, sampling):
    return Shortage(book, room, sampling)


def tokens(held):
    return held.progress


def ids(requests):
    return [held.request_id for held in requests]


def run_out(shortage, book, sampling, first):
    """Memory runs out in a step of all that are admitted, whose first is this one."""
    running = book.admit()
    key = next((held.key for held in running if held.request_id == first), "gone")
    sampling.last = StepSize(rows=len(running), tokens=9, first=key)
    return shortage.make_room(OOM, SimpleNamespace(kv_tokens=100))


def test_limits_may_grow_when_the_one_that_was_hit_has_a_token_more(shortage, book, room, sampling):
    assert shortage.is_over(tokens)
    assert run_out(shortage, book, sampling, "b") == []
    assert room.told == [("shrink", 3, 12)]
    assert ids(book.admit()) == ["a", "b", "c"]
    assert not shortage.is_over(tokens)
    book.find("b").progress = (7,)
    assert shortage.is_over(tokens)


def test_what_was_learned_holds_once_all_that_ran_then_are_gone(shortage, book, room, sampling):
    run_out(shortage, book, sampling, "b")
    book.remove(book.find("b"))
    assert shortage.is_over(tokens)
    book.remove(book.find("a"))
    shortage.is_over(tokens)
    assert "settle" not in room.told
    book.remove(book.find("c"))
    shortage.is_over(tokens)
    shortage.is_over(tokens)
    assert room.told.count("settle") == 1


def test_one_that_nothing_can_make_room_for_is_given_up_and_forgiven(shortage, book, room, sampling):
    room.can_shrink = False
    (given_up,) = run_out(shortage, book, sampling, "b")
    assert (given_up.held.request_id, given_up.code) == ("b", "out_of_memory")
    assert book.find("b") is None
    assert room.told[-1] == "forgive"
    assert shortage.is_over(tokens)


def test_where_it_was_cancelled_meanwhile_nobody_is_given_up(shortage, book, room, sampling):
    room.can_shrink = False
    assert run_out(shortage, book, sampling, "") == []
    assert room.told[-1] == "forgive"
    assert ids(book.admit()) == ["a", "b", "c"]


def test_a_shortage_with_nothing_to_run_is_the_end(shortage, room):
    room.can_shrink = False
    with pytest.raises(EngineDeadError, match="nothing to run"):
        shortage.make_room(OOM, SimpleNamespace(kv_tokens=100))


def test_a_step_of_which_nothing_is_known_blames_the_one_that_began_first(shortage, book, room):
    book.admit()
    room.can_shrink = False
    (given_up,) = shortage.make_room(OOM, SimpleNamespace(kv_tokens=100))
    assert given_up.held.request_id == "a"


def test_a_request_of_all_the_cache_still_fits(shortage, book):
    assert shortage.without_room(SimpleNamespace(kv_tokens=12)) == []
    assert ids(given.held for given in shortage.without_room(SimpleNamespace(kv_tokens=11))) == ["a", "b", "c"]
    assert len(book) == 0
