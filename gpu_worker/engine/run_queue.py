"""The requests that an engine has in hand: which wait for room, which run, and what has ended.

They run in the order of their coming, as many at once as slots and tokens allow.
"""

import threading
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

from gpu_worker.engine.base import Capacity, Completion, Load
from gpu_worker.engine.errors import require_kv_tokens


class Queued(Protocol):
    """What is needed of a request in hand."""

    request_id: str
    begun: bool  # it runs, or has run

    @property
    def now_tokens(self) -> int:
        """What it occupies, prompt and answer together."""
        ...

    @property
    def most_tokens(self) -> int:
        """What it may come to occupy."""
        ...

    def settled(self) -> str:
        """See `Engine.text`."""
        ...


Item = TypeVar("Item", bound=Queued)


class RunQueue(Generic[Item]):
    """Safe from any thread; who does several things that belong together holds `changed` meanwhile."""

    def __init__(self, *, slots: int, kv_tokens: int, context_tokens: int) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.slots = slots
        self.steps = 0
        self.paused = False
        self.closed = False
        self._kv_tokens = kv_tokens
        self._context_tokens = context_tokens
        self._waiting: dict[str, Item] = {}
        self._running: dict[str, Item] = {}
        self._ended: list[Completion] = []
        self._tokens = 0
        self._prompt_tokens = 0

    @property
    def capacity(self) -> Capacity:
        """As made, or as `resize` has changed it."""
        context = min(self._context_tokens, self._kv_tokens)
        return Capacity(slots=self.slots, kv_tokens=self._kv_tokens, context_tokens=context)

    @property
    def load(self) -> Load:
        """What is held, and was done."""
        with self.changed:
            return Load(
                running=len(self._running),
                waiting=len(self._waiting),
                steps=self.steps,
                generated_tokens=self._tokens,
                kv_tokens_used=sum(item.now_tokens for item in self._running.values()),
                prompt_tokens=self._prompt_tokens,
            )

    @property
    def running(self) -> list[Item]:
        """Those that run, in the order in which they began."""
        with self.changed:
            return list(self._running.values())

    @property
    def not_begun(self) -> tuple[str, ...]:
        """Those that wait and have never run, in the order in which they will."""
        with self.changed:
            return tuple(item.request_id for item in self._waiting.values() if not item.begun)

    @property
    def overfull(self) -> bool:
        """Whether more runs than there is room for, as after `resize`."""
        with self.changed:
            return len(self._running) > self.slots or self._free_tokens() < 0

    @property
    def has_ended(self) -> bool:
        """Whether there is something to `take`."""
        return bool(self._ended)

    def add(self, item: Item) -> None:
        """Let a request wait. One already in hand is left as it is."""
        with self.changed:
            if not self.closed and item.request_id not in self._running:
                self._waiting.setdefault(item.request_id, item)
            self.changed.notify_all()

    def find(self, request_id: str) -> Item | None:
        """The request of this id, waiting or running."""
        with self.changed:
            return self._running.get(request_id) or self._waiting.get(request_id)

    def runs(self, item: Item) -> bool:
        """Whether this very one runs: it was not dropped or held back meanwhile."""
        return self._running.get(item.request_id) is item

    def settled(self, request_id: str) -> str:
        """The text so far of a request that streams; see `Engine.text`."""
        with self.changed:
            item = self.find(request_id)
            return item.settled() if item is not None else ""

    def drop(self, request_id: str) -> Item | None:
        """Forget a request."""
        with self.changed:
            return self._waiting.pop(request_id, None) or self._running.pop(request_id, None)

    def start(self) -> list[Item]:
        """Let those that wait run as far as there is room, one alone whatever its size; returns them."""
        started: list[Item] = []
        with self.changed:
            free = self._free_tokens() if self._waiting else 0
            while self._waiting and not (self.paused or self.closed):
                request_id, item = next(iter(self._waiting.items()))
                free -= item.most_tokens
                if self._running and (free < 0 or len(self._running) >= self.slots):
                    break
                self._running[request_id] = self._waiting.pop(request_id)
                item.begun = True
                self._prompt_tokens += item.now_tokens
                started.append(item)
        return started

    def hold_back(self, items: Iterable[Item]) -> None:
        """Let some that run, or others in their place, wait again, before the rest."""
        with self.changed:
            back = {item.request_id: item for item in items}
            for request_id in back:
                del self._running[request_id]
            self._waiting = back | self._waiting

    def stepped(self, tokens: int) -> None:
        """A step was done, which gave so many tokens."""
        self.steps += 1
        self._tokens += tokens

    def end(self, item: Item, completion: Completion) -> None:
        """One that runs has ended."""
        with self.changed:
            del self._running[item.request_id]
            self.finish(completion)

    def finish(self, completion: Completion) -> None:
        """A request has ended, which perhaps was never in hand; `take` gives its completion."""
        with self.changed:
            self._ended.append(completion)
            self.changed.notify_all()

    def take(self) -> list[Completion]:
        """What has ended since the last call."""
        with self.changed:
            ended, self._ended = self._ended, []
            return ended

    def resize(self, *, slots: int, kv_tokens: int) -> None:
        """Change what may run at once; 0 leaves a size. What runs goes on.

        Raises:
            NoRoomError: a request in hand would never have room.
        """
        with self.changed:
            in_hand = (*self._running.values(), *self._waiting.values())
            require_kv_tokens(kv_tokens, max((item.most_tokens for item in in_hand), default=0))
            self.slots = slots or self.slots
            self._kv_tokens = kv_tokens or self._kv_tokens
            self.changed.notify_all()

    def pause(self) -> None:
        """Let all wait, before others, until `resume`."""
        with self.changed:
            self.paused = True
            self.hold_back(self.running)

    def resume(self) -> None:
        """Let `start` start them again."""
        with self.changed:
            self.paused = False
            self.changed.notify_all()

    def close(self) -> None:
        """Forget everything; nothing is taken any more."""
        with self.changed:
            self.closed = True
            self._waiting.clear()
            self._running.clear()
            self.changed.notify_all()

    def _free_tokens(self) -> int:
        return self._kv_tokens - sum(item.most_tokens for item in self._running.values())
