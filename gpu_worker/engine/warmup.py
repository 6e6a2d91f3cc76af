"""An engine before its first request: whether it generates, how fast it reads and writes, how much it can hold.

Trials double until the time is up or the engine is full. Memory that runs out in one is the engine's affair: it shrinks
its slots, as it does later, and its capacity then says what is safe.
"""

import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from broker.messages import OutputError, Request, SamplingParams
from gpu_worker.engine.base import Capacity, Completion

_WARM_UP = "warm-up"
_TRIAL = "warm-up/"
_FIRST_PROMPT = 64
_MOST_PROMPT = 4096
_NEW_TOKENS = 8


class Speeds(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens per second; 0 where there was no time to measure."""

    prefill: float = 0.0
    decode_alone: float = 0.0
    decode: float = 0.0  # of the largest batch that was tried
    rows: int = 0  # of that batch


class Measurable(Protocol):
    """What is needed of an engine."""

    @property
    def capacity(self) -> Capacity:
        """See `Engine.capacity`."""
        ...

    def submit(self, request_id: str, request: Request) -> None:
        """See `Engine.submit`."""
        ...

    def step(self, timeout_s: float) -> list[Completion]:
        """See `Engine.step`."""
        ...


def first_tokens(engine: Measurable) -> OutputError | None:
    """Generate a few tokens, greedily and by sampling; returns what went wrong."""
    for temperature in (0.0, 1.0):
        params = SamplingParams(max_tokens=4, temperature=temperature, top_p=0.9)
        engine.submit(_WARM_UP, Request(params=params, input_ids=(0,)))
        done: list[Completion] = []
        while not done:
            done = engine.step(1.0)
        if done[0].error is not None:
            return done[0].error
    return None


def measure(
    engine: Measurable,
    *,
    vocabulary: int,
    step_tokens: int,
    budget_s: float,
    now_s: Callable[[], float] = time.monotonic,
) -> Speeds:
    """Try the engine, which has nothing else to do, for about `budget_s` seconds; at least one trial of each kind."""
    trials = _Trials(engine, vocabulary, now_s)
    end_s = now_s() + budget_s
    prefill = _prefill(trials, end_s - budget_s / 2)
    rows, took_s = 1, trials.run(1, 1, _NEW_TOKENS)
    alone = decode = _rate(_NEW_TOKENS, took_s)
    while 2 * rows <= engine.capacity.slots and now_s() + 2 * took_s < end_s:
        rows *= 2
        took_s = trials.run(rows, 1, _NEW_TOKENS)
        decode = _rate(rows * _NEW_TOKENS, took_s)
    # The largest step of all, in which memory is most likely to run out; shared prefixes would make it smaller.
    slots = engine.capacity.slots
    share = max(1, step_tokens // slots)
    if prefill and now_s() + slots * share / prefill + took_s < end_s:
        trials.run(slots, share, 2)
    return Speeds(prefill=prefill, decode_alone=alone, decode=decode, rows=rows)


def _prefill(trials: "_Trials", end_s: float) -> float:
    tokens = min(_FIRST_PROMPT, trials.longest)
    took_s = trials.run(1, tokens, 1)
    while 2 * tokens <= min(_MOST_PROMPT, trials.longest) and trials.now_s() + 2 * took_s < end_s:
        tokens *= 2
        took_s = trials.run(1, tokens, 1)
    return _rate(tokens, took_s)


class _Trials:
    def __init__(self, engine: Measurable, vocabulary: int, now_s: Callable[[], float]) -> None:
        self.now_s = now_s
        self.longest = engine.capacity.context_tokens - _NEW_TOKENS
        self._engine = engine
        self._vocabulary = vocabulary
        self._seed = 0

    def run(self, rows: int, prompt_tokens: int, new_tokens: int) -> float:
        """Run so many requests together; returns the seconds that they took."""
        start_s = self.now_s()
        params = SamplingParams(max_tokens=new_tokens, temperature=0.0, ignore_eos=True)
        for row in range(rows):
            self._engine.submit(f"{_TRIAL}{row}", Request(params=params, input_ids=self._prompt(prompt_tokens)))
        left = rows
        while left > 0:
            left -= len(self._engine.step(1.0))
        return self.now_s() - start_s

    def _prompt(self, tokens: int) -> tuple[int, ...]:
        # Each its own: what the cache knows already is not read again.
        self._seed += 1
        return tuple((self._seed * 7919 + place * 31) % self._vocabulary for place in range(tokens))


def _rate(tokens: int, seconds: float) -> float:
    return round(tokens / seconds, 1) if seconds > 0 else 0.0
