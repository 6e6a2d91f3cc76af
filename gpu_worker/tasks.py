"""The Celery task: a thin shell around `execute`."""

from typing import Any

from celery import Celery

from broker.errors import MessageError
from broker.topology import GENERATE_BATCH
from gpu_worker.execute import execute_batch
from gpu_worker.runtime import Runtime

runtimes: list[Runtime] = []  # the process's one runtime, once `worker_process_init` has made it


def register(app: Celery) -> None:
    """Add the task to the app. It returns a short line, for Flower."""

    def generate_batch(batch_id: Any, job_id: Any) -> str:
        if not (isinstance(batch_id, str) and isinstance(job_id, str)):
            raise MessageError(f"a batch's message holds two ids, not {batch_id!r:.80} and {job_id!r:.80}")
        execute_batch(app, runtimes[0], batch_id, job_id)
        return "done"

    app.task(name=GENERATE_BATCH, ignore_result=True)(generate_batch)
