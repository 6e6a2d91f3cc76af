"""A Celery thread pool that starts like a process pool: it sends `worker_process_init` before the first message.

Celery's own thread pool never sends that signal, so a model loaded in its handler would stay unloaded. With threads,
several batches share the one resident engine, so that continuous batching does not drain between Celery tasks.
"""

from celery import signals
from celery.concurrency.thread import TaskPool


class EnginePool(TaskPool):  # pyright: ignore[reportMissingTypeArgument]
    """Threads that share one engine; each runs one batch."""

    def on_start(self) -> None:
        """Load the engine in the main thread; the worker consumes nothing before this returns."""
        signals.worker_process_init.send(sender=self)
        super().on_start()

    def on_stop(self) -> None:
        """Wait for running batches, then let the engine go."""
        super().on_stop()
        signals.worker_process_shutdown.send(sender=self, pid=None, exitcode=0)
