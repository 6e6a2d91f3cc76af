import msgspec

from broker.messages import Request, SamplingParams
from gpu_worker.engine.book import Book, Held
from gpu_worker.engine.completions import Ending
from gpu_worker.engine.rows import GREEDY, LogprobRecord


def held(request_id, before=()):
    return Held(
        request_id=request_id,
        request=Request(params=SamplingParams(), prompt="x"),
        prompt_ids=(1,),
        sampling=GREEDY,
        before=before,
        ending=Ending(SamplingParams(), (), str),
        progress=before,
    )


def ids(requests):
    return [item.request_id for item in requests]


def book_of(*request_ids):
    book = Book()
    for request_id in request_ids:
        book.add(held(request_id))
    return book


def test_all_are_admitted_with_keys_of_their_own():
    book = book_of("a", "b")
    admitted = book.admit()
    assert ids(admitted) == ["a", "b"]
    assert book.running(admitted[0].key) is admitted[0]
    assert book.admit() == []


def test_the_key_of_a_run_that_is_over_means_nothing():
    book = book_of("a")
    (first,) = book.admit()
    old = first.key
    book.fail_running()
    (again,) = book.admit()
    assert again is first
    assert book.running(old) is None
    assert book.running(again.key) is again


def test_after_one_failure_all_go_on_together_with_their_tokens():
    book = book_of("a", "b")
    for item in book.admit():
        item.note((5, 6))
    assert book.fail_running() == []
    again = book.admit()
    assert ids(again) == ["a", "b"]
    assert [item.before for item in again] == [(5, 6), (5, 6)]


def test_suspects_run_alone_until_the_guilty_one_is_found():
    book = book_of("a", "bad", "c")
    for _ in range(2):
        book.admit()
        assert book.fail_running() == []
    book.add(held("new"))
    (a,) = book.admit()
    assert a.request_id == "a"
    assert book.admit() == []  # alone: neither another suspect nor a new one
    book.remove(a)
    assert ids(book.admit()) == ["bad"]
    assert ids(book.fail_running()) == ["bad"]
    (c,) = book.admit()
    assert c.request_id == "c"
    book.remove(c)
    assert ids(book.admit()) == ["new"]
    assert len(book) == 1


def test_a_removed_request_is_nowhere():
    book = book_of("a", "b")
    a, b = book.admit()
    book.remove(a)
    assert book.find("a") is None
    assert book.running(a.key) is None
    assert list(book) == [b]


def test_progress_never_shrinks():
    item = held("a", before=(1, 2))
    assert item.note((3,)) == (1, 2, 3)
    assert item.note(()) == (1, 2, 3)


def test_a_loop_that_is_replaced_blames_nobody():
    book = book_of("a", "b")
    for _ in range(3):
        book.admit()[0].note((5,))
        book.restart_running()
    again = book.admit()
    assert ids(again) == ["a", "b"]
    assert [item.failures for item in again] == [0, 0]
    assert again[0].before == (5, 5, 5)


def test_tokens_without_their_log_probabilities_are_given_again():
    item = held("a", before=(1, 2))
    record = LogprobRecord(0)
    item.sampling = msgspec.structs.replace(GREEDY, record=record)
    item.begin("a#1")
    assert (item.before, item.sampling.forced) == ((), (1, 2))
    record.put(0, (1, -0.5), ())
    assert item.note((1,)) == (1, 2)
    for place, token in ((1, 2), (2, 3)):
        record.put(place, (token, -0.5), ())
    item.note((1, 2, 3))
    item.begin("a#2")
    assert (item.before, item.sampling.forced) == ((1, 2, 3), ())


def test_a_complete_text_without_its_log_probabilities_is_not_over():
    item = held("a", before=(1,) * 16)
    assert item.over
    item.sampling = msgspec.structs.replace(GREEDY, record=LogprobRecord(0))
    assert not item.over
