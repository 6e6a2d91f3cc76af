"""The Celery task: a thin shell around `execute`."""

from celery import Celery

from broker.topology import GENERATE_BATCH
from gpu_worker.execute import execute_batch
from gpu_worker.runtime import Runtime

runtimes: list[Runtime] = []  # the process's one runtime, once `worker_process_init` has made it


def register(app: Celery) -> None:
    """Add the task to the app. It returns a short line, for Flower."""

    def generate_batch(batch_id: str, job_id: str) -> str:
        execute_batch(app, runtimes[0], batch_id, job_id)
        return "done"

    app.task(name=GENERATE_BATCH, ignore_result=True)(generate_batch)
