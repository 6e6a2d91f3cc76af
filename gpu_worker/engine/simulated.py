"""An engine without a model, for tests, benchmarks and chaos: the same request always gives the same words.

It keeps time as a GPU would: a request waits for a slot, reads its prompt at `prefill_tokens_per_s`, then gives a
token every 1 / `tokens_per_s` seconds. A speed of 0 costs no time; then every round of `step` gives one token to each
running request. Where faults are allowed, a prompt can ask for one (`faults.py`). Memory can be made to run out.
"""

import threading
from collections.abc import Sequence

import msgspec

from broker.clock import Clock, SystemClock
from broker.commands import Memory
from broker.errors import InvalidRequestError
from broker.messages import Request
from gpu_worker.engine.base import Capacity, Completion, Load, Traits
from gpu_worker.engine.completions import failure
from gpu_worker.engine.errors import ENGINE_ERROR, OUT_OF_MEMORY, require_fit
from gpu_worker.engine.faults import DEATHS, HANG, OOM, fault_of
from gpu_worker.engine.limits import QUIET_STEPS
from gpu_worker.engine.memory import rss_mib
from gpu_worker.engine.meter import Meter
from gpu_worker.engine.prompts import truncated
from gpu_worker.engine.pseudo_text import decode, prompt_tokens, text_key
from gpu_worker.engine.refusal import refuse
from gpu_worker.engine.run_queue import RunQueue
from gpu_worker.engine.simulated_held import Held
from gpu_worker.engine.simulated_memory import SimulatedMemory

