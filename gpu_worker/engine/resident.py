"""Keeps a generation loop alive and running what the book admits.

Not thread-safe: `TransformersEngine` holds its lock around every call.
"""

import logging
import math
import queue
import time
from typing import Any

import msgspec
import torch

from gpu_worker.engine.base import Capacity, Memory
from gpu_worker.engine.book import Book, Held
from gpu_worker.engine.cache_meter import CacheMeter
from gpu_worker.engine.continuous import GenerationLoop, LoopOptions
from gpu_worker.engine.errors import EngineDeadError, NoRoomError
from gpu_worker.engine.memory import MIB, rss_mib
from gpu_worker.engine.offload import Weights, device_memory, free_cache, room_for_cache
from gpu_worker.engine.sampling import PerRequestSampling

_log = logging.getLogger(__name__)

_LINGER_S = 60.0  # a change of loop costs the capture of the graphs, which takes seconds


class ResidentLoop:
    """A model with a loop that comes back when it broke, as often as the process can."""

    def __init__(self, model: Any, options: LoopOptions, inbox: "queue.Queue[Any]") -> None:
        self.sampling = PerRequestSampling()
        self.meter = CacheMeter()
        self.error = ""  # what broke the loop last
        self._model: Any = model
        self._options = options
        self._inbox = inbox
        self._book = Book()
        self._weights = Weights(model)
        self._asleep = False
        self._smaller: LoopOptions | None = None  # sizes that were good, while greater ones are tried
        self._changing = False  # the loop was stopped to be replaced by one of the other kind
        self._needed_eager_s = -math.inf
        self._loop = GenerationLoop(model, options, self.sampling, inbox, self.meter)

    @property
    def capacity(self) -> Capacity:
        """As the loop is now: it has fewer slots after the GPU's memory ran out."""
        context = self._model.config.get_text_config().max_position_embeddings
        kv_tokens = self._loop.kv_tokens
        return Capacity(slots=self._loop.slots, kv_tokens=kv_tokens, context_tokens=min(context, kv_tokens))

    @property
    def broken(self) -> bool:
        """Whether `recover` must be called for anything to go on."""
        return not self._asleep and not self._loop.alive

    @property
    def halted(self) -> bool:
        """Whether no loop runs, for whatever reason; what one says at its end is no failure of a request."""
        return not self._loop.alive

    @property
    def held(self) -> int:
        """Requests in hand."""
        return len(self._book)

    @property
    def running(self) -> int:
        """Those of them with a place in the KV cache."""
        return min(self.held, self._loop.active)

    @property
    def kv_tokens_used(self) -> int:
        """Room in the KV cache that requests hold."""
        return round(self.meter.used_share * self._loop.kv_tokens)

    def find(self, request_id: str) -> Held | None:
        """The request in hand of this id."""
        return self._book.find(request_id)

    def find_run(self, key: str) -> Held | None:
        """The request in hand whose present run has this key."""
        return self._book.running(key)

    def over(self) -> list[Held]:
        """Those in hand that need no further token."""
        return [held for held in self._book if held.over]

    def tokens(self, held: Held) -> tuple[int, ...]:
        """All tokens of a request so far."""
        return held.note(self._loop.tokens(held.key))

    def add(self, held: Held) -> None:
        """Run a request as soon as the book allows."""
        if not self._suits(held):
            self._stop_to_change()
        if held.sampling.in_python:
            self._needed_eager_s = time.monotonic()
        self._book.add(held)
        self._admit()

    def drop(self, held: Held) -> None:
        """Be rid of a request, wherever it is."""
        self._book.remove(held)
        if held.key and self._loop.alive:
            self._loop.cancel(held.key)
        self._admit()

    def stop(self) -> None:
        """End a broken loop, so that its last outputs are in the inbox."""
        self._loop.stop()

    def recover(self) -> list[Held]:
        """Replace the stopped loop and go on; return what is given up, each request guilty of having broken it.

        Raises:
            EngineDeadError: no new loop can be made, as after an error that poisons the CUDA context.
        """
        if self._changing:
            self._changing = False
            self._book.restart_running()
            self._start_anew()
            self._admit()
            return []
        self.error = str(self._loop.error)
        _log.warning("the generation loop broke with %d requests in hand; starting anew", self.held)
        if isinstance(self._loop.error, torch.OutOfMemoryError):
            fewer = max(1, self._loop.slots // 2)
            self._options = msgspec.structs.replace(self._options, max_requests=fewer)
        guilty = self._book.fail_running()
        self._start_anew()
        self._admit()
        return guilty

    def resize(self, *, slots: int, kv_tokens: int) -> None:
        """Stop the loop; `recover` makes one of these sizes, or of the old ones where that cannot be, with an `error`.

        Raises:
            NoRoomError: the sizes cannot do; the loop goes on as it was.
        """
        if self._asleep:
            raise NoRoomError("the engine sleeps; wake it first")
        wanted = self._options.resized(slots=slots, kv_tokens=kv_tokens)
        if kv_tokens:
            self._require_room(kv_tokens)
        self.error = ""
        self._stop_to_change()
        self._smaller, self._options = self._options, wanted

    def sleep(self) -> None:
        """Stop the loop, which frees its cache, and offload the weights. What is in hand waits for `wake`."""
        if self._asleep:
            return
        self._stop_to_change()
        self._changing = False
        self._asleep = True
        self._weights.offload()

    def wake(self) -> None:
        """Restore the weights and go on.

        Raises:
            NoRoomError: they do not fit any more; it sleeps on.
        """
        if not self._asleep:
            return
        try:
            self._weights.restore()
            self._book.restart_running()
            self._start_anew()
        except (RuntimeError, EngineDeadError) as error:
            self._weights.offload()
            raise NoRoomError(f"cannot wake: {error}") from error
        self._asleep = False
        self._admit()

    def memory(self) -> Memory:
        """What weights and cache occupy, and the device's numbers."""
        device = self._weights.device
        return Memory(
            device=device,
            rss_mib=rss_mib(),
            weights_mib=self._weights.mib,
            kv_cache_mib=round(self._loop.kv_bytes / MIB, 1),
            **device_memory(device),
        )

    def close(self) -> None:
        """End the loop's thread and free cache and model."""
        self._book = Book()
        self._loop.stop()
        self._asleep = False
        self._model = None
        self._weights.forget()
        free_cache()

    def _require_room(self, kv_tokens: int) -> None:
        needed = max((held.most_tokens for held in self._book), default=0)
        if kv_tokens < needed:
            raise NoRoomError(f"kv_tokens={kv_tokens} is too few: a request in hand may need {needed}")
        wanted_bytes = self._loop.kv_bytes * kv_tokens // self._loop.kv_tokens
        room_bytes = self._loop.kv_bytes + room_for_cache(self._weights.device)
        if wanted_bytes > room_bytes:
            most = self._loop.kv_tokens * room_bytes // self._loop.kv_bytes
            raise NoRoomError(
                f"kv_tokens={kv_tokens} needs {wanted_bytes / MIB:,.0f} MiB; the memory has room for {most} tokens"
            )

    def _suits(self, held: Held) -> bool:
        """Whether the loop can run a request, and is not slower for it than it need be.

        Penalties and log probabilities are Python in every step, which CUDA graphs leave out: they need a loop without.
        That one is left again when a request without such wishes finds it idle, and it has not been needed for a while.
        """
        if not self._loop.alive or self.sampling.eager == held.sampling.in_python:
            return True
        if held.sampling.in_python:
            return False
        return self._options.graphs or self.held > 0 or time.monotonic() < self._needed_eager_s + _LINGER_S

    def _stop_to_change(self) -> None:
        """Stop the loop; `recover` makes one of the kind that the requests in hand need."""
        for held in self._book:
            self.tokens(held)  # brings its progress up to date
        self._changing = True
        self._loop.stop()

    def _start_anew(self) -> None:
        graphs = not any(held.sampling.in_python for held in self._book)
        self._options = msgspec.structs.replace(self._options, graphs=graphs)
        fallback, self._smaller = self._smaller, None
        try:
            self._loop = GenerationLoop(self._model, self._options, self.sampling, self._inbox, self.meter)
        except Exception as error:
            if fallback is None:
                raise EngineDeadError(f"generation cannot be started again: {error}") from error
            self.error, self._options = str(error), fallback
            self._start_anew()

    def _admit(self) -> None:
        if not self._loop.alive:
            return  # `recover` or `wake` admits
        for held in self._book.admit():
            self._loop.add(
                held.key,
                (*held.prompt_ids, *held.before),
                max_new_tokens=held.request.params.max_tokens - len(held.before),
                ends=held.ending.tokens,
                sampling=held.sampling,
                streaming=held.ending.needs_text,
            )
