import msgspec
import pytest

from broker.results import PAGE
from tests.support.waiting import wait_until


@pytest.fixture
def job(stage):
    return stage.job(1000)


def commit(stage, job, *indices):
    stage.commit("", job, "", indices)


def read(stream, timeout_s=0.0):
    return [item.index for item in stream.read(timeout_s)]


def test_outputs_come_in_the_order_of_completion(stage, store, job):
    for index in (5, 2, 9):
        commit(stage, job, index)
    assert read(store.outputs(job)) == [5, 2, 9]


def test_each_is_read_once(stage, store, job):
    stream = store.outputs(job)
    commit(stage, job, 0)
    assert read(stream) == [0]
    assert read(stream) == []
    commit(stage, job, 1)
    assert read(stream) == [1]


def test_what_redis_has_lost_and_gets_again_is_given_once(stage, store, job):
    stream, live = store.outputs(job), store.live(job)
    commit(stage, job, 20)
    lose = stage.lose_changes()
    commit(stage, job, 7, 8)
    assert (read(stream), read(live)) == ([20, 7, 8], [20, 7, 8])
    lose()
    commit(stage, job, 8)
    commit(stage, job, 7)
    commit(stage, job, 9)
    assert (read(stream), read(live)) == ([9], [9])
    assert read(store.outputs(job)) == [20, 8, 7, 9]


def test_draining_goes_on_behind_a_page_of_what_was_given_before(stage, store, job):
    stream = store.outputs(job)
    lose = stage.lose_changes()
    for index in range(PAGE):
        commit(stage, job, index)
    assert len(read(stream)) == PAGE
    lose()
    for index in range(PAGE + 1):
        commit(stage, job, index)
    assert [output.index for output in stream.drain()] == [PAGE]


def test_nothing_yet_is_an_empty_list(store, job):
    assert read(store.outputs(job)) == []
    assert read(store.outputs(job), 0.01) == []
    assert read(store.outputs("nothing")) == []


def test_a_reader_waits_for_the_first(stage, store, job, in_background):
    reading = in_background(lambda: read(store.outputs(job), 2.0))
    wait_until(lambda: store.redis.info("clients")["blocked_clients"] == 1)
    commit(stage, job, 3)
    assert reading.result(60) == [3]


def test_a_position_can_be_kept_and_used_by_another_reader(stage, store, job):
    first = store.outputs(job)
    commit(stage, job, 0, 1)
    read(first)
    commit(stage, job, 2)
    assert read(store.outputs(job, first.position)) == [2]


def test_more_than_a_page_is_read_page_by_page(stage, store, job):
    for index in range(PAGE + 3):
        commit(stage, job, index)
    stream = store.outputs(job)
    assert read(stream) == list(range(PAGE))
    assert stream.has_more()
    assert read(stream) == list(range(PAGE, PAGE + 3))
    assert not stream.has_more()


def test_drain_reads_all_there_is(stage, store, job):
    for index in range(PAGE + 3):
        commit(stage, job, index)
    assert [item.index for item in store.outputs(job).drain()] == list(range(PAGE + 3))


def test_outputs_of_one_commit_share_entries_of_bounded_size(stage, store, job):
    commit(stage, job, *range(100))
    stage.commit("", job, "", range(100, 110), "x" * 10_000)
    commit(stage, job, 110)
    entries = stage.redis.xrange(stage.keys.job(job).outputs)
    assert [list(fields) for _, fields in entries] == [[b"p"]] * 7 + [[b"o"]] * 2
    sizes = [len(msgspec.msgpack.decode(fields[b"p"])) for _, fields in entries[:7]]
    assert sizes == [32, 32, 32, 4, 3, 3, 3]
    assert max(len(value) for _, fields in entries for value in fields.values()) <= 32_768
    assert read(store.outputs(job)) == list(range(111))


def test_has_more_counts_from_the_position(stage, store, job):
    stream = store.outputs(job)
    assert not stream.has_more()
    commit(stage, job, 0)
    assert stream.has_more()


def test_trimming_drops_what_was_read_and_nothing_else(stage, store, job):
    stream = store.outputs(job)
    commit(stage, job, 0, 1)
    read(stream)
    commit(stage, job, 2)
    stream.trim()
    assert read(store.outputs(job)) == [2]
    assert read(stream) == [2]


def test_trimming_before_anything_was_read_drops_nothing(stage, store, job):
    commit(stage, job, 0)
    store.outputs(job).trim()
    assert read(store.outputs(job)) == [0]


def test_a_trimmed_output_cannot_be_committed_again(stage, store, job):
    commit(stage, job, 0)
    stream = store.outputs(job)
    read(stream)
    stream.trim()
    assert stage.commit("", job, "", [0]).dropped == 1
    assert read(store.outputs(job)) == []
