"""Identical requests are generated once: within a job, and with the result cache across jobs."""

import uuid

import msgspec
import pytest

from broker.costs import estimated_tokens
from broker.messages import FinishReason, Output, OutputSource, Request, SamplingParams, Usage
from broker.records import CommitResult, Load, Policy
from broker.states import JobState
from driver.client import Client
from driver.ending import end_pending
from tests.support.racing import race
from tests.support.stage import LEADER, failures, output, request

SHARED, CACHE = OutputSource.SHARED, OutputSource.CACHE
GREEDY_COST = 14


def greedy(text="same", **params):
    return request(text, temperature=0, **params)


def submit(stage, requests, *, job_id=None, offset=0, last=True, model="", **options):
    job_id = job_id or str(uuid.uuid4())
    stage.ledger.submit(job_id, model, requests, offset=offset, last=last, **{"user": "ann", **options})
    return job_id


def of(item, index, source):
    """An output as it is given to another request."""
    return msgspec.structs.replace(item, index=index, source=source)


def is_settled(stage, job):
    keys = stage.keys.job(job)
    left = [name for name in (keys.leaders, keys.digests, keys.followers) if stage.has_key(name)]
    return not left and stage.queries.load() == Load() == stage.queries.load("ann")


@pytest.fixture
def session(stage):
    return stage.worker(model="m")


def test_identical_greedy_requests_wait_for_the_first(stage):
    job = submit(stage, [greedy(), greedy("other"), greedy(), greedy()])
    assert stage.pending(job) == [0, 1]
    assert stage.queries.follower_count(job) == 2
    found = stage.queries.load()
    assert (found.requests, found.tokens) == (4, 11 + 11)
    assert stage.queries.request(job, 2) is None
    assert Client(settings=stage.store.settings).job(job).progress().pending == 4


def test_a_later_run_waits_for_the_first_of_an_earlier_one(stage):
    job = submit(stage, [greedy()], last=False)
    submit(stage, [greedy("other"), greedy()], job_id=job, offset=1)
    assert stage.pending(job) == [0, 1]
    assert stage.queries.follower_count(job) == 1


def test_one_output_is_given_to_all_in_the_same_step(stage, session):
    job = submit(stage, [greedy(), greedy("other"), greedy(), greedy()])
    batch = stage.batch(session, job, [0, 1])
    first = output(0, "text", "gpu0@host")
    result = stage.ledger.commit(batch, job, session, [first])
    assert result == CommitResult(accepted=1, dropped=0, job_done=False, shared=2)
    assert stage.results(job) == [first, of(first, 2, SHARED), of(first, 3, SHARED)]
    assert stage.commit(batch, job, session, [1]) == CommitResult(accepted=1, dropped=0, job_done=True)
    record = stage.queries.job(job)
    assert (record.state, record.submitted, record.done, record.failed) == (JobState.DONE, 4, 4, 0)
    assert (record.prompt_tokens, record.completion_tokens) == (6, 4)
    assert (record.shared, record.cached, record.saved_prompt_tokens, record.saved_completion_tokens) == (2, 0, 6, 4)
    sharing = stage.queries.sharing()
    assert (sharing.shared, sharing.saved_completion_tokens) == (2, 4)
    assert is_settled(stage, job)
    assert stage.ledger.finish(batch, session) == 0


def test_the_last_output_may_be_a_shared_one(stage):
    job = submit(stage, [greedy()] * 3)
    assert stage.commit("", job, "", [0]).job_done


