"""Which worker gets the next batch: of those that serve the model and have room, the one with most free slots. Pure."""

from collections.abc import Iterable

from driver.snapshot import WorkerView


def choose_worker(workers: Iterable[WorkerView], model: str) -> WorkerView | None:
    """The best worker for a batch of this model ("" for any); None when none has room."""
    able = [worker for worker in workers if worker.serves(model) and worker.has_room]
    # The name decides between equals, so that the same snapshot always gives the same decision.
    return min(able, key=lambda worker: (-worker.free_slots, -worker.free_tokens, worker.worker), default=None)
