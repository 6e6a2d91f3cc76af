"""Keeps a generation loop alive and running what the book admits.

Not thread-safe: `TransformersEngine` holds its lock around every call.
"""

import logging
import queue
from typing import Any

from broker.commands import Memory
from gpu_worker.engine.base import Capacity, Load
from gpu_worker.engine.book import Book, Held
from gpu_worker.engine.breakage import Breakage, breakage_of
from gpu_worker.engine.cache_meter import CacheMeter
from gpu_worker.engine.continuous import GenerationLoop
from gpu_worker.engine.errors import ENGINE_ERROR, EngineDeadError, NoRoomError, require_kv_tokens
from gpu_worker.engine.graphs import Graphs
from gpu_worker.engine.limits import StepSize
from gpu_worker.engine.loop import Loop
from gpu_worker.engine.loop_options import LoopOptions
from gpu_worker.engine.occupancy import occupied, require_room
from gpu_worker.engine.offload import Weights, free_cache
from gpu_worker.engine.padded import PaddedLoop
from gpu_worker.engine.room import Room
from gpu_worker.engine.sampling import PerRequestSampling
from gpu_worker.engine.shortage import GivenUp, Shortage
from gpu_worker.engine.split import keeps_tokens_only

_log = logging.getLogger(__name__)


