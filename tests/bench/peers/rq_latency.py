"""Seconds of one request through RQ: idle, or through a queue that is served first while others wait."""

from redis import Redis
from rq import Queue
from rq_overhead import WORKER
from workload import latencies, make_prompts, percentiles_ms, running, say, told

arguments = told()
url = arguments["broker_url"]


def answer(prompt):
    """One request in the queue that is served first."""
    return high.enqueue("rq_overhead.echo", prompt).latest_result(timeout=60).return_value


with Redis.from_url(url) as redis:
    default, high = Queue("default", connection=redis), Queue("high", connection=redis)
    crowd = [Queue.prepare_data("rq_overhead.echo", (prompt,)) for prompt in make_prompts(arguments["waiting"])]
    default.enqueue_many(crowd)
    with running(*WORKER, "--url", url, "high", "default"):
        latencies(answer, 20)  # the worker is up, and warm
        figures = percentiles_ms(latencies(answer, arguments["requests"]))
        if len(default) < arguments["waiting"] / 2:
            raise SystemExit("too few were left waiting at the end")
        default.empty()
    say(figures)
