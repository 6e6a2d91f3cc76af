"""A base for engines of others: everything that the protocol asks for, but the tokens.

Whoever has a model gives three things: prompts to tokens, tokens to text, and the next token of each running request.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from broker.commands import Memory
from broker.errors import InvalidRequestError
from broker.messages import Request
from gpu_worker.engine.base import Capacity, Completion, Load, Traits
from gpu_worker.engine.completions import failure
from gpu_worker.engine.errors import require_fit
from gpu_worker.engine.memory import rss_mib
from gpu_worker.engine.prompts import truncated
from gpu_worker.engine.refusal import refuse
from gpu_worker.engine.run_queue import RunQueue
from gpu_worker.engine.stepwise_row import Row


class StepwiseEngine(ABC):
    """Fulfils `Engine`; a step gives one token to each running request. What it holds has all its tokens in memory.

    `ends` are the model's own end tokens. What is in `traits.refuses` is refused before the other methods see it.
    """

    traits = Traits()
    ends: tuple[int, ...] = ()

    def __init__(self, *, slots: int, context_tokens: int) -> None:
        self._queue = RunQueue[Row](slots=slots, kv_tokens=slots * context_tokens, context_tokens=context_tokens)

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
        return self._queue.capacity

    @property
    def load(self) -> Load:
        """What the engine holds now."""
        return self._queue.load

    def warm_up(self) -> None:  # noqa: B027 - most need none
        """Nothing; generate once where that helps."""

    def submit(self, request_id: str, request: Request, *, generated: tuple[int, ...] = ()) -> None:
        """Take a request; see `Engine.submit`."""
        with self._queue.changed:
            try:
                row = self._row(request_id, request, generated)
            except InvalidRequestError as error:
                self._queue.finish(failure(request_id, error.code, str(error)))
            else:
                self._queue.add(row)

    def step(self, timeout_s: float) -> list[Completion]:
        """Give each running request a token, or wait for one to come; see `Engine.step`."""
        queue, deadline = self._queue, time.monotonic() + timeout_s
        with queue.changed:
            queue.start()
            while (
                not (queue.has_ended or queue.running or queue.closed) and (left_s := deadline - time.monotonic()) > 0
            ):
                queue.changed.wait(left_s)
                queue.start()
            self._finish()
            rows = queue.running
        # Without the lock: heartbeats read the load while the model works, or hangs.
        tokens = self.next_tokens(rows) if rows else ()
        with queue.changed:
            self._advance(rows, tokens)
            self._finish()
            return queue.take()

    def cancel(self, request_id: str) -> Completion | None:
        """Drop a request; see `Engine.cancel`."""
        row = self._queue.drop(request_id)
        return row.completion() if row is not None else None

    def generated(self, request_id: str) -> tuple[int, ...]:
        """The tokens a request has so far; see `Engine.generated`."""
        row = self._queue.find(request_id)
        return tuple(row.tokens) if row is not None else ()

    def text(self, request_id: str) -> str:
        """The text so far of a request that streams; see `Engine.text`."""
        return self._queue.settled(request_id)

    def not_begun(self) -> tuple[str, ...]:
        """Requests that have never run here; see `Engine.not_begun`."""
        return self._queue.not_begun

    def resize(self, *, slots: int = 0, kv_tokens: int = 0) -> None:
        """Change how much runs at once; see `Engine.resize`."""
        with self._queue.changed:
            self._queue.resize(slots=slots, kv_tokens=kv_tokens)
            self._queue.hold_back(self._queue.running)

    def sleep(self) -> None:
        """Make no step until `wake`; free what can be freed where this is overridden."""
        self._queue.pause()

    def wake(self) -> None:
        """Go on."""
        self._queue.resume()

    def memory(self) -> Memory:
        """That of the process."""
        return Memory(device="cpu", rss_mib=rss_mib())

    def close(self) -> None:
        """Forget everything; a waiting `step` returns."""
        self._queue.close()

    def _row(self, request_id: str, request: Request, generated: tuple[int, ...]) -> Row:
        refuse(request, self.traits.refuses, f"the engine {type(self).__name__}")
        prompt_ids = truncated(self.prompt_ids(request), request)
        require_fit(len(prompt_ids), request.params.max_tokens, self.capacity.context_tokens)
        return Row(
            request_id=request_id,
            request=request,
            prompt_ids=prompt_ids,
            tokens=list(generated),
            ends=self.ends,
            decode=self.decode,
        )

    def _advance(self, rows: Sequence[Row], tokens: Sequence[int]) -> None:
        if not rows:
            return
        given = 0
        for row, token in zip(rows, tokens, strict=True):
            if self._queue.runs(row):  # else it was cancelled or held back meanwhile
                row.tokens.append(token)
                given += 1
        self._queue.stepped(given)

    def _finish(self) -> None:
        for row in self._queue.running:
            if row.over:
                self._queue.end(row, row.completion())
