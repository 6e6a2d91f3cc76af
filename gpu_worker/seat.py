"""Where the worker's engine sits, with the loop that steps it: it can be worked on, and another can take its place."""

import contextlib
import gc
import time
from collections.abc import Callable, Generator

import msgspec

from gpu_worker.engine.base import Capacity, Engine, Load
from gpu_worker.engine_loop import EngineLoop

_COUNTERS = ("steps", "generated_tokens", "prompt_tokens", "cached_prompt_tokens")


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine says of itself at one moment."""

    capacity: Capacity
    load: Load


class Seat:
    """Any thread may look; one at a time may change what sits here, when no batch is in hand."""

    def __init__(self, checkpoint_tokens: int, on_death: Callable[[BaseException], None]) -> None:
        self._checkpoint_tokens = checkpoint_tokens
        self._on_death = on_death
        self._engine: Engine | None = None
        self._loop: EngineLoop | None = None
        self._held: View | None = None  # what was last known of an engine that is being worked on
        self._before = Load(running=0, waiting=0, steps=0, generated_tokens=0)  # done by engines that sat here
        self._stepped = (0, 0.0)  # the last number of steps, and since when that is known

    @property
    def engine(self) -> Engine | None:
        """The engine; None while there is none, or it is being worked on and would answer late."""
        return self._engine if self._held is None else None

    @property
    def loop(self) -> EngineLoop | None:
        """The loop to give work to; None while there is no engine."""
        return self._loop

    def put(self, engine: Engine) -> None:
        """Let a warm engine work here."""
        self._loop = EngineLoop(engine, self._checkpoint_tokens, self._on_death)
        self._loop.start()
        self._engine = engine
        self._held = None

    def view(self) -> View | None:
        """Capacity, load, and what all engines here have done together; None before the first engine."""
        if (engine := self.engine) is None:
            return self._held
        load = engine.load
        sums = {name: getattr(load, name) + getattr(self._before, name) for name in _COUNTERS}
        view = View(capacity=engine.capacity, load=msgspec.structs.replace(load, **sums))
        if view.load.steps != self._stepped[0]:
            self._stepped = (view.load.steps, time.monotonic())
        return view

    @property
    def last_step_s(self) -> float | None:
        """Seconds since the engine's last step, as far as `view` has seen it; None before the first."""
        return time.monotonic() - self._stepped[1] if self._stepped[0] else None

    @contextlib.contextmanager
    def hold(self) -> Generator[Engine]:
        """Work on the engine: meanwhile nobody else asks it anything, and `view` is as it was."""
        engine, self._held = self._engine, self.view()
        assert engine is not None, "there is an engine to work on"
        try:
            yield engine
        finally:
            self._held = None

    def clear(self, timeout_s: float) -> bool:
        """Let the engine go, and its memory. False when its loop does not end, as on a wedged GPU."""
        loop, view = self._loop, self.view()
        if loop is None or view is None:
            return True
        idle = msgspec.structs.replace(view.load, running=0, waiting=0, kv_tokens_used=0)
        self._held, self._before = View(capacity=view.capacity, load=idle), idle
        if not loop.stop(timeout_s):
            return False
        self._loop = self._engine = loop = None
        gc.collect()  # an engine is full of circles, and the next one needs its memory
        return True