def test_many_commits_of_the_first_give_each_other_one_output(stage, session):
    job = submit(stage, [greedy()] * 20)
    batch = stage.batch(session, job, [0])
    replies = race(*(lambda i=i: stage.commit(batch, job, session, [0], str(i)) for i in range(8)))
    assert sorted((reply.accepted, reply.shared) for reply in replies) == [(0, 0)] * 7 + [(1, 19)]
    assert sorted(item.index for item in stage.results(job)) == list(range(20))
    assert len({item.text for item in stage.results(job)}) == 1
    assert is_settled(stage, job)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (greedy(), greedy(seed=7), True),
        (greedy(top_p=0.5, top_k=3), greedy(), True),
        (greedy(), request("same", temperature=0.0, top_p=1, presence_penalty=0), True),
        (request("x", seed=7), request("x", seed=7), True),
        (request("x", seed=7, n=3), request("x", seed=7, n=3), True),
        (request("x", seed=7), request("x", seed=8), False),
        (request("x", seed=7), request("x", seed=7, top_p=0.5), False),
        (request("x"), request("x"), False),
        (greedy(n=2), greedy(), False),
        (greedy(), greedy(max_tokens=9), False),
        (greedy(stop=("a",)), greedy(), False),
        (greedy(logprobs=1), greedy(), False),
        (greedy(), Request(prompt="same", params=greedy().params, return_input_ids=True), False),
        (greedy(), Request(prompt="same", params=greedy().params, stream=True), False),
        (greedy(), Request(input_ids=(1,), params=greedy().params), False),
    ],
)
def test_what_counts_as_identical(stage, one, other, same):
    job = submit(stage, [one, other])
    assert stage.queries.follower_count(job) == same
    assert stage.pending(job) == ([0] if same else [0, 1])


def test_a_failure_is_shared_too(stage):
    job = submit(stage, [greedy()] * 3)
    (failed,) = failures([0])
    assert stage.ledger.commit("", job, "", [failed]).job_done
    assert stage.results(job) == [failed, of(failed, 1, SHARED), of(failed, 2, SHARED)]
    record = stage.queries.job(job)
    assert (record.done, record.failed) == (3, 3)
    assert is_settled(stage, job)


def test_who_comes_after_a_failure_is_tried_for_itself(stage):
    job = submit(stage, [greedy()] * 2, last=False)
    stage.ledger.commit("", job, "", failures([0]))
    submit(stage, [greedy()] * 2, job_id=job, offset=2)
    assert stage.pending(job) == [2]
    assert stage.queries.follower_count(job) == 1


def test_after_a_death_the_first_runs_again_for_all(stage, session):
    job = submit(stage, [greedy()] * 3)
    batch = stage.batch(session, job, [0])
    stage.kill(session)
    stage.ledger.release(batch, job, session, count_attempt=True)
    assert (stage.pending(job), stage.queries.follower_count(job)) == ([0], 2)
    successor = stage.worker("gpu1@host")
    again = stage.batch(successor, job, [0])
    late = stage.commit(batch, job, session, [0], "late")
    assert (late.accepted, late.shared, late.job_done) == (1, 2, True)
    assert stage.commit(again, job, successor, [0], "again") == CommitResult(accepted=0, dropped=1, job_done=False)
    assert {item.text for item in stage.results(job)} == {"late"}
    assert is_settled(stage, job)


def test_a_cancelled_job_gives_each_waiting_request_its_error(stage):
    job = submit(stage, [greedy()] * 3 + [greedy("other")] * 2, last=False)
    stage.ledger.cancel(job)
    assert end_pending(stage.store, job, "cancelled", "stop") == 2
    assert sorted((item.index, item.error.code) for item in stage.results(job)) == [
        (index, "cancelled") for index in range(5)
    ]
    assert stage.queries.job(job).state == JobState.DONE
    assert is_settled(stage, job)


def test_an_output_for_one_that_waits_for_another_counts_once(stage):
    job = submit(stage, [greedy()] * 3)
    stage.commit("", job, "", [1], "own")
    assert stage.commit("", job, "", [0], "first") == CommitResult(accepted=1, dropped=0, job_done=True, shared=1)
    assert {item.index: item.text for item in stage.results(job)} == {1: "own", 0: "first", 2: "first"}
    assert is_settled(stage, job)


