from broker.deltas import TextDelta
from broker.messages import FinishReason
from gpu_worker.engine.base import Completion
from gpu_worker.inbox import Inbox


def completion(text="done"):
    return Completion(request_id="b/0", text=text, finish_reason=FinishReason.STOP)


def test_all_there_is_is_taken_at_once():
    inbox = Inbox()
    inbox.complete({0: completion("zero")})
    inbox.save(1, (5,))
    inbox.complete({2: completion("two")})
    news = inbox.take(0)
    assert {index: item.text for index, item in news.completed.items()} == {0: "zero", 2: "two"}
    assert news.saved == {1: (5,)}


def test_what_was_taken_is_gone():
    inbox = Inbox()
    inbox.complete({0: completion()})
    inbox.take(0)
    news = inbox.take(0)
    assert (news.completed, news.saved) == ({}, {})


def test_the_latest_tokens_count():
    inbox = Inbox()
    inbox.save(0, (1,))
    inbox.save(0, (1, 2))
    assert inbox.take(0).saved == {0: (1, 2)}


def test_a_request_that_has_ended_needs_no_saving():
    inbox = Inbox()
    inbox.save(0, (1,))
    inbox.complete({0: completion()})
    assert inbox.take(0).saved == {}


def test_a_wake_up_brings_nothing_and_ends_the_wait():
    inbox = Inbox()
    inbox.wake()
    news = inbox.take(None)  # would wait for ever
    assert (news.completed, news.saved) == ({}, {})


def test_what_comes_after_a_wake_up_is_not_left_behind():
    inbox = Inbox()
    inbox.wake()
    inbox.complete({0: completion()})
    inbox.wake()
    inbox.complete({1: completion()})
    assert sorted(inbox.take(None).completed) == [0, 1]


def test_a_wait_ends_when_nothing_comes():
    assert Inbox().take(0.01).completed == {}


def test_new_texts_of_a_request_are_put_together():
    inbox = Inbox()
    inbox.publish(TextDelta(index=0, offset=2, text="cd"))
    inbox.publish(TextDelta(index=1, offset=0, text="x"))
    inbox.publish(TextDelta(index=0, offset=4, text="e"))
    news = inbox.take(0)
    assert news.texts == {0: TextDelta(index=0, offset=2, text="cde"), 1: TextDelta(index=1, offset=0, text="x")}
    assert inbox.take(0).texts == {}


def test_the_new_text_of_a_request_that_has_ended_is_in_its_completion():
    inbox = Inbox()
    inbox.publish(TextDelta(index=0, offset=0, text="x"))
    inbox.complete({0: completion()})
    assert inbox.take(0).texts == {}
