"""A base for engines of others: everything that the protocol asks for, but the tokens.

Whoever has a model gives three things: prompts to tokens, tokens to text, and the next token of each running request.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from broker.errors import InvalidRequestError
from broker.messages import Request
from gpu_worker.engine.base import Capacity, Completion, Load, Memory, Traits
from gpu_worker.engine.completions import Ending, completion_of, failure, settled_text
from gpu_worker.engine.errors import NoRoomError, require_fit
from gpu_worker.engine.memory import rss_mib
from gpu_worker.engine.prompts import truncated
from gpu_worker.engine.refusal import refuse
from gpu_worker.engine.settled import SettledText


@dataclass(slots=True, kw_only=True, eq=False)
class Row:
    """One request in hand: its prompt, and its tokens so far."""

    request_id: str
    request: Request
    prompt_ids: tuple[int, ...]
    tokens: list[int]
    ending: Ending
    settled: SettledText | None
    begun: bool = False

    @property
    def most_tokens(self) -> int:
        """What it may come to occupy."""
        return len(self.prompt_ids) + self.request.params.max_tokens


class StepwiseEngine(ABC):
    """Fulfils `Engine`; a step gives one token to each running request. What it holds has all its tokens in memory.

    `ends` are the model's own end tokens. What is in `traits.refuses` is refused before the other methods see it.
    """

    traits = Traits()
    ends: tuple[int, ...] = ()

    def __init__(self, *, slots: int, context_tokens: int) -> None:
        self._context_tokens = context_tokens
        self._capacity = Capacity(slots=slots, kv_tokens=slots * context_tokens, context_tokens=context_tokens)
        self._changed = threading.Condition(threading.RLock())
        self._waiting: dict[str, Row] = {}
        self._running: dict[str, Row] = {}
        self._done: list[Completion] = []
        self._asleep = self._closed = False
        self._steps = self._tokens = self._prompt_tokens = 0

    @abstractmethod
    def prompt_ids(self, request: Request) -> tuple[int, ...]:
        """The prompt's tokens. Raise InvalidRequestError for one that cannot be read."""

    @abstractmethod
    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens; U+FFFD at its end for the beginning of a character."""

    @abstractmethod
    def next_tokens(self, rows: Sequence[Row]) -> Sequence[int]:
        """The next token of each row, which are those that run now; called from the one thread that steps."""

    @property
    def capacity(self) -> Capacity:
        """As made, or as `resize` has changed it."""
        return self._capacity

    @property
    def load(self) -> Load:
        """What the engine holds now."""
        with self._changed:
            used = sum(len(row.prompt_ids) + len(row.tokens) for row in self._running.values())
            return Load(
                running=len(self._running),
                waiting=len(self._waiting),
                steps=self._steps,
                generated_tokens=self._tokens,
                kv_tokens_used=used,
                prompt_tokens=self._prompt_tokens,
            )

    def warm_up(self) -> None:  # noqa: B027 - most need none
        """Nothing; generate once where that helps."""

    def submit(self, request_id: str, request: Request, *, generated: tuple[int, ...] = ()) -> None:
        """Take a request; see `Engine.submit`."""
        with self._changed:
            try:
                row = self._row(request_id, request, generated)
            except InvalidRequestError as error:
                self._done.append(failure(request_id, error.code, str(error)))
            else:
                if request_id not in self._running and not self._closed:
                    self._waiting.setdefault(request_id, row)
            self._changed.notify_all()

    def step(self, timeout_s: float) -> list[Completion]:
        """Give each running request a token, or wait for one to come; see `Engine.step`."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._start_waiting()
            while not (self._done or self._running or self._closed) and (left_s := deadline - time.monotonic()) > 0:
                self._changed.wait(left_s)
                self._start_waiting()
            self._finish()
            rows = list(self._running.values())
        # Without the lock: heartbeats read the load while the model works, or hangs.
        tokens = self.next_tokens(rows) if rows else ()
        with self._changed:
            self._advance(rows, tokens)
            self._finish()
            done, self._done = self._done, []
            return done

    def cancel(self, request_id: str) -> Completion | None:
        """Drop a request; see `Engine.cancel`."""
        with self._changed:
            row = self._waiting.pop(request_id, None) or self._running.pop(request_id, None)
            return self._completion(row) if row is not None else None

    def generated(self, request_id: str) -> tuple[int, ...]:
        """The tokens a request has so far; see `Engine.generated`."""
        with self._changed:
            row = self._find(request_id)
            return tuple(row.tokens) if row is not None else ()

    def text(self, request_id: str) -> str:
        """The text so far of a request that streams; see `Engine.text`."""
        with self._changed:
            row = self._find(request_id)
            return row.settled.push(row.tokens) if row is not None and row.settled is not None else ""

    def not_begun(self) -> tuple[str, ...]:
        """Requests that have never run here; see `Engine.not_begun`."""
        with self._changed:
            return tuple(row.request_id for row in self._waiting.values() if not row.begun)

    def resize(self, *, slots: int = 0, kv_tokens: int = 0) -> None:
        """Change how much runs at once; see `Engine.resize`."""
        with self._changed:
            needed = max((row.most_tokens for row in (*self._running.values(), *self._waiting.values())), default=0)
            if 0 < kv_tokens < needed:
                raise NoRoomError(f"kv_tokens={kv_tokens} is too few: a request in hand may need {needed}")
            kv_tokens = kv_tokens or self._capacity.kv_tokens
            context = min(self._context_tokens, kv_tokens)
            slots = slots or self._capacity.slots
            self._capacity = Capacity(slots=slots, kv_tokens=kv_tokens, context_tokens=context)
            self._hold_back()

    def sleep(self) -> None:
        """Make no step until `wake`; free what can be freed where this is overridden."""
        with self._changed:
            self._asleep = True
            self._hold_back()

    def wake(self) -> None:
        """Go on."""
        with self._changed:
            self._asleep = False
            self._changed.notify_all()

    def memory(self) -> Memory:
        """That of the process."""
        return Memory(device="cpu", rss_mib=rss_mib())

    def close(self) -> None:
        """Forget everything; a waiting `step` returns."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._running.clear()
            self._changed.notify_all()

    def _row(self, request_id: str, request: Request, generated: tuple[int, ...]) -> Row:
        refuse(request, self.traits.refuses, f"the engine {type(self).__name__}")
        prompt_ids = truncated(self.prompt_ids(request), request)
        require_fit(len(prompt_ids), request.params.max_tokens, self._capacity.context_tokens)
        ending = Ending(request.params, self.ends, self.decode)
        return Row(
            request_id=request_id,
            request=request,
            prompt_ids=prompt_ids,
            tokens=list(generated),
            ending=ending,
            settled=settled_text(request, prompt_ids, ending, self.decode),
        )

    def _find(self, request_id: str) -> Row | None:
        return self._running.get(request_id) or self._waiting.get(request_id)

    def _hold_back(self) -> None:
        self._waiting = self._running | self._waiting
        self._running = {}

    def _start_waiting(self) -> None:
        free = self._capacity.kv_tokens - sum(row.most_tokens for row in self._running.values())
        for row in list(self._waiting.values()):
            free -= row.most_tokens
            if free < 0 or self._asleep or len(self._running) >= self._capacity.slots:
                return
            self._running[row.request_id] = self._waiting.pop(row.request_id)
            row.begun = True
            self._prompt_tokens += len(row.prompt_ids) + len(row.tokens)

    def _advance(self, rows: Sequence[Row], tokens: Sequence[int]) -> None:
        self._steps += bool(rows)
        for row, token in zip(rows, tokens, strict=True):
            if self._running.get(row.request_id) is row:  # else it was cancelled or held back meanwhile
                row.tokens.append(token)
                self._tokens += 1

    def _finish(self) -> None:
        for row in [row for row in self._running.values() if row.ending.reached(row.tokens)]:
            del self._running[row.request_id]
            self._done.append(self._completion(row))

    def _completion(self, row: Row) -> Completion:
        return completion_of(
            row.request_id,
            row.request,
            prompt_ids=row.prompt_ids,
            tokens=tuple(row.tokens),
            ending=row.ending,
            decode=self.decode,
            settled=row.settled,
        )
