"""Names in the order of keys that change now and then; the first few are found without a look at the others. Pure."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Any)  # any one type whose values have an order

SPARE = 64  # outdated entries that are always borne


class Ranking(Generic[KeyT]):
    """A heap in which an entry that is outdated stays until it comes to the top, or there are too many of them."""

    def __init__(self) -> None:
        self._heap: list[tuple[KeyT, int, str]] = []
        self._current: dict[str, tuple[KeyT, int]] = {}
        self._puts = 0

    def __len__(self) -> int:
        return len(self._current)

    def put(self, name: str, key: KeyT) -> None:
        """Give a name its place, or another one."""
        known = self._current.get(name)
        if known is not None and known[0] == key:
            return
        self._puts += 1
        self._current[name] = (key, self._puts)
        heappush(self._heap, (key, self._puts, name))
        if len(self._heap) > 2 * len(self._current) + SPARE:
            self._heap = [(key, puts, name) for name, (key, puts) in self._current.items()]
            heapify(self._heap)

    def drop(self, name: str) -> None:
        """Forget a name."""
        self._current.pop(name, None)

    def in_order(self) -> Iterator[tuple[KeyT, str]]:
        """Keys and names, the lowest key first. Nothing may be changed before the last that is wanted was taken."""
        while self._heap and not self._is_current(self._heap[0]):
            heappop(self._heap)
        heap = self._heap
        if len(heap) == 1:
            yield heap[0][0], heap[0][2]
            return
        front = [(heap[0], 0)] if heap else []
        while front:
            entry, place = heappop(front)
            if self._is_current(entry):
                yield entry[0], entry[2]
            for child in (2 * place + 1, 2 * place + 2):
                if child < len(heap):
                    heappush(front, (heap[child], child))

    def _is_current(self, entry: tuple[KeyT, int, str]) -> bool:
        return self._current.get(entry[2]) == entry[:2]
