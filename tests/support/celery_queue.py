"""Looks into the Celery queue of a worker that is not there."""

import base64
import json

from broker.topology import queue_name


def messages(redis, worker="gpu0@host"):
    """The messages that wait for a worker, oldest first, as (task id, batch id, job id)."""
    return [_ids(json.loads(raw)) for raw in reversed(redis.lrange(queue_name(worker), 0, -1))]


def _ids(message):
    batch_id, job_id = json.loads(base64.b64decode(message["body"]))[0]
    return (message["headers"]["id"], batch_id, job_id)
