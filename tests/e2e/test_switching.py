"""An idle worker is switched to the model that has work, and only where the driver's settings allow it."""

from driver import SamplingParams
from tests.support.waiting import stays_true, wait_until

ANSWER = SamplingParams(max_tokens=20, ignore_eos=True)
SWITCH = {
    "STOKER_SWITCH_MODELS": "small,large=/models/large",
    "STOKER_SWITCH_BACKLOG": "0.5",
    "STOKER_SWITCH_STAY": "2",
}


def served(cluster):
    """What each worker serves."""
    return {row.worker.partition("@")[0]: row.model for row in cluster.client.workers() if row.state == "ready"}


def test_idle_workers_follow_the_work_and_each_request_is_answered_once(make_cluster):
    cluster = make_cluster()
    cluster.start_driver(settings=SWITCH)
    cluster.start_worker("a", settings={"STOKER_MODEL": "small"})
    cluster.start_worker("b", settings={"STOKER_MODEL": "small"})
    cluster.start_worker("c", settings={"STOKER_MODEL": "dedicated"})
    cluster.ready()

    job = cluster.client.submit([f"prompt {place}" for place in range(20)], ANSWER, model="large")

    outputs = job.get(timeout=60)
    assert [(output.index, output.error) for output in outputs] == [(place, None) for place in range(20)]
    assert {output.worker_id for output in outputs} <= {"a@e2e", "b@e2e"}
    assert cluster.store.queries.job(job.id).dropped == 0
    wait_until(lambda: sorted(served(cluster).values()) == ["dedicated", "large", "small"])
    # Now nobody has work, and nobody moves.
    assert stays_true(lambda: sorted(served(cluster).values()) == ["dedicated", "large", "small"], 0.5)
    mixed = [cluster.client.submit(["one"] * 8, ANSWER, model=model) for model in ("small", "large", "dedicated")]
    assert all(output.error is None for job in mixed for output in job.get(timeout=60))
