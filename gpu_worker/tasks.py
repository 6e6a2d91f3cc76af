"""The Celery tasks: thin shells around `execute` and `control`."""

from typing import Any

from celery import Celery
from celery.worker.request import Request

from broker.errors import MessageError
from broker.topology import CONTROL, GENERATE_BATCH
from gpu_worker.control import Control, refuse_without_engine
from gpu_worker.execute import execute_batch
from gpu_worker.runtime import Runtime

runtimes: list[Runtime] = []  # the process's one runtime, once `worker_process_init` has made it
controls: list[Control] = []  # its run-time control


class BatchRequest(Request):  # pyright: ignore[reportMissingTypeArgument]
    """A message as Celery handles it. Taken off its queue it is nowhere else, and there is nothing to acknowledge."""

    def acknowledge(self) -> None:
        """Spare Redis a transaction that would change nothing."""
        self.acknowledged = True


def register(app: Celery) -> None:
    """Add the tasks to the app. A batch returns a short line, for Flower."""

    def generate_batch(batch_id: Any, job_id: Any) -> str:
        if not (isinstance(batch_id, str) and isinstance(job_id, str)):
            raise MessageError(f"a batch's message holds two ids, not {batch_id!r:.80} and {job_id!r:.80}")
        execute_batch(app, runtimes[0], batch_id, job_id)
        return "done"

    app.task(name=GENERATE_BATCH, ignore_result=True, Request=BatchRequest)(generate_batch)
    app.task(name=CONTROL, ignore_result=False)(answer)


def answer(command: str, **arguments: Any) -> dict[str, Any]:
    """Do a command of run-time control, as a task or for Celery's panel, which knows no runtime."""
    return controls[0].answer(command, arguments) if controls else refuse_without_engine()