# What changes or tells scores: there are none here.
_NOT_SIMULATED = frozenset(
    ("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "logprobs"),
)

_TOO_LARGE = "memory ran out with nothing else running: give a shorter prompt or a smaller max_tokens"


class SimulatedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Speeds are in tokens per second of one request; 0 is free of cost."""

    tokens_per_s: float = 0.0
    prefill_tokens_per_s: float = 0.0
    slots: int = 32
    context_tokens: int = 8192
    memory_tokens: int = 0  # of all that runs together; 0 is memory without end
    quiet_steps: int = QUIET_STEPS  # after a shortage of it, until the slots grow again
    faults: bool = False


class SimulatedEngine:
    """Fulfils `Engine` without torch."""

    def __init__(
        self, options: SimulatedOptions | None = None, *, clock: Clock | None = None, meter: Meter | None = None
    ) -> None:
        """`meter` counts the generated tokens where a killed process leaves them behind."""
        self._options = options or SimulatedOptions()
        self._clock = clock or SystemClock()
        self._meter = meter
        speed = self._options.tokens_per_s
        self._interval_s = 1 / speed if speed else 0.0
        slots, context_tokens = self._options.slots, self._options.context_tokens
        self._memory = SimulatedMemory(self._options.memory_tokens, slots, self._options.quiet_steps)
        self._queue = RunQueue[Held](slots=slots, kv_tokens=slots * context_tokens, context_tokens=context_tokens)
        self._closed = threading.Event()

    @property
    def traits(self) -> Traits:
        """It has no scores, and so nothing that changes or tells them."""
        return Traits(refuses=_NOT_SIMULATED)

    @property
    def capacity(self) -> Capacity:
        """As configured, or as `resize` has made it; fewer slots after memory ran out."""
        return msgspec.structs.replace(
            self._queue.capacity,
            prefill_tokens_per_s=self._options.prefill_tokens_per_s,
            decode_tokens_per_s=self._options.tokens_per_s * self._queue.slots,
        )

    @property
    def load(self) -> Load:
        """What the engine holds now."""
        return self._queue.load

    def warm_up(self) -> None:
        """There is nothing to warm."""

    def submit(self, request_id: str, request: Request, *, generated: tuple[int, ...] = ()) -> None:
        """Take a request; see `Engine.submit`."""
        params, prompt_ids = request.params, truncated(prompt_tokens(request), request)
        held = Held(
            request_id=request_id,
            request=request,
            prompt_ids=prompt_ids,
            tokens=list(generated),
            ends=(),
            decode=decode,
            key=text_key(prompt_ids, params),
        )
        with self._queue.changed:
            try:
                refuse(request, _NOT_SIMULATED, "the simulated engine, which has no scores")
                require_fit(len(prompt_ids), params.max_tokens, self.capacity.context_tokens)
            except InvalidRequestError as error:
                self._queue.finish(failure(request_id, error.code, str(error)))
            else:
                self._queue.add(held)

    def step(self, timeout_s: float) -> list[Completion]:
        """Give out the tokens that are due until a request ends; see `Engine.step`."""
        queue, deadline = self._queue, self._clock.now_s() + timeout_s
        while not self._closed.is_set():
            with queue.changed:
                started = self._start_waiting()
            failing = [held for held in started if self._options.faults and self._fault(held)]
            with queue.changed:
                self._fail(failing)
                if not queue.paused:
                    self._advance()
                left_s = deadline - self._clock.now_s()
                if queue.has_ended or left_s <= 0:
                    return queue.take()
                queue.changed.wait(min(left_s, self._until_due_s()))
        return []

    def cancel(self, request_id: str) -> Completion | None:
        """Drop a request; see `Engine.cancel`."""
        held = self._queue.drop(request_id)
        return held.completion() if held is not None else None

    def generated(self, request_id: str) -> tuple[int, ...]:
        """The tokens a request has so far; see `Engine.generated`."""
        held = self._queue.find(request_id)
        return tuple(held.tokens) if held is not None else ()

    def text(self, request_id: str) -> str:
        """The text so far of a request that streams; see `Engine.text`."""
        return self._queue.settled(request_id)

    def not_begun(self) -> tuple[str, ...]:
        """Requests that wait for a slot, and have never had one; see `Engine.not_begun`."""
        return self._queue.not_begun

    def resize(self, *, slots: int = 0, kv_tokens: int = 0) -> None:
        """Change the sizes; see `Engine.resize`. Only what is in hand limits them."""
        with self._queue.changed:
            self._queue.resize(slots=0, kv_tokens=kv_tokens)
            if slots:
                self._memory.resize(slots)
                self._queue.slots = self._memory.slots
            self._queue.hold_back(self._queue.running)

    def sleep(self) -> None:
        """Make no step until woken; see `Engine.sleep`."""
        self._queue.pause()

    def wake(self) -> None:
        """Go on; see `Engine.wake`."""
        self._queue.resume()

    def memory(self) -> Memory:
        """That of the process: there are no weights and no cache."""
        return Memory(device="cpu", rss_mib=rss_mib())

    def close(self) -> None:
        """Forget everything; a waiting or hanging `step` returns."""
        self._closed.set()
        self._queue.close()

    def _fault(self, held: Held) -> bool:
        """Do as the prompt says, outside the lock: while `step` hangs, heartbeats still read the load."""
        fault = fault_of(held.request)
        if fault in DEATHS:
            DEATHS[fault]()
        if fault == HANG:
            self._closed.wait()
        return fault is not None

    def _start_waiting(self) -> list[Held]:
        started = self._queue.start()
        speed = self._options.prefill_tokens_per_s
        for held in started:
            prefill_s = held.now_tokens / speed if speed else 0.0
            held.due_s = self._clock.now_s() + prefill_s + self._interval_s
        return started

    def _fail(self, failing: Sequence[Held]) -> None:
        for held in failing:
            if self._queue.runs(held):
                code = OUT_OF_MEMORY if fault_of(held.request) == OOM else ENGINE_ERROR
                self._queue.end(held, failure(held.request_id, code, "it failed, as asked"))

    def _advance(self) -> None:
        now_s, running = self._clock.now_s(), self._queue.running
        if running:
            grown = sum(held.grow(now_s, self._interval_s) for held in running)
            self._queue.stepped(grown)
            if self._meter is not None:
                self._meter.add(grown)
        for held in running:
            if held.over:
                self._queue.end(held, held.completion())
        self._make_room()

    def _make_room(self) -> None:
        """Where memory runs out the youngest wait again, with their tokens; one that is alone then fails."""
        running = self._queue.running
        kept = self._memory.kept([held.now_tokens for held in running], self._queue.steps)
        self._queue.slots = self._memory.slots
        if running and not kept:
            self._queue.end(running[0], failure(running[0].request_id, OUT_OF_MEMORY, _TOO_LARGE))
        else:
            self._queue.hold_back(running[kept:])

    def _until_due_s(self) -> float:
        due_s = min((held.due_s for held in self._queue.running), default=float("inf"))
        return max(0.0, due_s - self._clock.now_s())
