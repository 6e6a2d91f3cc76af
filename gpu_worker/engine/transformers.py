"""The default engine: a resident transformers model under continuous batching.

The loop runs in its own thread; `step` waits for its outputs, and brings it back when it broke. Everything else is
under one lock, so that `submit` and `cancel` may come from any thread.
"""

import logging
import queue
import threading
import time
from typing import Any

import msgspec
import torch

from broker.commands import Memory
from broker.errors import InvalidRequestError
from broker.messages import Request
from gpu_worker.engine.base import Capacity, Completion, Load, Traits
from gpu_worker.engine.book import Book
from gpu_worker.engine.completions import failure
from gpu_worker.engine.errors import ENGINE_ERROR, OUT_OF_MEMORY, EngineDeadError, NoRoomError
from gpu_worker.engine.intake import Intake
from gpu_worker.engine.loop_options import LoopOptions, default_options
from gpu_worker.engine.outputs import Outputs
from gpu_worker.engine.prompts import PromptReader
from gpu_worker.engine.resident import ResidentLoop
from gpu_worker.engine.shortage import no_room
from gpu_worker.engine.warmup import Speeds, first_tokens, measure

_log = logging.getLogger(__name__)

_BROKEN_CHECK_S = 0.5  # a request handed over at the very end of a loop gets no output
_LOOK_S = 0.1  # so long `load` waits for the lock


