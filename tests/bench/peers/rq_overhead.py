"""Requests per second of RQ: a job a request, all enqueued at once. One SimpleWorker, which does not fork for each."""

import time

from redis import Redis
from rq import Queue
from workload import check, make_prompts, running, say, told

# The default class forks for each job, which takes three times as long.
WORKER = ("rq", "worker", "--quiet", "--worker-class", "rq.worker.SimpleWorker")


def echo(prompt):
    """One request."""
    return prompt


def measure(queue, count):
    """Requests per second, from the first job enqueued to the last result checked."""
    prompts = make_prompts(count)
    started_s = time.perf_counter()
    jobs = queue.enqueue_many([Queue.prepare_data("rq_overhead.echo", (prompt,)) for prompt in prompts])
    check([job.latest_result(timeout=300).return_value for job in jobs], prompts)
    return {"requests_per_s": count / (time.perf_counter() - started_s)}


if __name__ == "__main__":
    arguments = told()
    url = arguments["broker_url"]
    with running(*WORKER, "--url", url, "default"), Redis.from_url(url) as redis:
        queue = Queue(connection=redis)
        measure(queue, 20)  # the worker is up, and warm
        say(measure(queue, arguments["requests"]))
