"""A Celery task that survives its worker, as far as Celery's documentation tells how: `-A recovery_celery_app`."""

import os

import sleeping
from celery import Celery

app = Celery("recovery", broker=os.environ["PEER_URL"], backend=os.environ["PEER_URL"])
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
)
# Without, the transport's defaults: an hour, and looking for what was abandoned every 100 s or so.
if "PEER_VISIBILITY_S" in os.environ:
    app.conf.broker_transport_options = {
        "visibility_timeout": int(os.environ["PEER_VISIBILITY_S"]),
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    }


@app.task
def generate(folder, index, tokens, tokens_per_s):
    """One request."""
    return sleeping.generate(folder, index, tokens, tokens_per_s)
