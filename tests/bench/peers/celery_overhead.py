"""Requests per second of plain Celery: a task a request, or a task a list of 64. One worker."""

import os
import time

from workload import check, in_lists, make_prompts, running, say, told

arguments = told()
os.environ["PEER_URL"] = arguments["broker_url"]

from celery.result import ResultSet  # noqa: E402
from celery_app import WORKER, app, echo, echo_list  # noqa: E402


def one_by_one(prompts):
    """A task a request; results are read in the way that the Redis backend is fastest at."""
    return ResultSet([echo.delay(prompt) for prompt in prompts]).join_native(timeout=300)


def lists(prompts):
    """A task a list."""
    found = ResultSet([echo_list.delay(part) for part in in_lists(prompts)]).join_native(timeout=300)
    return [text for part in found for text in part]


def measure(send, count):
    """Requests per second, from the first task sent to the last result checked."""
    prompts = make_prompts(count)
    started_s = time.perf_counter()
    check(send(prompts), prompts)
    return {"requests_per_s": count / (time.perf_counter() - started_s)}


send = lists if arguments["lists"] else one_by_one
with running(*WORKER):
    measure(send, 128)  # the worker is up, and warm
    say(measure(send, arguments["requests"]))
    app.close()
