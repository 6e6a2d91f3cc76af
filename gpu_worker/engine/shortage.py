"""What is done when memory runs out in a step: the steps shrink, everything goes on, and what never fits is found.

No request is blamed for a shortage, which is everybody's. Only one that has the smallest step and the memory for
itself, and does not fit even so, is given up; then all is as before it came.
"""

import logging
from collections.abc import Callable

import msgspec

from gpu_worker.engine.book import Book, Held
from gpu_worker.engine.errors import OUT_OF_MEMORY, EngineDeadError
from gpu_worker.engine.loop import Loop
from gpu_worker.engine.room import Room
from gpu_worker.engine.sampling import PerRequestSampling

_log = logging.getLogger(__name__)


class GivenUp(msgspec.Struct, frozen=True, kw_only=True):
    """A request that cannot be run, and why."""

    held: Held
    code: str
    message: str


class Shortage:
    """Follows the requests that memory ran out with, until they have gone on."""

    def __init__(self, book: Book, room: Room, sampling: PerRequestSampling) -> None:
        self._book = book
        self._room = room
        self._sampling = sampling
        self._first: Held | None = None  # of the step that memory ran out in
        self._first_tokens = 0
        self._together: set[Held] = set()  # with what else was running then

    def make_room(self, error: Exception, loop: Loop) -> list[GivenUp]:
        """Let all that ran wait again, for a loop that holds less at a time; return the one that never fits.

        Raises:
            EngineDeadError: there was nothing to run.
        """
        used, running = self._sampling.last, self._book.running_now
        first = self._book.running(used.first) if used.first else next(iter(running), None)
        needed = max((held.most_tokens for held in self._book), default=0)
        self._book.restart_running()
        self._first, self._first_tokens = first, len(first.progress) if first is not None else 0
        self._together.update(running)
        if self._room.shrink(used, needed, loop, self._sampling.steps):
            _log.warning("memory ran out in a step of %d requests and %d tokens: %s", used.rows, used.tokens, error)
            return []
        if first is None and not used.first:
            raise EngineDeadError(f"memory ran out with nothing to run: {error}") from error
        self._room.forgive()
        if first is None:
            return []  # it was cancelled meanwhile
        self._book.remove(first)
        return [GivenUp(held=first, code=OUT_OF_MEMORY, message=_too_large(first, error))]

    def without_room(self, loop: Loop) -> list[GivenUp]:
        """Requests that the KV cache, where it has become smaller, can never hold."""
        too_large = self.holds_too_large(loop)
        for held in too_large:
            self._book.remove(held)
        return [GivenUp(held=held, code=OUT_OF_MEMORY, message=no_room(held, loop.kv_tokens)) for held in too_large]

    def holds_too_large(self, loop: Loop) -> list[Held]:
        """Requests in hand that may need more than the whole KV cache."""
        return [held for held in self._book if held.most_tokens > loop.kv_tokens]

    def is_over(self, tokens: Callable[[Held], tuple[int, ...]]) -> bool:
        """Whether limits may grow: the request that was hit has gone on, or is gone. `tokens` tells a request's.

        Else the way to where it was would count as a quiet time, and one that can never go on would not be found.
        """
        if self._together and not any(self._in_hand(held) for held in self._together):
            self._together.clear()
            self._room.settle()
        first = self._first
        if first is not None and self._in_hand(first) and len(tokens(first)) <= self._first_tokens:
            return False
        self._first = None
        return True

    def _in_hand(self, held: Held) -> bool:
        return self._book.find(held.request_id) is held


def no_room(held: Held, kv_tokens: int) -> str:
    """Why a request cannot be run while memory is short."""
    return (
        f"prompt and max_tokens need {held.most_tokens} tokens of the KV cache, which holds {kv_tokens} since memory"
        " ran out; try it again later, or on a device with more memory"
    )


def _too_large(held: Held, error: Exception) -> str:
    return (
        f"memory ran out at {len(held.prompt_ids) + len(held.progress)} tokens, with nothing else running: give a"
        f" shorter prompt or a smaller max_tokens, or use a device with more memory ({error})"
    )
