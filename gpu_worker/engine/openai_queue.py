"""The requests that an engine has at its server: the queue of those in hand, and the stream of each that runs."""

from concurrent.futures import Future

from gpu_worker.engine.base import Capacity, Completion, Load
from gpu_worker.engine.openai_events import Event
from gpu_worker.engine.openai_held import HeldCall
from gpu_worker.engine.openai_streams import Streams
from gpu_worker.engine.run_queue import RunQueue


class ServerQueue:
    """Sends as many requests at once as its capacity allows, in the order of their coming. Safe from any thread.

    `resume` lets it begin. It fulfils `Listener`: what streams say of a request that was dropped or held back
    meanwhile is ignored.
    """

    def __init__(self, streams: Streams, *, slots: int, kv_tokens: int, context_tokens: int) -> None:
        self._streams = streams
        self._queue = RunQueue[HeldCall](slots=slots, kv_tokens=kv_tokens, context_tokens=context_tokens)
        self._queue.pause()
        self._streaming: dict[str, Future[None]] = {}

    @property
    def capacity(self) -> Capacity:
        """What is sent at once."""
        return self._queue.capacity

    @property
    def load(self) -> Load:
        """What is held and was done; each event of a stream is a step."""
        return self._queue.load

    @property
    def unsent(self) -> tuple[str, ...]:
        """Those that wait for room, in the order in which they will be sent; of some the server may know before."""
        return self._queue.not_begun

    def add(self, held: HeldCall) -> None:
        """Take a request, and send it when there is room. One already in hand is left as it is."""
        with self._queue.changed:
            self._queue.add(held)
            self._send()

    def drop(self, request_id: str) -> HeldCall | None:
        """Forget a request and close its connection."""
        with self._queue.changed:
            held = self._queue.drop(request_id)
            if (streaming := self._streaming.pop(request_id, None)) is not None:
                streaming.cancel()
                self._send()
            return held

    def settled(self, request_id: str) -> str:
        """The text so far of a request that streams; see `HeldCall.settled`."""
        return self._queue.settled(request_id)

    def finish(self, completion: Completion) -> None:
        """A request has ended; `take` gives its completion."""
        self._queue.finish(completion)

    def take(self) -> list[Completion]:
        """What has ended since the last call."""
        return self._queue.take()

    def wait(self, timeout_s: float) -> bool:
        """Wait until something has ended; says whether it has, or the queue is closed."""
        with self._queue.changed:
            return self._queue.changed.wait_for(lambda: self._queue.has_ended or self._queue.closed, timeout_s)

    def resize(self, *, slots: int, kv_tokens: int) -> None:
        """Change what is sent at once; 0 leaves a size. What is too much then waits again.

        Raises:
            NoRoomError: a request in hand would never have room.
        """
        with self._queue.changed:
            self._queue.resize(slots=slots, kv_tokens=kv_tokens)
            while self._queue.overfull:
                self._hold_back(self._queue.running[-1:])
            self._send()

    def pause(self) -> None:
        """Let all wait again, from their beginning."""
        with self._queue.changed:
            self._hold_back(self._queue.running)
            self._queue.pause()

    def resume(self) -> None:
        """Begin, or go on after `pause`."""
        with self._queue.changed:
            self._queue.resume()
            self._send()

    def close(self) -> None:
        """Forget everything; nothing is sent any more. The streams are closed by who opened them."""
        self._queue.close()

    def begin(self, held: HeldCall) -> None:
        """A request is sent, perhaps once more."""
        with self._queue.changed:
            if self._queue.runs(held):
                held.start_again()

    def grow(self, held: HeldCall, event: Event) -> None:
        """A stream has said something."""
        with self._queue.changed:
            if self._queue.runs(held):
                self._queue.stepped(held.take(event))

    def end(self, held: HeldCall, failed: Completion | None) -> None:
        """A stream has ended, with all of its text or for good without."""
        with self._queue.changed:
            if self._queue.runs(held):
                del self._streaming[held.request_id]
                self._queue.end(held, failed or held.completion())
                self._send()

    def _send(self) -> None:
        for held in self._queue.start():
            self._streaming[held.request_id] = self._streams.open(held, self)

    def _hold_back(self, running: list[HeldCall]) -> None:
        """Let some that run wait again, before the others; late events of their streams do not reach them."""
        for held in running:
            self._streaming.pop(held.request_id).cancel()
        self._queue.hold_back(held.fresh() for held in running)