def test_a_crowd_too_large_for_one_commit_is_generated_twice(stage):
    job = submit(stage, [greedy()], last=False)
    stage.redis.zadd(stage.keys.job(job).followers, {f"x{place}": 0 for place in range(10_000)})
    submit(stage, [greedy(), greedy()], job_id=job, offset=1, last=False)
    assert stage.pending(job) == [0, 1]
    stage.redis.zremrangebyscore(stage.keys.job(job).followers, 0, 0)
    assert stage.ledger.commit("", job, "", failures([0])).shared == 0
    submit(stage, [greedy()], job_id=job, offset=3)  # waits for the second: it is the first that is left
    assert stage.pending(job) == [1]
    assert stage.commit("", job, "", [1], "two").shared == 2
    assert is_settled(stage, job)


def test_many_crowds_are_served_one_call_after_the_other(stage, monkeypatch):
    """So that no call holds up Redis for long."""
    requests = [greedy(text) for text in "abc"]
    job = submit(stage, requests, last=False)
    for lead in (0, 1, 2):
        stage.redis.zadd(stage.keys.job(job).followers, {10_000 * lead + place + 3: lead for place in range(600)})
    stage.redis.hset(stage.keys.job(job).record, "submitted", 30_000)
    calls, run = [], stage.ledger._scripts.run
    monkeypatch.setattr(stage.ledger._scripts, "run", lambda *args: calls.append(run(*args)) or calls[-1])
    result = stage.ledger.commit("", job, "", [*failures([0]), output(1), output(1), output(2)])
    assert result == CommitResult(accepted=3, dropped=1, job_done=False, shared=1_800)
    assert [reply[3:] for reply in calls] == [[1_200, 2], [600, 2]]
    record = stage.queries.job(job)
    assert (record.done, record.failed) == (1_803, 601)


def test_the_first_and_its_follower_in_one_commit(stage):
    job = submit(stage, [greedy()] * 2)
    result = stage.commit("", job, "", [0, 1])
    assert (result.accepted, result.dropped, result.shared, result.job_done) == (2, 0, 0, True)
    assert stage.results(job) == [output(0), output(1)]  # each has its own, and once only


# Requests that come later


def test_while_the_job_is_open_an_answer_serves_those_that_come_later(stage, session):
    job = submit(stage, [greedy()], last=False)
    first = output(0, "text")
    stage.ledger.commit("", job, "", [first])
    submit(stage, [greedy("new"), greedy(), greedy()], job_id=job, offset=1, last=False)
    submit(stage, [greedy("new"), greedy(), greedy()], job_id=job, offset=1, last=False)  # sent again
    assert stage.pending(job) == [1]
    assert stage.results(job) == [first, of(first, 2, SHARED), of(first, 3, SHARED)]
    assert stage.queries.load().requests == 1
    submit(stage, [greedy()], job_id=job, offset=4)
    assert not stage.has_key(stage.keys.job(job).answers)
    assert not stage.has_key(stage.keys.job(job).answered)
    assert stage.commit("", job, "", [2, 4]).dropped == 2
    assert stage.commit("", job, "", [1]).job_done
    record = stage.queries.job(job)
    assert (record.done, record.shared, record.completion_tokens, record.saved_completion_tokens) == (5, 3, 4, 6)
    assert is_settled(stage, job)


def test_a_job_may_be_done_at_the_seal_by_shared_outputs_alone(stage):
    job = submit(stage, [greedy()], last=False)
    stage.commit("", job, "", [0])
    submit(stage, [greedy()] * 2, job_id=job, offset=1)
    assert stage.queries.job(job).state == JobState.DONE
    assert [item for item, _ in stage.queries.closing_jobs()] == [job]


def test_an_open_job_keeps_answers_up_to_a_size(stage):
    job = submit(stage, [greedy(str(i)) for i in range(6)], last=False)
    keys = stage.keys.job(job)
    for index in range(5):
        stage.commit("", job, "", [index], "x" * (1 << 20))
    assert stage.redis.hlen(keys.answers) == stage.redis.llen(keys.answered) == 3
    stage.commit("", job, "", [5], "x" * (5 << 20))
    assert stage.redis.hlen(keys.answers) == stage.redis.llen(keys.answered) == 0
    assert stage.redis.hget(keys.record, "answers_bytes") == b"0"
    submit(stage, [greedy("4")], job_id=job, offset=6, last=False)
    assert stage.pending(job) == [6]


