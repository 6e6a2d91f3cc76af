"""Requests per second of Dramatiq: a message a request, as one group. One worker process with its 8 threads."""

import os
import time

from workload import check, make_prompts, running, say, told

arguments = told()
os.environ["PEER_URL"] = arguments["broker_url"]

from dramatiq import group  # noqa: E402
from dramatiq_app import WORKER, echo  # noqa: E402


def measure(count):
    """Requests per second, from the first message sent to the last result checked."""
    prompts = make_prompts(count)
    started_s = time.perf_counter()
    sent = group([echo.message(prompt) for prompt in prompts]).run()
    check(list(sent.get_results(block=True, timeout=300_000)), prompts)
    return {"requests_per_s": count / (time.perf_counter() - started_s)}


with running(*WORKER):
    measure(50)  # the worker is up, and warm
    say(measure(arguments["requests"]))
