"""A Celery application with Redis as broker and result backend; `-A celery_app`."""

import os

from celery import Celery

# One process, and no second one between it and the broker: of the pools (prefork, the default, threads, and this) the
# one with the least CPU a task, two thirds of prefork's.
WORKER = ("celery", "-A", "celery_app", "worker", "-P", "solo", "-l", "WARNING")

app = Celery("peer", broker=os.environ["PEER_URL"], backend=os.environ["PEER_URL"])
if "PEER_PRIORITIES" in os.environ:
    # As the guide to routing has it for Redis, where 0 is the most urgent; no task is fetched before the last one ends.
    app.conf.broker_transport_options = {"queue_order_strategy": "priority", "priority_steps": [0, 9], "sep": ":"}
    app.conf.task_default_priority = 9
    app.conf.worker_prefetch_multiplier = 1
else:
    # Many short tasks: the guide to optimising asks for a large number (the default is 4).
    app.conf.worker_prefetch_multiplier = 64


@app.task
def echo(prompt):
    """One request."""
    return prompt


@app.task
def echo_list(prompts):
    """A list of requests."""
    return prompts
