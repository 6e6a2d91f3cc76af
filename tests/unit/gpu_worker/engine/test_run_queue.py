import pytest

from broker.messages import Request, SamplingParams
from gpu_worker.engine.errors import NoRoomError
from gpu_worker.engine.run_queue import RunQueue
from gpu_worker.engine.stepwise_row import Row


def row(request_id, max_tokens=8):
    request = Request(params=SamplingParams(max_tokens=max_tokens), prompt="p")
    return Row(request_id=request_id, request=request, prompt_ids=(1, 2), tokens=[], ends=(), decode=str)


def ids(rows):
    return [item.request_id for item in rows]


@pytest.fixture
def queue():
    return RunQueue(slots=2, kv_tokens=30, context_tokens=30)


def test_they_start_in_the_order_of_their_coming_as_slots_allow(queue):
    for name in "abc":
        queue.add(row(name))
    assert ids(queue.start()) == ["a", "b"]
    assert (queue.load.running, queue.load.waiting, queue.load.prompt_tokens) == (2, 1, 4)
    assert queue.start() == []
    queue.drop("b")
    assert ids(queue.start()) == ["c"]


def test_none_overtakes_one_that_has_no_room_yet(queue):
    for name, max_tokens in (("a", 8), ("large", 25), ("b", 2)):
        queue.add(row(name, max_tokens))
    assert ids(queue.start()) == ["a"]
    queue.drop("a")
    assert ids(queue.start()) == ["large"]


def test_one_that_is_held_back_waits_before_the_others_and_has_begun(queue):
    for name in "abc":
        queue.add(row(name))
    _, b = queue.start()
    queue.hold_back([b])
    assert (queue.runs(b), queue.not_begun) == (False, ("c",))
    assert ids(queue.start()) == ["b"]


def test_while_paused_nothing_starts_and_then_all_in_their_old_order(queue):
    for name in "abc":
        queue.add(row(name))
    queue.start()
    queue.pause()
    assert queue.start() == []
    queue.resume()
    assert ids(queue.start()) == ["a", "b"]


def test_sizes_change_unless_one_in_hand_would_never_have_room(queue):
    queue.add(row("a"))
    queue.add(row("b"))
    queue.start()
    with pytest.raises(NoRoomError, match="may need 10"):
        queue.resize(slots=0, kv_tokens=9)
    assert (queue.capacity.kv_tokens, queue.overfull) == (30, False)
    queue.resize(slots=0, kv_tokens=10)
    assert (queue.capacity.slots, queue.capacity.context_tokens, queue.overfull) == (2, 10, True)


def test_once_closed_it_holds_nothing_and_takes_nothing(queue):
    queue.add(row("a"))
    queue.start()
    queue.close()
    queue.add(row("b"))
    assert (queue.find("a"), queue.find("b"), queue.start()) == (None, None, [])
