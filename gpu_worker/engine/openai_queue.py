"""The requests that an engine has at its server: which wait for room, which run, and what has ended."""

import threading
from concurrent.futures import Future

from gpu_worker.engine.base import Capacity, Completion, Load
from gpu_worker.engine.errors import NoRoomError
from gpu_worker.engine.openai_events import Event
from gpu_worker.engine.openai_held import HeldCall
from gpu_worker.engine.openai_streams import Streams


class ServerQueue:
    """Sends as many requests at once as its capacity allows, in the order of their coming. Safe from any thread.

    `resume` lets it begin. It fulfils `Listener`: what streams say of a request that was dropped or held back
    meanwhile is ignored.
    """

    def __init__(self, streams: Streams, *, slots: int, kv_tokens: int, context_tokens: int) -> None:
        self._streams = streams
        self._context_tokens = context_tokens
        self.capacity = self._capacity(slots, kv_tokens)
        self._changed = threading.Condition(threading.RLock())
        self._waiting: dict[str, HeldCall] = {}
        self._running: dict[str, HeldCall] = {}
        self._streaming: dict[str, Future[None]] = {}
        self._done: list[Completion] = []
        self._closed = False
        self._paused = True
        self._steps = 0
        self._tokens = 0
        self._prompt_tokens = 0

    @property
    def load(self) -> Load:
        """What is held and was done; each event of a stream is a step."""
        with self._changed:
            return Load(
                running=len(self._running),
                waiting=len(self._waiting),
                steps=self._steps,
                generated_tokens=self._tokens,
                kv_tokens_used=sum(len(held.prompt_ids) + held.tokens for held in self._running.values()),
                prompt_tokens=self._prompt_tokens,
            )

    @property
    def unsent(self) -> tuple[str, ...]:
        """Those that wait for room, in the order in which they will be sent; of some the server may know before."""
        with self._changed:
            return tuple(self._waiting)

    def add(self, held: HeldCall) -> None:
        """Take a request, and send it when there is room. One already in hand is left as it is."""
        with self._changed:
            if not self._closed and held.request_id not in self._running:
                self._waiting.setdefault(held.request_id, held)
                self._start_waiting()

    def drop(self, request_id: str) -> HeldCall | None:
        """Forget a request and close its connection."""
        with self._changed:
            held = self._waiting.pop(request_id, None) or self._running.pop(request_id, None)
            if (streaming := self._streaming.pop(request_id, None)) is not None:
                streaming.cancel()
                self._start_waiting()
            return held

    def settled(self, request_id: str) -> str:
        """The text so far of a request that streams; see `HeldCall.settled`."""
        with self._changed:
            held = self._running.get(request_id) or self._waiting.get(request_id)
            return held.settled() if held is not None else ""

    def finish(self, completion: Completion) -> None:
        """A request has ended; `take` gives its completion."""
        with self._changed:
            self._done.append(completion)
            self._changed.notify_all()

    def take(self) -> list[Completion]:
        """What has ended since the last call."""
        with self._changed:
            done, self._done = self._done, []
            return done

    def wait(self, timeout_s: float) -> bool:
        """Wait until something has ended; says whether it has, or the queue is closed."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._done) or self._closed, timeout_s)

    def resize(self, *, slots: int, kv_tokens: int) -> None:
        """Change what is sent at once; 0 leaves a size. What is too much then waits again.

        Raises:
            NoRoomError: a request in hand would never have room.
        """
        with self._changed:
            needed = max((held.most_tokens for held in (*self._running.values(), *self._waiting.values())), default=0)
            if 0 < kv_tokens < needed:
                raise NoRoomError(f"kv_tokens={kv_tokens} is too few: a request in hand may need {needed}")
            self.capacity = self._capacity(slots or self.capacity.slots, kv_tokens or self.capacity.kv_tokens)
            while self._running and not self._fits(()):
                self._hold_back(next(reversed(self._running)))
            self._start_waiting()

    def pause(self) -> None:
        """Let all wait again, from their beginning."""
        with self._changed:
            self._paused = True
            for request_id in reversed(list(self._running)):
                self._hold_back(request_id)

    def resume(self) -> None:
        """Begin, or go on after `pause`."""
        with self._changed:
            self._paused = False
            self._start_waiting()

    def close(self) -> None:
        """Forget everything; nothing is sent any more. The streams are closed by who opened them."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._running.clear()
            self._changed.notify_all()

    def begin(self, held: HeldCall) -> None:
        """A request is sent, perhaps once more."""
        with self._changed:
            if self._running.get(held.request_id) is held:
                held.start_again()

    def grow(self, held: HeldCall, event: Event) -> None:
        """A stream has said something."""
        with self._changed:
            if self._running.get(held.request_id) is held:
                self._steps += 1
                self._tokens += held.take(event)

    def end(self, held: HeldCall, failed: Completion | None) -> None:
        """A stream has ended, with all of its text or for good without."""
        with self._changed:
            if self._running.get(held.request_id) is held:
                del self._running[held.request_id], self._streaming[held.request_id]
                self.finish(failed or held.completion())
                self._start_waiting()

    def _capacity(self, slots: int, kv_tokens: int) -> Capacity:
        return Capacity(slots=slots, kv_tokens=kv_tokens, context_tokens=min(self._context_tokens, kv_tokens))

    def _fits(self, more: tuple[HeldCall, ...]) -> bool:
        held = (*self._running.values(), *more)
        tokens = sum(item.most_tokens for item in held)
        return len(held) <= self.capacity.slots and tokens <= self.capacity.kv_tokens

    def _start_waiting(self) -> None:
        while self._waiting and not self._closed and not self._paused:
            request_id, held = next(iter(self._waiting.items()))
            if self._running and not self._fits((held,)):  # alone it must run, or it would wait for ever
                return
            self._running[request_id] = self._waiting.pop(request_id)
            self._prompt_tokens += len(held.prompt_ids)
            self._streaming[request_id] = self._streams.open(held, self)

    def _hold_back(self, request_id: str) -> None:
        """Let one that runs wait again, before the others."""
        self._streaming.pop(request_id).cancel()
        self._waiting = {request_id: self._running.pop(request_id).fresh()} | self._waiting
