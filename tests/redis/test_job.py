import logging

import pytest

from broker.deltas import TextDelta
from broker.errors import (
    BrokerUnavailableError,
    IncompleteJobError,
    InvalidRequestError,
    JobNotFoundError,
    StokerError,
)
from broker.messages import failed_output
from broker.patience import Patience
from broker.states import JobState
from driver import following as following_module
from driver.deltas import Delta
from driver.errors import NotFinishedError
from driver.job import Job
from tests.support.stage import request
from tests.support.waiting import wait_until


def handle(stage, job_id):
    return Job(stage.store, job_id)


def indices(outputs):
    return [output.index for output in outputs]


def test_outputs_come_as_they_finish(stage):
    job = stage.job(3)
    for index in (2, 0, 1):
        stage.commit("", job, "", [index])
    assert indices(handle(stage, job).as_completed(60)) == [2, 0, 1]


def test_get_gives_request_order(stage):
    job = stage.job(3)
    for index in (2, 0, 1):
        stage.commit("", job, "", [index])
    assert indices(handle(stage, job).get(60)) == [0, 1, 2]


def test_an_output_does_not_wait_for_the_rest(stage, in_background):
    job = stage.job(2)
    outputs = handle(stage, job).as_completed(10)
    stage.commit("", job, "", [1])
    assert next(outputs).index == 1
    rest = in_background(lambda: indices(outputs))
    stage.commit("", job, "", [0])
    assert rest.result(60) == [0]


def test_an_open_job_is_followed_until_it_is_sealed(stage, in_background):
    job = stage.job(1, last=False)
    stage.commit("", job, "", [0])
    following = in_background(lambda: indices(handle(stage, job).as_completed(10)))
    stage.ledger.submit(job, "", [request()], offset=1, last=False)
    stage.commit("", job, "", [1])
    assert not following.done()
    stage.ledger.submit(job, "", [], offset=2, last=True)
    assert following.result(60) == [0, 1]


def test_what_redis_has_lost_and_gets_again_does_not_stand_for_another_output(stage):
    job_id = stage.job(2)
    lose = stage.lose_changes()
    stage.commit("", job_id, "", [0])
    outputs = Job(stage.store, job_id).as_completed(timeout=60)
    assert next(outputs).index == 0
    lose()
    stage.commit("", job_id, "", [0])
    stage.commit("", job_id, "", [1])
    assert [output.index for output in outputs] == [1]


def test_an_empty_job_is_done(stage):
    assert handle(stage, stage.job(0)).get(60) == []


def test_too_late_says_how_far_it_is_and_why(stage):
    job = stage.job(3, model="m")
    stage.commit("", job, "", [0])
    with pytest.raises(NotFinishedError, match=r"1 of 3 requests are; no worker for model 'm' is alive"):
        handle(stage, job).get(0.05)


def test_waiting_no_time_at_all_gives_what_is_there(stage):
    job = stage.finished_job(2)
    assert indices(handle(stage, job).get(0)) == [0, 1]


class LateSource:
    """All outputs come while the last look waits."""

    def __init__(self, stage, job):
        self._stage = stage
        self._job = job
        self._stream = stage.store.outputs(job)

    def read(self, timeout_s):
        self._stage.commit("", self._job, "", [0, 1])
        return self._stream.read(timeout_s)

    def has_more(self):
        return False


def test_what_comes_with_the_last_look_is_not_too_late(stage):
    job = stage.job(2)
    assert indices(handle(stage, job).follow(LateSource(stage, job), timeout=0)) == [0, 1]


def test_who_has_all_outputs_asks_no_more(stage, monkeypatch):
    """Each question is a round trip that a small job would wait for."""
    job = stage.job(2)
    asked = []
    ask = stage.queries.job
    monkeypatch.setattr(stage.queries, "job", lambda job_id: asked.append(job_id) or ask(job_id))
    source = LateSource(stage, job)
    monkeypatch.setattr(stage.store, "outputs", lambda *_: source)
    assert indices(handle(stage, job).get(60)) == [0, 1]
    assert asked == [job]


def test_trimmed_outputs_are_missed(stage):
    job = stage.finished_job(3)
    stream = stage.store.outputs(job)
    stream.read(0)
    stream.trim()
    assert list(handle(stage, job).as_completed(60)) == []
    with pytest.raises(StokerError, match="3 of 3 outputs were trimmed"):
        handle(stage, job).get(60)


