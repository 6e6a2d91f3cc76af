"""The one thread that steps the engine, and hands what it says to the batches that wait for it."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence

import msgspec

from broker.deltas import TextDelta
from broker.messages import Request
from broker.records import ClaimedRequest
from gpu_worker.engine.base import Completion, Engine
from gpu_worker.inbox import Inbox

logger = logging.getLogger(__name__)

STEP_S = 0.05
CHECKPOINT_LOOK_S = 0.1
TEXT_LOOK_S = 0.05
OVERTAKEN_FOR_S = 60.0  # who has waited here for so long is not overtaken any more


class _Waiting(msgspec.Struct, kw_only=True):
    index: int
    inbox: Inbox
    request: Request
    priority: int
    since_s: float
    resumed: bool  # it was begun elsewhere
    saved: int  # tokens that a checkpoint holds
    long: bool  # worth checkpoints at all
    streams: bool
    published: int = 0  # characters of its text


class EngineLoop:
    """Steps an engine in a thread of its own; any number of batches submit to it.

    Every `checkpoint_tokens` tokens (0: never) a request's tokens so far go to its batch's inbox, to be saved. The new
    text of those that stream goes there many times a second.
    """

    def __init__(self, engine: Engine, checkpoint_tokens: int, on_death: Callable[[BaseException], None]) -> None:
        self._engine = engine
        # Half, as between two looks more tokens come: what is lost stays below the whole.
        self._checkpoint_tokens = (checkpoint_tokens + 1) // 2
        self._on_death = on_death
        self._lock = threading.Lock()
        self._order = threading.RLock()  # held while what the engine has is changed
        self._waiting: dict[str, _Waiting] = {}
        self._looked_s = 0.0
        self._read_s = 0.0
        self._answered_s = time.monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start stepping."""
        self._thread.start()

    def stop(self, timeout_s: float | None = None) -> bool:
        """Stop stepping, and close the engine. Safe to call twice. False when its step does not end in time."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._engine.close()
        return not self._thread.is_alive()

    @property
    def answered_s(self) -> float:
        """Seconds since the engine's last answer to `step`: it comes many times a second, unless the engine hangs."""
        return time.monotonic() - self._answered_s

    def submit(self, batch_id: str, requests: Sequence[ClaimedRequest], inbox: Inbox, *, priority: int = 0) -> None:
        """Give a batch's requests to the engine; the inbox hears of them by request index.

        They begin before what has a lower priority and has not begun: an engine takes requests as they come.
        """
        waiting = {_request_id(batch_id, item.index): self._awaited(item, inbox, priority) for item in requests}
        with self._order:
            overtaken = self._take_back(priority)
            with self._lock:
                self._waiting |= waiting
            try:
                for request_id, item in zip(waiting, requests, strict=True):
                    # One that was withdrawn meanwhile must not run.
                    if request_id in self._waiting:
                        self._engine.submit(request_id, item.request, generated=item.generated)
            finally:
                for request_id, request, tokens in overtaken:
                    self._engine.submit(request_id, request, generated=tokens)

    def withdraw(self, batch_id: str, index: int) -> Completion | None:
        """Drop a request and free its place. Returns what it had so far; None when it has ended already."""
        request_id = _request_id(batch_id, index)
        with self._order:
            with self._lock:
                if self._waiting.pop(request_id, None) is None:
                    return None
            return self._engine.cancel(request_id)

    def withdraw_batch(self, batch_id: str) -> None:
        """Drop all that a batch still has."""
        with self._lock:
            mine = [(key, waiting.index) for key, waiting in self._waiting.items() if key.startswith(f"{batch_id}/")]
        for _, index in mine:
            self.withdraw(batch_id, index)

    def movable(self, *, begun: Collection[str] = ()) -> list[tuple[str, int]]:
        """Batch and index of what the engine has not begun, in the order in which it will.

        Before these come, of the batches `begun`, those that have begun and can go on elsewhere, in the order in which
        they came. Who was begun elsewhere stays, so that nobody is sent around, however speeds change.
        """
        waiting = self._engine.not_begun()
        with self._lock:
            known = self._waiting.copy()
        not_running = set(waiting)
        batches = begun if self._engine.traits.token_ids else ()
        running = [
            request_id
            for request_id, item in known.items()
            if _batch_id(request_id) in batches and request_id not in not_running and not item.resumed
        ]
        line = [*running, *waiting]
        return [(_batch_id(request_id), known[request_id].index) for request_id in line if request_id in known]

    def _take_back(self, priority: int) -> list[tuple[str, Request, tuple[int, ...]]]:
        """Take what has a lower priority and has not begun from the engine, in its order, with its tokens so far."""
        since_s = time.monotonic() - OVERTAKEN_FOR_S
        with self._lock:
            lower = {
                key: item.request
                for key, item in self._waiting.items()
                if item.priority < priority and item.since_s > since_s
            }
        return [
            (request_id, lower[request_id], partial.checkpoint)
            for request_id in (self._engine.not_begun() if lower else ())
            if request_id in lower and (partial := self._engine.cancel(request_id)) is not None
        ]

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                if completions := self._engine.step(STEP_S):
                    self._deliver(completions)
                self._answered_s = time.monotonic()
                self._look_for_text()
                self._look_for_checkpoints()
        except BaseException as error:
            self._on_death(error)

    def _awaited(self, item: ClaimedRequest, inbox: Inbox, priority: int) -> _Waiting:
        most_tokens = item.request.params.n * item.request.params.max_tokens
        return _Waiting(
            index=item.index,
            inbox=inbox,
            request=item.request,
            priority=priority,
            since_s=time.monotonic(),
            resumed=bool(item.generated),
            saved=len(item.generated),
            long=most_tokens - len(item.generated) > self._checkpoint_tokens > 0,
            streams=item.request.stream,
        )

    def _deliver(self, completions: Sequence[Completion]) -> None:
        """Give each batch what has ended of it in one piece: so it commits them together."""
        ended: dict[Inbox, dict[int, Completion]] = {}
        with self._lock:  # until they are in the inbox: who withdraws the rest of a batch finds them there
            for completion in completions:
                if (waiting := self._waiting.pop(completion.request_id, None)) is not None:
                    ended.setdefault(waiting.inbox, {})[waiting.index] = completion
            for inbox, of_batch in ended.items():
                inbox.complete(of_batch)

    def _look_for_text(self) -> None:
        now_s = time.monotonic()
        if now_s - self._read_s < TEXT_LOOK_S:
            return
        self._read_s = now_s
        with self._lock:
            streaming = [(request_id, waiting) for request_id, waiting in self._waiting.items() if waiting.streams]
        for request_id, waiting in streaming:
            text = self._engine.text(request_id)
            if new := text[waiting.published :]:
                # From the beginning on also after a death: who missed what was published before gets it now.
                waiting.inbox.publish(TextDelta(index=waiting.index, offset=waiting.published, text=new))
                waiting.published = len(text)

    def _look_for_checkpoints(self) -> None:
        now_s = time.monotonic()
        if now_s - self._looked_s < CHECKPOINT_LOOK_S:
            return
        self._looked_s = now_s
        with self._lock:
            long = [(request_id, waiting) for request_id, waiting in self._waiting.items() if waiting.long]
        for request_id, waiting in long:
            tokens = self._engine.generated(request_id)
            if len(tokens) - waiting.saved >= self._checkpoint_tokens:
                waiting.saved = len(tokens)
                waiting.inbox.save(waiting.index, tokens)


def _request_id(batch_id: str, index: int) -> str:
    return f"{batch_id}/{index}"


def _batch_id(request_id: str) -> str:
    return request_id.rpartition("/")[0]
