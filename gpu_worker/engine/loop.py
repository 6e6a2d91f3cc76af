"""What the default engine needs of a generation loop, of which there are two kinds."""

from typing import Protocol

import msgspec

from gpu_worker.engine.rows import RowSampling


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A request as a loop runs it, under a key of this run alone."""

    key: str
    token_ids: tuple[int, ...]
    max_new_tokens: int
    ends: frozenset[int]  # its end tokens
    sampling: RowSampling
    streaming: bool  # an output after every token, else at the end only


class Loop(Protocol):
    """A started loop over a resident model. It says what became of a request in the library's `GenerationOutput`."""

    slots: int
    step_tokens: int
    kv_tokens: int
    error: Exception | None  # what ended it; known once it is stopped

    @property
    def alive(self) -> bool:
        """Whether it still takes requests; False from the first moment of its end."""
        ...

    @property
    def active(self) -> int:
        """Requests with a place in the KV cache."""
        ...

    @property
    def kv_bytes(self) -> int:
        """What the KV cache occupies now."""
        ...

    @property
    def token_bytes(self) -> float:
        """What one token of the KV cache occupies."""
        ...

    def limit(self, *, slots: int, step_tokens: int) -> None:
        """Hold no more than this in a step from the next one on; what it was made for is the most."""
        ...

    def add(self, run: Run) -> None:
        """Queue a request."""
        ...

    def cancel(self, key: str) -> None:
        """Drop a request before the next step; an output that is already on its way may still come."""
        ...

    def tokens(self, key: str) -> tuple[int, ...]:
        """What it has generated for a request so far; empty for one that it does not hold."""
        ...

    def has_begun(self, key: str) -> bool:
        """Whether a request has a place in the KV cache, or has had one."""
        ...

    def stop(self) -> None:
        """End its thread after the step it is in, and free the KV cache. Safe to call twice."""
        ...
