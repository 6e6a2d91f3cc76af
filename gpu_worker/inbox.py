"""Where one batch waits for what the engine has to say of its requests."""

import queue

import msgspec

from broker.deltas import TextDelta
from gpu_worker.engine.base import Completion

# Of one request, or of those that have ended together, or those that are wanted elsewhere.
_Said = tuple[int, TextDelta | tuple[int, ...]] | dict[int, Completion] | frozenset[int]


class News(msgspec.Struct, kw_only=True):
    """What came since the last look, by request index; nothing at all after a wake-up."""

    completed: dict[int, Completion]
    saved: dict[int, tuple[int, ...]]  # tokens so far of requests that go on
    texts: dict[int, TextDelta]  # new text of requests that go on
    recalled: set[int]  # requests to give back


class Inbox:
    """Filled by the engine's thread, emptied by the batch's."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[_Said | None] = queue.SimpleQueue()

    def complete(self, completions: dict[int, Completion]) -> None:
        """Requests have ended."""
        self._queue.put(completions)

    def save(self, index: int, tokens: tuple[int, ...]) -> None:
        """A request has come so far that its tokens are worth saving."""
        self._queue.put((index, tokens))

    def publish(self, delta: TextDelta) -> None:
        """A request has new text, right behind what was published of it before."""
        self._queue.put((delta.index, delta))

    def recall(self, index: int) -> None:
        """A request is to be given back, so that it runs elsewhere."""
        self._queue.put(frozenset((index,)))

    def wake(self) -> None:
        """Make the batch look around, though nothing has happened to its requests."""
        self._queue.put(None)

    def take(self, timeout_s: float | None) -> News:
        """Wait for news, at most `timeout_s` seconds (None: as long as it takes), and take all there is."""
        news = News(completed={}, saved={}, texts={}, recalled=set())
        try:
            self._sort(self._queue.get(timeout=timeout_s), news)
            while True:
                self._sort(self._queue.get_nowait(), news)
        except queue.Empty:
            return news

    def _sort(self, item: _Said | None, news: News) -> None:
        if item is None:
            return
        if isinstance(item, dict):
            news.completed |= item
            for index in item:
                news.saved.pop(index, None)
                news.texts.pop(index, None)  # it is in the completion
            return
        if isinstance(item, frozenset):
            news.recalled |= item
            return
        index, said = item
        if isinstance(said, TextDelta):
            before = news.texts.get(index)
            news.texts[index] = said if before is None else before.followed_by(said)
        else:
            news.saved[index] = said
