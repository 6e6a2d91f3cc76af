"""The Celery message that wakes a worker for a batch, as Celery and kombu's Redis transport would write it.

`assign` puts it into the worker's queue in the same step in which it makes the batch, so that no driver can die in
between, and no request waits for Celery to publish. It carries ids only: prompts stay in the ledger.
"""

import base64
import uuid

import msgspec

from broker.topology import GENERATE_BATCH, queue_name

_ORIGIN = "stoker"  # of the message, for people


def wakeup(worker: str, batch_id: str, job_id: str) -> bytes:
    """An entry of the worker's queue that starts `generate_batch` there."""
    options = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    body = msgspec.json.encode(((batch_id, job_id), {}, options))
    message = {
        "body": base64.b64encode(body).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": _headers(batch_id, job_id),
        "properties": {
            "correlation_id": batch_id,
            "reply_to": "",
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": queue_name(worker)},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": str(uuid.uuid4()),
        },
    }
    return msgspec.json.encode(message)


def _headers(batch_id: str, job_id: str) -> dict[str, object]:
    return {
        "lang": "py",
        "task": GENERATE_BATCH,
        "id": batch_id,
        "shadow": None,
        "eta": None,
        "expires": None,
        "group": None,
        "group_index": None,
        "retries": 0,
        "timelimit": (None, None),
        "root_id": batch_id,
        "parent_id": None,
        "argsrepr": repr((batch_id, job_id)),
        "kwargsrepr": "{}",
        "origin": _ORIGIN,
        "ignore_result": True,
        "replaced_task_nesting": 0,
        "stamped_headers": None,
        "stamps": {},
    }
