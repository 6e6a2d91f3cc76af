"""Where one batch waits for what the engine has to say of its requests."""

import queue

import msgspec

from gpu_worker.engine.base import Completion


class News(msgspec.Struct, kw_only=True):
    """What came since the last look, by request index; nothing at all after a wake-up."""

    completed: dict[int, Completion]
    saved: dict[int, tuple[int, ...]]  # tokens so far of requests that go on


class Inbox:
    """Filled by the engine's thread, emptied by the batch's."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[int, Completion | tuple[int, ...]] | None] = queue.SimpleQueue()

    def complete(self, index: int, completion: Completion) -> None:
        """A request has ended."""
        self._queue.put((index, completion))

    def save(self, index: int, tokens: tuple[int, ...]) -> None:
        """A request has come so far that its tokens are worth saving."""
        self._queue.put((index, tokens))

    def wake(self) -> None:
        """Make the batch look around, though nothing has happened to its requests."""
        self._queue.put(None)

    def take(self, timeout_s: float | None) -> News:
        """Wait for news, at most `timeout_s` seconds (None: as long as it takes), and take all there is."""
        news = News(completed={}, saved={})
        try:
            self._sort(self._queue.get(timeout=timeout_s), news)
            while True:
                self._sort(self._queue.get_nowait(), news)
        except queue.Empty:
            return news

    def _sort(self, item: tuple[int, Completion | tuple[int, ...]] | None, news: News) -> None:
        if item is None:
            return
        index, said = item
        if isinstance(said, Completion):
            news.completed[index] = said
            news.saved.pop(index, None)
        else:
            news.saved[index] = said