def lost_job(stage):
    """Two outputs of a job whose client was lost."""
    job = stage.job(2, last=False)
    stage.commit("", job, "", [1])
    stage.ledger.abandon(job, stage.queries.job(job).touched_ms)
    stage.commit("", job, "", [0])
    return job


@pytest.mark.parametrize("read", [lambda job: job.as_completed(60), lambda job: (d.output for d in job.stream(5))])
def test_all_outputs_of_a_job_whose_client_was_lost_come_and_then_that_it_is_incomplete(stage, read):
    outputs = read(handle(stage, lost_job(stage)))
    assert indices([next(outputs), next(outputs)]) == [1, 0]
    with pytest.raises(IncompleteJobError, match=r"its client was lost before .* after 2; .*as_completed"):
        next(outputs)


def test_get_says_that_a_job_is_incomplete_and_has_what_there_is(stage):
    job = handle(stage, lost_job(stage))
    with pytest.raises(IncompleteJobError) as caught:
        job.get(60)
    assert indices(caught.value.outputs) == [0, 1]
    assert job.progress().client_lost


def test_one_that_is_cancelled_is_not_called_incomplete(stage):
    job = stage.job(1, last=False)
    stage.ledger.abandon(job, stage.queries.job(job).touched_ms)
    handle(stage, job).cancel()
    assert [output.error.code for output in handle(stage, job).get(60)] == ["cancelled"]
    assert not handle(stage, job).progress().client_lost


def test_a_job_whose_client_came_back_while_it_was_read_is_complete(stage):
    job = lost_job(stage)
    outputs = handle(stage, job).as_completed(60)
    assert next(outputs).index == 1
    stage.ledger.submit(job, "", [], offset=2, last=True)
    assert indices(outputs) == [0]


@pytest.mark.parametrize(
    "use", [lambda job: job.get(1), lambda job: job.progress(), lambda job: job.state, lambda job: job.cancel()]
)
def test_an_unknown_job_is_an_error(stage, use):
    with pytest.raises(JobNotFoundError, match="nothing"):
        use(handle(stage, "nothing"))


def test_progress_counts_what_waits_and_what_runs(stage):
    job = stage.job(10)
    stage.batch(stage.worker(), job, [0, 1, 2])
    stage.commit("", job, "", [9])
    progress = handle(stage, job).progress()
    counts = {name: getattr(progress, name) for name in ("total", "done", "failed", "pending", "running")}
    assert counts == {"total": 10, "done": 1, "failed": 0, "pending": 6, "running": 3}
    assert progress.completion_tokens == 2
    assert progress.eta_s == pytest.approx(9 * progress.elapsed_s)


def test_there_is_no_estimate_before_the_first_output(stage):
    progress = handle(stage, stage.job(1)).progress()
    assert (progress.eta_s, progress.done) == (None, 0)


def test_a_done_jobs_time_stands_still(stage):
    job = stage.finished_job(2)
    stage.age_field(stage.keys.job(job).record, "created_ms", 10)
    progress = handle(stage, job).progress()
    assert progress.tokens_per_s == pytest.approx(progress.completion_tokens / progress.elapsed_s)
    assert 10 <= progress.elapsed_s < 20
    assert progress.eta_s == 0


def test_cancelling_ends_what_waits(stage):
    session, job = stage.worker(), stage.job(3)
    batch = stage.batch(session, job, [0])
    assert handle(stage, job).cancel()
    assert {output.index: output.error.code for output in stage.results(job)} == {1: "cancelled", 2: "cancelled"}
    stage.commit(batch, job, session, [0])
    assert handle(stage, job).state == JobState.DONE
    assert not handle(stage, job).cancel()


def test_silence_is_explained_once(stage, monkeypatch, caplog, in_background):
    monkeypatch.setattr(following_module, "QUIET_S", 0.01)
    job = stage.job(1, model="m")
    with caplog.at_level(logging.WARNING, "stoker"):
        following = in_background(lambda: indices(handle(stage, job).as_completed(20)))
        wait_until(lambda: caplog.messages)
        stage.worker(model="other")
        wait_until(lambda: len(caplog.messages) == 2)
        stage.commit("", job, "", [0])
        assert following.result(60) == [0]
    assert "no worker for model 'm' is alive" in caplog.messages[0]
    assert "workers serve: other" in caplog.messages[1]


def test_a_timeout_that_is_no_number_is_refused(stage):
    job = stage.finished_job()
    with pytest.raises(InvalidRequestError, match="timeout"):
        handle(stage, job).get(float("nan"))


