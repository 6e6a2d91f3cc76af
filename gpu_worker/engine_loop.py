"""The one thread that steps the engine, and the hand-over of completions to the batches that wait for them."""

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence

from broker.messages import Output, Request
from gpu_worker.engine.base import Completion, Engine

logger = logging.getLogger(__name__)

STEP_S = 0.05


class Inbox:
    """Where one batch waits for its completions."""

    def __init__(self, expected: int) -> None:
        self._queue: queue.SimpleQueue[tuple[int, Completion] | None] = queue.SimpleQueue()
        self._missing = expected

    def put(self, index: int, completion: Completion) -> None:
        """Hand over one completion."""
        self._queue.put((index, completion))

    def interrupt(self) -> None:
        """Wake the batch so that it looks around, though nothing has completed."""
        self._queue.put(None)

    def rounds(self) -> Iterator[list[tuple[int, Completion]]]:
        """What has completed, several at a time where several wait, until all have; empty after an interrupt."""
        while self._missing > 0:
            items = [self._queue.get()]
            while not self._queue.empty():
                items.append(self._queue.get())
            completed = [item for item in items if item is not None]
            self._missing -= len(completed)
            yield completed


class EngineLoop:
    """Steps an engine in a thread of its own; any number of batches submit to it."""

    def __init__(self, engine: Engine, on_death: Callable[[BaseException], None]) -> None:
        self._engine = engine
        self._on_death = on_death
        self._lock = threading.Lock()
        self._waiting: dict[str, tuple[int, Inbox]] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start stepping."""
        self._thread.start()

    def stop(self) -> None:
        """Stop stepping, and close the engine. Safe to call twice."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        self._engine.close()

    def submit(self, batch_id: str, requests: Sequence[tuple[int, Request]]) -> Inbox:
        """Give a batch's requests to the engine; their completions arrive in the inbox by request index."""
        inbox = Inbox(len(requests))
        for index, request in requests:
            request_id = f"{batch_id}/{index}"
            with self._lock:
                self._waiting[request_id] = (index, inbox)
            self._engine.submit(request_id, request)
        return inbox

    def withdraw(self, batch_id: str) -> None:
        """Drop what a batch still has in the engine."""
        prefix = f"{batch_id}/"
        with self._lock:
            dropped = [request_id for request_id in self._waiting if request_id.startswith(prefix)]
            for request_id in dropped:
                del self._waiting[request_id]
        for request_id in dropped:
            self._engine.cancel(request_id)

    def interrupt(self) -> None:
        """Make every waiting batch look around."""
        with self._lock:
            inboxes = {id(inbox): inbox for _, inbox in self._waiting.values()}
        for inbox in inboxes.values():
            inbox.interrupt()

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                for completion in self._engine.step(STEP_S):
                    self._deliver(completion)
        except BaseException as error:  # noqa: BLE001 - whatever ends the loop ends the process
            self._on_death(error)

    def _deliver(self, completion: Completion) -> None:
        with self._lock:
            place = self._waiting.pop(completion.request_id, None)
        if place is not None:
            index, inbox = place
            inbox.put(index, completion)


def as_output(index: int, completion: Completion, request: Request, worker: str) -> Output:
    """An engine's completion as the output of the request with this index."""
    return Output(
        index=index,
        text=completion.text,
        token_ids=completion.token_ids,
        finish_reason=completion.finish_reason,
        usage=completion.usage,
        error=completion.error,
        input_ids=completion.input_ids if request.return_input_ids else None,
        worker_id=worker,
    )
