from broker.records import Backlog, JobBacklog, Session
from driver.detector import DetectorLimits
from driver.models import Waiting
from driver.speeds import Speeds
from driver.workload import Workload, load_of, waiting_by_model, workload


def log(requests=10, *, model="m", cost=100.0, answered=0, tokens=0):
    return JobBacklog(model=model, requests=requests, mean_cost=cost, answered=answered, completion_tokens=tokens)


def backlog(*jobs, waiting=None):
    return Backlog(jobs=jobs, waiting=len(jobs) if waiting is None else waiting)


def row(name, state="ready", **fields):
    return Session(id=name, worker=name, epoch=1, state=state, **fields)


def test_until_a_job_has_outputs_its_requests_count_as_what_they_may_be():
    assert workload(backlog(log(10)), {"m"}, 1.0) == Workload(requests=10, tokens=1_000)


def test_outputs_tell_how_long_answers_are():
    found = workload(backlog(log(10, answered=4, tokens=80)), {"m"}, 1.0)
    assert (found.tokens, found.length_ratio) == (200, 0.2)


def test_answers_are_not_taken_to_be_longer_than_they_may_be():
    assert workload(backlog(log(10, answered=1, tokens=900)), {"m"}, 1.0).length_ratio == 1.0


def test_the_last_known_ratio_holds_while_nobody_knows_better():
    assert workload(backlog(log(10)), {"m"}, 0.3).length_ratio == 0.3
    assert workload(backlog(), {"m"}, 0.3) == Workload(length_ratio=0.3)


def test_jobs_for_models_that_nobody_serves_do_not_count():
    logs = [log(1), log(2, model=""), log(4, model="other")]
    assert workload(backlog(*logs), {"m"}, 1.0).requests == 3
    assert workload(backlog(*logs), set(), 1.0).requests == 7


def test_jobs_that_were_not_read_are_like_the_others():
    assert workload(backlog(log(1), log(3), waiting=20), {"m"}, 1.0) == Workload(requests=40, tokens=4_000)


def test_a_load_has_what_waits_what_is_in_hand_and_who_is_there():
    rows = [
        row("a", inhand_tokens=1_000),
        row("b", "loading"),
        row("c", "draining", inhand_tokens=500),
        row("d", drain=1),
        row("e", "dead"),
        row("f", beat_age_s=60.0),
        row("g", "sleeping"),
        row("h", "sleeping", drain=1),
    ]
    work = Workload(requests=2.4, tokens=240.0, length_ratio=0.5)
    speeds = Speeds()
    speeds.note([row("a", running=1, beat_ms=1_000)])
    speeds.note([row("a", running=1, beat_ms=3_000, generated_tokens=14)])
    speeds.startup_s = 3.0
    load = load_of(work, rows, DetectorLimits(), speeds)
    assert (load.pending_requests, load.pending_tokens, load.inflight_tokens) == (2, 240.0, 750.0)
    assert (load.ready, load.coming, load.asleep) == (1, 1, 1)
    assert (load.tokens_per_s, load.used_tokens_per_s, load.startup_s) == (7.0, 7.0, 3.0)


def test_what_waits_for_a_model_is_counted_for_those_that_name_one():
    logs = [log(2), log(1, answered=1, tokens=5), log(3, model="n"), log(4, model="")]
    assert waiting_by_model(backlog(*logs, waiting=8)) == {
        "m": Waiting(requests=2 * 3, tokens=2 * 205),
        "n": Waiting(requests=2 * 3, tokens=2 * 300),
    }
