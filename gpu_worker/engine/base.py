"""What generates inside a worker: the protocol that every engine fulfils.

Any thread may `submit`, `cancel` and read `load`; one thread alone calls `step`, which does a unit of work and
returns what has finished. A request that cannot run is a completion with an error, never an exception.
"""

from typing import Protocol

import msgspec

from broker.commands import Memory
from broker.messages import Choice, FinishReason, OutputError, Request, TokenLogprob, Usage
from gpu_worker.engine.choices import join_tokens


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine can hold at once."""

    slots: int  # requests decoding together
    kv_tokens: int  # prompt and generated tokens of all requests together
    context_tokens: int  # prompt and generated tokens of one request
    prefill_tokens_per_s: float = 0.0  # prompt tokens read; measured at the start, 0 while unknown
    decode_tokens_per_s: float = 0.0  # tokens generated for a full batch


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine holds now and has done since it started; steps and tokens done only grow."""

    running: int
    waiting: int
    steps: int
    generated_tokens: int
    kv_tokens_used: int = 0  # held now by requests, in the measure of `Capacity.kv_tokens`
    prompt_tokens: int = 0  # taken to be read, again each time that a request starts anew
    cached_prompt_tokens: int = 0  # of them, those that were in the cache already


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine declares of itself. What it `refuses` ends a request with the error `unsupported_parameter`."""

    refuses: frozenset[str] = frozenset()  # fields of SamplingParams; forms of a prompt (`input_ids`, …)
    token_ids: bool = True  # whether completions have them; without, an interrupted request begins again


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """One request's end: its text, or an error with `finish_reason` "error".

    `choices` are the texts of a request for several; the first of them is in the completion's own fields, too.
    """

    request_id: str
    text: str = ""
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason
    usage: Usage = Usage()
    error: OutputError | None = None
    input_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    choices: tuple[Choice, ...] = ()

    @property
    def checkpoint(self) -> tuple[int, ...]:
        """What an interrupted request goes on from, as `Engine.submit` takes it."""
        return join_tokens(choice.token_ids for choice in self.choices) if self.choices else self.token_ids


class Engine(Protocol):
    """Generates for many requests together; requests join and leave between steps."""

    @property
    def traits(self) -> Traits:
        """What the engine does not do."""
        ...

    @property
    def capacity(self) -> Capacity:
        """What the engine can hold at once."""
        ...

    @property
    def load(self) -> Load:
        """What the engine holds now."""
        ...

    def warm_up(self) -> None:
        """Generate once, so that the first request meets no cold start. Called once, before any `submit`."""
        ...

    def submit(self, request_id: str, request: Request, *, generated: tuple[int, ...] = ()) -> None:
        """Take a request; its completion comes from a later `step`. One already in hand is left as it is.

        `generated` are tokens that an interrupted run of the same request has already produced: generation goes
        on behind them, and the completion counts and returns them as its own.
        """
        ...

    def step(self, timeout_s: float) -> list[Completion]:
        """Work until something has finished, or for about `timeout_s` seconds; return what has finished.

        Raises:
            EngineDeadError: the process must end; what the engine held is lost to it, not to the ledger.
        """
        ...

    def cancel(self, request_id: str) -> Completion | None:
        """Drop a request and free its place; no completion of it comes from `step` any more.

        Returns a completion of what it had so far; None when it is unknown, or has ended already.
        """
        ...

    def generated(self, request_id: str) -> tuple[int, ...]:
        """The tokens a request has so far, as `submit` takes them again; empty for one that is unknown."""
        ...

    def text(self, request_id: str) -> str:
        """The text so far of a request with `stream`, as far as it can no longer change; "" for any other.

        Always a beginning of its completion's text, and of the one that another run of the same request gives when
        it goes on behind any of its tokens.
        """
        ...

    def not_begun(self) -> tuple[str, ...]:
        """Requests that still wait for their first step here, in the order in which they will begin.

        Those that are under suspicion of breaking the engine are left out. At once, whatever else goes on.
        """
        ...

    def resize(self, *, slots: int = 0, kv_tokens: int = 0) -> None:
        """Change what the engine can hold; 0 leaves a size as it is. What is in hand stays in hand, with its tokens.

        Raises:
            NoRoomError: it does not fit into the memory, or a request in hand does not fit into it. Nothing changed.
        """
        ...

    def sleep(self) -> None:
        """Free the GPU's memory: the weights go to the CPU's, the KV cache ends. Safe to call twice.

        What is in hand stays, and makes no step until `wake`.
        """
        ...

    def wake(self) -> None:
        """Undo `sleep`; what is in hand goes on. Safe to call twice.

        Raises:
            NoRoomError: the memory is taken meanwhile. The engine still sleeps.
        """
        ...

    def memory(self) -> Memory:
        """What the engine occupies now; at once, whatever else goes on."""
        ...

    def close(self) -> None:
        """Stop all work and free the memory. Safe to call twice."""
        ...
