"""Dramatiq with Redis as broker and as result backend."""

import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

WORKER = (
    "dramatiq",
    "dramatiq_app",
    "--processes",
    "1",
)  # with 8 threads, the default: faster here than with one or two

broker = RedisBroker(url=os.environ["PEER_URL"])
results = RedisBackend(url=os.environ["PEER_URL"])
broker.add_middleware(Results(backend=results))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True)
def echo(prompt):
    """One request."""
    return prompt
