"""Workers that fail everything, cannot start, or crash again and again: set aside or given up, with the reason said."""

from tests.support.faults.injected import DIED_AT_START
from tests.support.verdict import assert_each_done_once, requests
from tests.support.waiting import wait_until

OWN = {"STOKER_SERVED_MODEL_NAME": "of-the-broken"}
MODEL = OWN["STOKER_SERVED_MODEL_NAME"]


def test_a_worker_that_fails_everything_is_set_aside_and_its_requests_are_done_elsewhere(cluster):
    cluster.start_worker("c", fault="fail_everything", settings=OWN | {"STOKER_POISON_PAUSE": "60"})
    cluster.start_worker("d", settings=OWN)
    cluster.ready("c", "d")
    asked = requests(60, tokens=20)

    outputs = assert_each_done_once(cluster, cluster.client.submit(asked, model=MODEL), asked)

    assert {output.worker_id for output in outputs} == {"d@e2e"}
    wait_until(lambda: (row := cluster.session("c")).state == "poisoned" and row.inhand_requests == 0)
    line = next(line for line in cluster.stoker("status").stdout.splitlines() if "c@e2e" in line)
    assert "poisoned: failed 3 requests in a row, the last with: it failed, as asked" in line


def test_a_worker_that_was_set_aside_starts_again_with_a_new_session(cluster):
    cluster.start_worker("c", fault="fail_everything", settings=OWN | {"STOKER_POISON_PAUSE": "0.2"})
    before = cluster.ready("c")[0]
    asked = requests(4, tokens=5)
    job = cluster.client.submit(asked, model=MODEL)

    wait_until(lambda: (session := cluster.session("c")) and session.id != before.id, what="a new session")
    assert "restarting in 0.0 s; its last words:" in cluster.workers["c"].log
    assert "set aside: failed 3 requests in a row" in cluster.workers["c"].log

    cluster.end_worker("c")
    cluster.start_worker("d", settings=OWN)
    assert_each_done_once(cluster, job, asked)


def test_a_request_that_fails_without_harm_gets_an_error_and_its_neighbours_their_texts(cluster):
    asked = requests(20, tokens=20)
    asked[7] = requests(1, tokens=20, about="<<fail>>")[0]
    sessions = {row.id for row in cluster.client.workers()}

    assert_each_done_once(cluster, cluster.client.submit(asked), asked, errors={7: "engine_error"})

    assert {row.id for row in cluster.client.workers()} == sessions


def test_one_bad_request_alone_does_not_set_a_worker_aside(cluster):
    well = requests(20, tokens=2)
    assert_each_done_once(cluster, cluster.client.submit(well), well)
    asked = requests(1, tokens=2, about="<<fail>>")

    for _ in range(2):
        assert_each_done_once(cluster, cluster.client.submit(asked), asked, errors={0: "engine_error"})

    assert [row.state for row in cluster.client.workers()] == ["ready", "ready"]


def test_a_worker_that_crashes_at_every_start_is_given_up_with_its_last_words(cluster):
    settings = OWN | {"STOKER_MAX_RESTARTS": "2", "STOKER_RESTART_BACKOFF": "0.01"}
    worker = cluster.start_worker("c", fault="die_at_start", settings=settings)

    assert worker.wait() == 1

    assert worker.log.count(f"ended with exit code {DIED_AT_START}; restarting") == 2
    last = worker.log.strip().splitlines()[-1]
    assert "c@e2e crashed 3 times in a row; giving up; its last words: libcuda.so.1: cannot open" in last


def test_a_wrong_model_name_ends_a_worker_at_once_with_one_clear_line(cluster):
    settings = {"STOKER_ENGINE": "transformers", "STOKER_MODEL": "/no/such/model"}
    worker = cluster.start_worker("c", settings=settings)

    assert worker.wait() == 78

    assert "model: there is no file or folder /no/such/model; give an existing one" in worker.log
    assert "restarting" not in worker.log
    assert "Traceback" not in worker.log


def test_a_request_too_large_for_every_gpu_fails_alone_and_no_worker_is_set_aside(cluster):
    asked = requests(20, tokens=20)
    for place in (3, 7, 11, 15):
        asked[place] = requests(1, tokens=20, about="<<oom>>")[0]

    job = cluster.client.submit(asked)

    assert_each_done_once(cluster, job, asked, errors=dict.fromkeys((3, 7, 11, 15), "out_of_memory"))
    assert [row.state for row in cluster.client.workers()] == ["ready", "ready"]
