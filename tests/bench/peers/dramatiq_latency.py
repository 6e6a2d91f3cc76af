"""Seconds of one request through Dramatiq on an idle system."""

import os

from workload import latencies, percentiles_ms, running, say, told

arguments = told()
os.environ["PEER_URL"] = arguments["broker_url"]

from dramatiq_app import WORKER, echo  # noqa: E402


def answer(prompt):
    """One request."""
    return echo.send(prompt).get_result(block=True, timeout=60_000)


with running(*WORKER):
    latencies(answer, 20)  # the worker is up, and warm
    say(percentiles_ms(latencies(answer, arguments["requests"])))
