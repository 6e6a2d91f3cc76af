"""Which worker gets the next batch: of those that serve the model and have room, the one with most free slots. Pure."""

from collections.abc import Iterable

import msgspec

from driver.snapshot import WorkerView


def choose_worker(workers: Iterable[WorkerView], model: str) -> WorkerView | None:
    """The best worker for a batch of this model ("" for any); None when none has room."""
    able = [worker for worker in workers if serves(worker, model) and has_room(worker)]
    # The name decides between equals, so that the same snapshot always gives the same decision.
    return min(able, key=lambda worker: (-worker.free_slots, -worker.free_tokens, worker.worker), default=None)


def serves(worker: WorkerView, model: str) -> bool:
    """Whether a worker serves this model."""
    return model in ("", worker.model)


def has_room(worker: WorkerView) -> bool:
    """Whether a worker can take one more batch."""
    return worker.free_slots > 0 and worker.free_batches > 0 and worker.free_tokens > 0


def occupy(worker: WorkerView, requests: int, tokens: int) -> WorkerView:
    """The worker with a batch of this size in hand."""
    return msgspec.structs.replace(
        worker,
        free_slots=worker.free_slots - requests,
        free_tokens=worker.free_tokens - tokens,
        free_batches=worker.free_batches - 1,
    )