def test_a_sealed_job_keeps_no_answers(stage):
    job = submit(stage, [greedy(), greedy("other")])
    stage.commit("", job, "", [0])
    assert not stage.has_key(stage.keys.job(job).answers)


def test_cancelling_drops_the_answers(stage):
    job = submit(stage, [greedy()], last=False)
    stage.commit("", job, "", [0])
    assert stage.has_key(stage.keys.job(job).answers)
    stage.ledger.cancel(job)
    assert not stage.has_key(stage.keys.job(job).answers)


def test_an_announced_job_gives_back_what_its_duplicates_do_not_need(stage):
    requests = [greedy(), greedy()]
    cost = sum(estimated_tokens(item) for item in requests)
    job = submit(stage, requests, announced=(2, cost), last=True, user="ann")
    found = stage.queries.load("ann")
    assert (found.requests, found.tokens) == (2, cost // 2)
    stage.commit("", job, "", [0])
    assert is_settled(stage, job)


def test_what_was_announced_and_needs_no_worker_gives_its_room_back_at_once(stage, session, caching):
    generate(stage, session, "known", "text")
    same = [greedy(), greedy(), greedy("known")]
    job = submit(stage, same, model="m", last=False, announced=(4, 4 * 11))
    found = stage.queries.load()
    assert (found.requests, found.tokens) == (2 + 1, 11 + 4 * 11 - sum(estimated_tokens(item) for item in same))
    stage.ledger.cancel(job)
    assert stage.queries.load() == Load(requests=2, tokens=11)


def test_what_follows_needs_no_tokens_of_the_limit(stage):
    one = estimated_tokens(greedy())
    stage.ledger.configure(LEADER, Policy(max_pending_tokens=one))
    job = submit(stage, [greedy()] * 10)
    assert stage.queries.job(job).submitted == 10


def test_sharing_can_be_switched_off(stage):
    stage.ledger.configure(LEADER, Policy(share_identical=False))
    job = submit(stage, [greedy()] * 2, last=False)
    stage.commit("", job, "", [0])
    submit(stage, [greedy()], job_id=job, offset=2)
    assert stage.pending(job) == [1, 2]
    stage.commit("", job, "", [1, 2])
    assert is_settled(stage, job)


# The result cache


@pytest.fixture
def caching(stage):
    def switch_on(**options):
        stage.ledger.configure(LEADER, Policy(**{"result_cache_ttl": 60, **options}))

    switch_on()
    return switch_on


def generate(stage, session, text, answer, model="m"):
    """A job of one request, done by a worker."""
    job = submit(stage, [greedy(text)], model=model)
    batch = stage.batch(session, job, [0])
    done = output(0, answer, "gpu0@host")
    stage.ledger.commit(batch, job, session, [done])
    stage.ledger.finish(batch, session)
    return done


def test_without_the_cache_each_job_generates(stage, session):
    generate(stage, session, "same", "text")
    job = submit(stage, [greedy()], model="m")
    assert stage.pending(job) == [0]
    assert not stage.has_key(stage.keys.cache)


def test_the_cache_serves_another_job_at_once(stage, session, caching):
    done = generate(stage, session, "same", "text")
    job = submit(stage, [greedy("new"), greedy()], model="m", user="ann")
    assert stage.results(job) == [of(done, 1, CACHE)]
    assert stage.pending(job) == [0]
    assert stage.queries.load("ann").requests == 1
    assert submit(stage, [greedy(), greedy()], model="m") in {item for item, _ in stage.queries.closing_jobs()}
    record = stage.queries.job(job)
    assert (record.shared, record.cached, record.saved_completion_tokens) == (0, 1, 2)
    sharing = stage.queries.sharing()
    assert (sharing.cached, sharing.shared, sharing.cache_entries) == (3, 0, 1)
    assert sharing.cache_bytes > 0
    assert 0 < stage.redis.pttl(stage.keys.cache) <= 60_000
    assert 0 < stage.redis.pttl(stage.keys.cache_times) <= 60_000


def test_the_cache_keeps_models_apart_and_serves_none_to_who_names_none(stage, session, caching):
    generate(stage, session, "same", "text", model="")  # by a worker that serves m
    for model, pending in (("m", []), ("other", [0]), ("", [0])):
        assert stage.pending(submit(stage, [greedy()], model=model)) == pending


def test_failures_and_unseeded_samples_are_not_cached(stage, session, caching):
    job = submit(stage, [greedy(), request()], model="m")
    stage.ledger.commit("", job, "", failures([0]))
    stage.commit("", job, "", [1])
    assert stage.queries.sharing().cache_entries == 0


def test_a_worker_that_is_forgotten_meanwhile_serves_the_model_that_the_job_named(stage, caching):
    job = submit(stage, [greedy()], model="m")
    stage.commit("", job, "gone", [0])
    assert stage.pending(submit(stage, [greedy()], model="m")) == []


def test_an_entry_ends_after_its_time(stage, session, caching):
    generate(stage, session, "old", "text")
    (name,) = stage.redis.zrange(stage.keys.cache_times, 0, -1)
    stage.redis.zincrby(stage.keys.cache_times, -60_000, name)
    assert stage.pending(submit(stage, [greedy("old")], model="m")) == [0]
    generate(stage, session, "new", "text")
    assert stage.redis.hlen(stage.keys.cache) == stage.queries.sharing().cache_entries == 1
    assert stage.pending(submit(stage, [greedy("new")], model="m")) == []


def test_the_oldest_entries_go_when_the_cache_is_full(stage, session, caching):
    caching(result_cache_mib=1)
    for place in range(5):
        generate(stage, session, str(place), "x" * 300_000)
    assert stage.queries.sharing().cache_entries == 3
    held = sum(stage.redis.hstrlen(stage.keys.cache, name) for name in stage.redis.hkeys(stage.keys.cache))
    assert stage.queries.sharing().cache_bytes == held <= 1 << 20
    assert [stage.pending(submit(stage, [greedy(str(i))], model="m")) for i in (1, 2)] == [[0], []]
    generate(stage, session, "huge", "x" * (2 << 20))  # larger than all of it
    assert stage.queries.sharing().cache_entries == 3
    stage.redis.delete(stage.keys.cache, stage.keys.cache_times)  # as their time to live does
    generate(stage, session, "last", "text")
    held = sum(stage.redis.hstrlen(stage.keys.cache, name) for name in stage.redis.hkeys(stage.keys.cache))
    assert stage.queries.sharing().cache_bytes == held


def test_one_output_evicts_so_many_old_ones_and_no_more(stage, session, caching):
    for place in range(120):
        stage.redis.hset(stage.keys.cache, f"old{place}", "x")
        stage.redis.zadd(stage.keys.cache_times, {f"old{place}": 1})
    generate(stage, session, "new", "text")
    assert stage.queries.sharing().cache_entries == 21
    generate(stage, session, "newer", "text")
    assert stage.queries.sharing().cache_entries == 2


def test_an_output_of_any_kind_comes_back_as_it_was(stage, session, caching):
    job = submit(stage, [greedy()], model="m")
    whole = Output(
        index=0,
        text="é\n\0",
        token_ids=tuple(range(300)),
        finish_reason=FinishReason.LENGTH,
        usage=Usage(prompt_tokens=3, completion_tokens=300),
        worker_id="w",
    )
    batch = stage.batch(session, job, [0])
    stage.ledger.commit(batch, job, session, [whole])
    again = submit(stage, [greedy()], model="m")
    assert stage.results(again) == [of(whole, 0, CACHE)]
    assert Client(settings=stage.store.settings).job(again).get(60) == [of(whole, 0, CACHE)]


def test_params_are_what_is_compared():
    assert SamplingParams(temperature=0) == greedy(max_tokens=16).params