class ResidentLoop:
    """A model with a loop that comes back when it broke, as often as the process can. Its outputs go to `inbox`."""

    def __init__(self, model: Any, options: LoopOptions, book: Book, inbox: "queue.Queue[Any]") -> None:
        self._sampling = PerRequestSampling()
        self._meter = CacheMeter()
        self._model: Any = model
        self._book = book
        self._inbox = inbox
        self._graphs = Graphs(on=options.graphs)
        self._most_context: int = model.config.get_text_config().max_position_embeddings
        self._weights = Weights(model)
        self._asleep = False
        self._changing = False  # the loop was stopped to be replaced by one of the other kind
        self._room = Room(options, self._make_loop)
        self._shortage = Shortage(self._book, self._room, self._sampling)
        self._loop = self._room.make_loop(graphs=self._graphs.on)

    @property
    def model(self) -> Any:
        """The model; None once it is closed."""
        return self._model

    @property
    def capacity(self) -> Capacity:
        """As the loop is now: it has fewer slots after memory ran out."""
        limits, kv_tokens = self._room.limits, self._loop.kv_tokens
        slots = min(limits.slots.now, limits.step_tokens.now)
        return Capacity(slots=slots, kv_tokens=kv_tokens, context_tokens=min(self._most_context, kv_tokens))

    @property
    def step_tokens(self) -> int:
        """Prompt and new tokens that one step may hold."""
        return self._room.limits.step_tokens.now

    @property
    def context_tokens(self) -> int:
        """Of one request, while memory is not short."""
        return min(self._most_context, self._room.full_kv_tokens)

    @property
    def refused(self) -> str:
        """Why the sizes of the last `resize` could not be had; empty when they could."""
        return self._room.refused

    @property
    def broken(self) -> bool:
        """Whether `recover` must be called for anything to go on."""
        return not self._asleep and not self._loop.alive

    @property
    def halted(self) -> bool:
        """Whether no loop runs, for whatever reason; what one says at its end is no failure of a request."""
        return not self._loop.alive

    @property
    def load(self) -> Load:
        """What it holds, and what its loops have begun."""
        running = min(len(self._book), self._loop.active)
        return Load(
            running=running,
            waiting=len(self._book) - running,
            steps=self._sampling.steps,
            generated_tokens=self._sampling.tokens,
            kv_tokens_used=round(self._meter.used_share * self._loop.kv_tokens),
            prompt_tokens=self._meter.prompt_tokens,
            cached_prompt_tokens=self._meter.cached_prompt_tokens,
        )

    def not_begun(self) -> list[Held]:
        """Those in hand that wait for their first step, in their order; none that was there when a loop broke."""
        fresh = (held for held in self._book if not held.failures and held.progress == held.before)
        return [held for held in fresh if not self._loop.has_begun(held.key)]

    def tokens(self, held: Held) -> tuple[int, ...]:
        """All tokens of a request so far."""
        return held.note(self._loop.tokens(held.key))

    def add(self, held: Held) -> None:
        """Run a request as soon as the book allows."""
        if self._loop.alive and not self._graphs.suit(held.sampling, eager=self._sampling.eager, idle=not self._book):
            self._stop_to_change()
        self._graphs.note(held.sampling)
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

    def grow(self) -> None:
        """Use more of the memory again, after a time in which it was enough; called often."""
        if not self._loop.alive or not self._shortage.is_over(self.tokens):
            return
        if self._room.grow(self._loop, self._sampling.steps, idle=not self._book):
            self._stop_to_change()

    def pad(self) -> bool:
        """Stop the loop; `recover` makes one without paged cache. False where that cannot help."""
        if not keeps_tokens_only(self._model) or not self._room.pad():
            return False
        self._stop_to_change()
        return True

    def recover(self) -> list[GivenUp]:
        """Replace the stopped loop and go on; return what is given up.

        Raises:
            EngineDeadError: the device is lost, or no new loop can be made.
        """
        given_up: list[GivenUp] = []
        if self._changing:
            self._changing = False
            self._book.restart_running()
        else:
            given_up += self._judge(self._loop.error or RuntimeError("it ended by itself"))
        self._start_anew()
        given_up += self._shortage.without_room(self._loop)
        self._admit()
        return given_up

    def _judge(self, error: Exception) -> list[GivenUp]:
        """Find out what broke the loop, and who is to blame."""
        kind = breakage_of(error)
        if kind is Breakage.DEVICE:
            raise EngineDeadError(f"the device is lost: {error}") from error
        if kind is Breakage.MEMORY:
            return self._shortage.make_room(error, self._loop)
        _log.warning("the generation loop broke with %d requests in hand; starting anew", len(self._book))
        message = f"generation failed repeatedly, the last time alone: {error}"
        return [GivenUp(held=held, code=ENGINE_ERROR, message=message) for held in self._book.fail_running()]

    def resize(self, *, slots: int, kv_tokens: int) -> None:
        """Stop the loop; `recover` makes one of these sizes, or of the old ones where that cannot be, and `refused`.

        Raises:
            NoRoomError: the sizes cannot do; the loop goes on as it was.
        """
        if self._asleep:
            raise NoRoomError("the engine sleeps; wake it first")
        if kv_tokens:
            require_kv_tokens(kv_tokens, max((held.most_tokens for held in self._book), default=0))
            require_room(kv_tokens, self._weights, self._loop)
        self._stop_to_change()
        self._room.resize(slots=slots, kv_tokens=kv_tokens)

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
            if self._shortage.holds_too_large(self._loop):
                raise EngineDeadError("the KV cache has no room any more for a request in hand")
        except (RuntimeError, EngineDeadError) as error:
            self._loop.stop()
            self._weights.offload()
            raise NoRoomError(f"cannot wake: {error}") from error
        self._asleep = False
        self._admit()

    def memory(self) -> Memory:
        """What weights and cache occupy, and the device's numbers."""
        return occupied(self._weights, self._loop)

    def close(self) -> None:
        """End the loop's thread and free cache and model."""
        self._book.clear()
        self._loop.stop()
        self._asleep = False
        self._model = None
        self._weights.forget()
        free_cache()

    def _stop_to_change(self) -> None:
        """Stop the loop; `recover` makes one of the kind that the requests in hand need."""
        for held in self._book:
            self.tokens(held)  # brings its progress up to date
        self._changing = True
        self._loop.stop()

    def _start_anew(self) -> None:
        graphs = self._graphs.choose(held.sampling for held in self._book)
        self._loop = self._room.make_loop(graphs=graphs)

    def _make_loop(self, options: LoopOptions) -> Loop:
        self._sampling.last = StepSize()
        kind = PaddedLoop if options.padded else GenerationLoop
        return kind(self._model, options, self._sampling, self._inbox, self._meter)

    def _admit(self) -> None:
        if not self._loop.alive:
            return  # `recover` or `wake` admits
        for held in self._book.admit():
            self._loop.add(held.run)
