"""Names on the Celery side. A worker has one name everywhere: its Celery node name, such as `gpu0@host`."""

GENERATE_BATCH = "stoker.generate_batch"
CONTROL = "stoker.control"  # run-time control as a task, for those that can send only tasks


def queue_name(worker: str) -> str:
    """The Celery queue that only this worker consumes."""
    return f"gpu.{worker}"