class TransformersEngine:
    """Generates with a loaded model and its tokenizer; see `loading.load_model`.

    `threads` sets torch's CPU threads, for the whole process. `warm_up` measures for `measure_s` seconds; 0: never.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        options: LoopOptions | None = None,
        threads: int | None = None,
        measure_s: float = 0.0,
    ) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self._vocabulary: int = model.get_input_embeddings().weight.shape[0]
        self._measure_s = measure_s
        self._speeds = Speeds()
        prompts = PromptReader(tokenizer, vocabulary=self._vocabulary)
        self._intake = Intake(model, prompts)
        self._lock = threading.RLock()
        self._closed = False
        self._book = Book()
        inbox = queue.Queue[Any]()
        self._resident = ResidentLoop(model, options or default_options(model), self._book, inbox)
        self._outputs = Outputs(inbox, self._book, self._resident, prompts)
        self._capacity = self._resident.capacity
        self._load = self._resident.load

    @property
    def traits(self) -> Traits:
        """It does everything."""
        return Traits()

    @property
    def capacity(self) -> Capacity:
        """As the loop is now: it has fewer slots after memory ran out, and slowly more again."""
        return msgspec.structs.replace(
            self._capacity, prefill_tokens_per_s=self._speeds.prefill, decode_tokens_per_s=self._speeds.decode
        )

    @property
    def load(self) -> Load:
        """Steps and tokens as the loop has begun them; what was known last while a loop is made, for seconds."""
        if self._lock.acquire(timeout=_LOOK_S):  # the heartbeat asks, which must not wait
            try:
                self._load = self._resident.load
            finally:
                self._lock.release()
        return self._load

    def warm_up(self) -> None:
        """Generate a few tokens, greedily and by sampling; then measure the speed, if there is time for it.

        Raises:
            EngineDeadError: the model does not generate.
        """
        error = first_tokens(self)
        if error is not None and error.code == ENGINE_ERROR and self._pad():
            _log.warning("this model does not run under continuous batching; padded batches instead: %s", error.message)
            error = first_tokens(self)
        if error is not None:
            raise EngineDeadError(f"the warm-up generation failed: {error.message}")
        if self._measure_s:
            step_tokens = self._resident.step_tokens
            self._speeds = measure(self, vocabulary=self._vocabulary, step_tokens=step_tokens, budget_s=self._measure_s)
            _log.info("measured: %s; room for %s", self._speeds, self.capacity)

    def submit(self, request_id: str, request: Request, *, generated: tuple[int, ...] = ()) -> None:
        """Take a request; see `Engine.submit`."""
        try:
            held = self._intake.held(
                request_id, request, context_tokens=self._resident.context_tokens, generated=generated
            )
        except InvalidRequestError as error:
            self._outputs.put([failure(request_id, error.code, str(error))])
            return
        with self._lock:
            if held.over:
                self._outputs.put([self._outputs.completion(held)])
            elif held.most_tokens > self._capacity.kv_tokens:
                why = no_room(held, self._capacity.kv_tokens)
                self._outputs.put([failure(request_id, OUT_OF_MEMORY, why)])
            elif self._book.find(request_id) is None and not self._closed:
                self._resident.add(held)
                if self._resident.broken:
                    self._outputs.wake()  # so that `step` sees it now

    def step(self, timeout_s: float) -> list[Completion]:
        """Wait for outputs and return the completions among them; see `Engine.step`."""
        deadline = time.monotonic() + timeout_s
        done: list[Completion] = []
        while not done and not self._closed:
            left = deadline - time.monotonic()
            events = self._outputs.wait(max(0.0, min(left, _BROKEN_CHECK_S)))
            with self._lock:
                done += self._outputs.read(events)
                if not self._closed:
                    self._resident.grow()
                    self._capacity = self._resident.capacity
                if self._resident.broken and not self._closed:
                    done += self._recover()
            if left <= 0:
                break
        return done

    def cancel(self, request_id: str) -> Completion | None:
        """Drop a request; see `Engine.cancel`."""
        with self._lock:
            held = self._book.find(request_id)
            if held is None:
                return None
            self._resident.tokens(held)  # brings its progress up to date
            return self._outputs.finish(held)

    def generated(self, request_id: str) -> tuple[int, ...]:
        """The tokens a request has so far; see `Engine.generated`."""
        with self._lock:
            held = self._book.find(request_id)
            return self._resident.tokens(held) if held is not None else ()

    def text(self, request_id: str) -> str:
        """The text so far of a request that streams; see `Engine.text`."""
        with self._lock:
            held = self._book.find(request_id)
            if held is None or held.settled is None:
                return ""
            return held.settled.push(self._resident.tokens(held))

    def not_begun(self) -> tuple[str, ...]:
        """Requests without a place in the KV cache; none while a loop is made, for seconds. See `Engine.not_begun`."""
        if not self._lock.acquire(timeout=_LOOK_S):  # the heartbeat asks, which must not wait
            return ()
        try:
            return tuple(held.request_id for held in self._resident.not_begun())
        finally:
            self._lock.release()

    @property
    def model(self) -> Any:
        """The loaded model, for a worker's extension."""
        return self._resident.model

    def resize(self, *, slots: int = 0, kv_tokens: int = 0) -> None:
        """Go on with a loop of other sizes; see `Engine.resize`."""
        with self._lock:
            self._resident.resize(slots=slots, kv_tokens=kv_tokens)
            self._outputs.put(self._recover())
            if self._resident.refused:
                raise NoRoomError(f"these sizes do not fit: {self._resident.refused}")

    def sleep(self) -> None:
        """End the loop and offload the weights; see `Engine.sleep`."""
        with self._lock:
            self._resident.sleep()
            self._outputs.put(self._outputs.last_words())

    def wake(self) -> None:
        """Restore the weights and start a loop; see `Engine.wake`."""
        with self._lock:
            self._resident.wake()

    def memory(self) -> Memory:
        """Weights and cache, and what the device says; see `Engine.memory`."""
        return self._resident.memory()

    def close(self) -> None:
        """End the loop's thread and free cache and model; a waiting `step` returns."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._resident.close()
        self._outputs.wake()

    def _pad(self) -> bool:
        """Change to the loop without paged cache; False where it is the one, or the model cannot run in it."""
        with self._lock:
            if not self._resident.pad():
                return False
            self._outputs.put(self._recover())
            return True

    def _recover(self) -> list[Completion]:
        done = self._outputs.recover()
        self._capacity = self._resident.capacity
        return done