def test_the_patience_with_an_outage_is_what_is_left_of_the_timeout(stage, monkeypatch):
    """It was the whole timeout again for each call, and ended with another error."""
    job = stage.finished_job()
    follower = handle(stage, job)

    def down(timeout_s):
        raise BrokerUnavailableError("Redis is down")

    stream = stage.store.outputs(job)
    monkeypatch.setattr(stream, "read", down)
    monkeypatch.setattr(stage.store, "outputs", lambda *_: stream)
    limits = []

    def patience(limit_s):
        limits.append(limit_s)
        return Patience(limit_s)

    monkeypatch.setattr(following_module, "Patience", patience)
    with pytest.raises(NotFinishedError, match=r"not done after 0\.5 s: Redis is down"):
        follower.get(0.5)
    assert limits
    assert all(limit < 0.5 for limit in limits)


def test_who_waits_learns_that_nothing_will_come(stage, monkeypatch):
    class NeverError(Exception):
        pass

    def never(model):
        raise NeverError(model)

    monkeypatch.setattr(following_module, "QUIET_S", 0.1)
    job = stage.job(1, model="m")
    with pytest.raises(NeverError, match="m"):
        Job(stage.store, job, obstacle=never).get(60)
    stage.ledger.cancel(job)
    stage.commit("", job, "", [0])
    stage.ledger.close(job, 60)


def publish(stage, batch, job, session, *pieces, index=0):
    pieces = [TextDelta(index=index, offset=offset, text=text) for offset, text in pieces]
    return stage.ledger.publish(batch, job, session, pieces)


def test_text_comes_before_its_output(stage):
    session, job = stage.worker(), stage.job(1)
    batch = stage.batch(session, job, [0])
    deltas = handle(stage, job).stream(10)
    publish(stage, batch, job, session, (0, "one"))
    assert next(deltas) == Delta(index=0, text="one")
    publish(stage, batch, job, session, (0, "one"), (3, " two"))
    assert next(deltas) == Delta(index=0, offset=3, text=" two")
    stage.commit(batch, job, session, [0], text="one two three")
    last = next(deltas)
    assert (last.offset, last.text, last.output.text) == (7, " three", "one two three")
    assert list(deltas) == []


def test_another_worker_goes_on_with_the_text(stage):
    session, job = stage.worker(), stage.job(1)
    batch = stage.batch(session, job, [0])
    publish(stage, batch, job, session, (0, "one two"))
    stage.kill(session)
    stage.ledger.release(batch, job, session, count_attempt=True)
    publish(stage, batch, job, session, (7, " late"))
    other = stage.worker("gpu1@host")
    batch = stage.batch(other, job, [0])
    publish(stage, batch, job, other, (0, "one"), (3, " two three"))
    stage.commit(batch, job, other, [0], text="one two three.")
    assert [delta.text for delta in handle(stage, job).stream(5)] == ["one two", " three", "."]


def test_who_comes_late_gets_all_from_the_outputs(stage):
    session, job = stage.worker(), stage.job(2)
    batch = stage.batch(session, job, [0, 1])
    publish(stage, batch, job, session, (0, "ab"), (2, "cd"))
    stage.redis.xtrim(stage.keys.job(job).deltas, maxlen=1, approximate=False)
    stage.commit(batch, job, session, [0, 1], text="abcdef")
    for _ in range(2):
        deltas = list(handle(stage, job).stream(5))
        assert [(delta.index, delta.text, delta.output.index) for delta in deltas] == [
            (0, "abcdef", 0),
            (1, "abcdef", 1),
        ]
        stage.ledger.close(job, 60)


def test_a_stream_ends_with_the_error_of_a_cancelled_job(stage):
    session, job = stage.worker(), stage.job(2)
    batch = stage.batch(session, job, [0])
    publish(stage, batch, job, session, (0, "ab"))
    handle(stage, job).cancel()
    stage.ledger.commit(batch, job, session, [failed_output(0, "cancelled", "the job was cancelled")])
    first, *rest = handle(stage, job).stream(5)
    assert (first.text, first.output) == ("ab", None)
    assert {delta.index: delta.output.error.code for delta in rest} == {0: "cancelled", 1: "cancelled"}


def test_a_stream_that_is_too_late_says_how_far_it_is(stage):
    session, job = stage.worker(), stage.job(1)
    batch = stage.batch(session, job, [0])
    publish(stage, batch, job, session, (0, "ab"))
    deltas = handle(stage, job).stream(0.05)
    assert next(deltas).text == "ab"
    with pytest.raises(NotFinishedError, match="0 of 1 requests are"):
        next(deltas)
