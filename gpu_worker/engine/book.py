"""The engine's own book of what it has in hand, and who may run now.

The generation loop fails every request it holds when any one breaks it. So nothing is given away: a request stays in
the book until its completion is made. After a first failure all go on together, as most failures pass. Those that
were there at a second one are suspects and run alone, so that the one that breaks the loop is found and fails
alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from broker.messages import Request
from gpu_worker.engine.completions import Ending
from gpu_worker.engine.loop import Run
from gpu_worker.engine.rows import RowSampling
from gpu_worker.engine.settled import SettledText

_FAILURES_OF_A_SUSPECT = 2


@dataclass(slots=True, kw_only=True, eq=False)
class Held:
    """A request in hand. `key` names its present run in the loop, `before` are the tokens that this goes on behind."""

    request_id: str
    request: Request
    prompt_ids: tuple[int, ...]
    sampling: RowSampling
    before: tuple[int, ...]
    ending: Ending
    settled: SettledText | None = None  # the text so far, of one that streams
    key: str = ""
    failures: int = 0
    progress: tuple[int, ...] = field(default=())  # all tokens, as of the last output

    @property
    def most_tokens(self) -> int:
        """What it may come to occupy, prompt and answer together."""
        return len(self.prompt_ids) + self.request.params.max_tokens

    @property
    def suspect(self) -> bool:
        """Whether it was there at more than one failure."""
        return self.failures >= _FAILURES_OF_A_SUSPECT

    @property
    def over(self) -> bool:
        """Whether its tokens end it, and all that must be known of them is known."""
        return self._recorded and self.ending.reached(self.progress)

    @property
    def run(self) -> Run:
        """The present run, as a loop takes it."""
        return Run(
            key=self.key,
            token_ids=(*self.prompt_ids, *self.before),
            max_new_tokens=self.request.params.max_tokens - len(self.before),
            ends=self.ending.tokens,
            sampling=self.sampling,
            streaming=self.ending.needs_text,
        )

    def begin(self, key: str) -> None:
        """Start a run: behind the tokens so far, or giving them again where something of them is still to be found."""
        self.key = key
        self.before = self.progress if self._recorded else ()
        forced = () if self._recorded else self.progress
        if forced != self.sampling.forced:
            self.sampling = msgspec.structs.replace(self.sampling, forced=forced)

    @property
    def _recorded(self) -> bool:
        # A checkpoint holds no log probabilities: after a death they are found again, at the price of the tokens' time.
        record = self.sampling.record
        return record is None or len(record) >= len(self.progress)

    def note(self, run_tokens: tuple[int, ...] | list[int]) -> tuple[int, ...]:
        """Take the tokens of the present run; return all tokens, which never become fewer."""
        if len(self.before) + len(run_tokens) > len(self.progress):
            self.progress = (*self.before, *run_tokens)
        return self.progress


class Book:
    """Requests by id, waiting or running."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}
        self._waiting: dict[str, Held] = {}
        self._running: dict[str, Held] = {}  # by key
        self._runs = 0

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Held]:
        return iter(tuple(self._held.values()))

    def find(self, request_id: str) -> Held | None:
        """The request of this id, waiting or running."""
        return self._held.get(request_id)

    def running(self, key: str) -> Held | None:
        """The request whose present run has this key; None for the key of a run that is over."""
        return self._running.get(key)

    @property
    def running_now(self) -> tuple[Held, ...]:
        """Those that are running, in the order in which they began."""
        return tuple(self._running.values())

    def add(self, held: Held) -> None:
        """Put a request at the end of those waiting."""
        self._held[held.request_id] = self._waiting[held.request_id] = held

    @property
    def over(self) -> list[Held]:
        """Those that need no further token."""
        return [held for held in self if held.over]

    def clear(self) -> None:
        """Strike all out."""
        self._held.clear()
        self._waiting.clear()
        self._running.clear()

    def remove(self, held: Held) -> None:
        """Strike a request out."""
        self._held.pop(held.request_id, None)
        self._waiting.pop(held.request_id, None)
        self._running.pop(held.key, None)

    def admit(self) -> list[Held]:
        """Those that may start now, each with a fresh key; they count as running from here on."""
        admitted = self._admissible()
        for held in admitted:
            self._runs += 1
            held.begin(f"{held.request_id}#{self._runs}")
            del self._waiting[held.request_id]
            self._running[held.key] = held
        return admitted

    def fail_running(self) -> list[Held]:
        """Note that the loop broke: all that ran wait again, before the others. Returns the one found guilty."""
        guilty = [held for held in self._running.values() if held.suspect]  # a suspect ran alone
        for held in self._running.values():
            held.failures += 1
        self.restart_running()
        for held in guilty:
            self.remove(held)
        return guilty

    def restart_running(self) -> None:
        """Let all that run wait again, before the others: their loop is gone, by no fault of theirs."""
        self._waiting = {held.request_id: held for held in self._running.values()} | self._waiting
        self._running.clear()

    def _admissible(self) -> list[Held]:
        suspect = next((held for held in self._waiting.values() if held.suspect), None)
        if suspect is not None:
            return [] if self._running else [suspect]
        if any(held.suspect for held in self._running.values()):
            return []
        return list(self._waiting.values())
