"""Seconds of one request through plain Celery, `delay().get()`: idle, or at high priority while others wait."""

import os

from workload import latencies, make_prompts, percentiles_ms, running, say, told

arguments = told()
os.environ["PEER_URL"] = arguments["broker_url"]
if arguments["waiting"]:
    os.environ["PEER_PRIORITIES"] = "1"

from celery_app import WORKER, app, echo  # noqa: E402


def answer(prompt):
    """One request of ordinary priority."""
    return echo.delay(prompt).get(timeout=60)


def urgent_answer(prompt):
    """One of the highest priority."""
    return echo.apply_async((prompt,), priority=0).get(timeout=60)


for prompt in make_prompts(arguments["waiting"]):  # before there is a worker, which would take half of them meanwhile
    echo.apply_async((prompt,), ignore_result=True)
with running(*WORKER):
    send = urgent_answer if arguments["waiting"] else answer
    latencies(send, 20)  # the worker is up, and warm
    figures = percentiles_ms(latencies(send, arguments["requests"]))
    if app.backend.client.llen("celery:9") < arguments["waiting"] / 2:
        raise SystemExit("too few were left waiting at the end")
    say(figures)
    app.control.purge()
    app.close()
