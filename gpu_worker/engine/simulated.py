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
from gpu_worker.engine.completions import Ending, failure, settled_text
from gpu_worker.engine.errors import ENGINE_ERROR, OUT_OF_MEMORY, NoRoomError, require_fit
from gpu_worker.engine.faults import DIE, HANG, OOM, die, fault_of
from gpu_worker.engine.limits import QUIET_STEPS
from gpu_worker.engine.memory import rss_mib
from gpu_worker.engine.meter import Meter
from gpu_worker.engine.prompts import truncated
from gpu_worker.engine.pseudo_text import decode, prompt_tokens, text_key
from gpu_worker.engine.refusal import refuse
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
        self._memory = SimulatedMemory(self._options.memory_tokens, self._options.slots, self._options.quiet_steps)
        self._kv_tokens = self._options.slots * self._options.context_tokens
        self._asleep = False
        self._changed = threading.Condition()
        self._waiting: dict[str, Held] = {}
        self._running: dict[str, Held] = {}
        self._rejected: list[Completion] = []
        self._steps = 0
        self._tokens = 0
        self._prompt_tokens = 0
        self._closed = threading.Event()

    @property
    def traits(self) -> Traits:
        """It has no scores, and so nothing that changes or tells them."""
        return Traits(refuses=_NOT_SIMULATED)

    @property
    def capacity(self) -> Capacity:
        """As configured, or as `resize` has made it; fewer slots after memory ran out."""
        context = min(self._options.context_tokens, self._kv_tokens)
        return Capacity(
            slots=self._memory.slots,
            kv_tokens=self._kv_tokens,
            context_tokens=context,
            prefill_tokens_per_s=self._options.prefill_tokens_per_s,
            decode_tokens_per_s=self._options.tokens_per_s * self._memory.slots,
        )

    @property
    def load(self) -> Load:
        """What the engine holds now."""
        with self._changed:
            return Load(
                running=len(self._running),
                waiting=len(self._waiting),
                steps=self._steps,
                generated_tokens=self._tokens,
                kv_tokens_used=sum(held.now_tokens for held in self._running.values()),
                prompt_tokens=self._prompt_tokens,
            )

    def warm_up(self) -> None:
        """There is nothing to warm."""

    def submit(self, request_id: str, request: Request, *, generated: tuple[int, ...] = ()) -> None:
        """Take a request; see `Engine.submit`."""
        params = request.params
        prompt_ids = truncated(prompt_tokens(request), request)
        ending = Ending(params, (), decode)
        held = Held(
            request_id=request_id,
            request=request,
            prompt_ids=prompt_ids,
            key=text_key(prompt_ids, params),
            tokens=list(generated),
            ending=ending,
            settled=settled_text(request, prompt_ids, ending, decode),
        )
        with self._changed:
            try:
                refuse(request, _NOT_SIMULATED, "the simulated engine, which has no scores")
                require_fit(len(prompt_ids), params.max_tokens, self.capacity.context_tokens)
            except InvalidRequestError as error:
                self._rejected.append(failure(request_id, error.code, str(error)))
            else:
                if request_id not in self._running:
                    self._waiting.setdefault(request_id, held)
            self._changed.notify_all()

    def step(self, timeout_s: float) -> list[Completion]:
        """Give out the tokens that are due until a request ends; see `Engine.step`."""
        deadline = self._clock.now_s() + timeout_s
        while not self._closed.is_set():
            with self._changed:
                started = self._start_waiting()
            failing = [held for held in started if self._options.faults and self._fault(held)]
            with self._changed:
                done = self._fail(failing) + ([] if self._asleep else self._advance())
                left_s = deadline - self._clock.now_s()
                if done or left_s <= 0:
                    return done
                self._changed.wait(min(left_s, self._until_due_s()))
        return []

    def cancel(self, request_id: str) -> Completion | None:
        """Drop a request; see `Engine.cancel`."""
        with self._changed:
            held = self._waiting.pop(request_id, None) or self._running.pop(request_id, None)
            return held.completion() if held is not None else None

    def generated(self, request_id: str) -> tuple[int, ...]:
        """The tokens a request has so far; see `Engine.generated`."""
        with self._changed:
            held = self._running.get(request_id) or self._waiting.get(request_id)
            return tuple(held.tokens) if held is not None else ()

    def text(self, request_id: str) -> str:
        """The text so far of a request that streams; see `Engine.text`."""
        with self._changed:
            held = self._running.get(request_id) or self._waiting.get(request_id)
            return held.settled.push(held.tokens) if held is not None and held.settled is not None else ""

    def not_begun(self) -> tuple[str, ...]:
        """Requests that wait for a slot, and have never had one; see `Engine.not_begun`."""
        with self._changed:
            return tuple(held.request_id for held in self._waiting.values() if not held.begun)

    def resize(self, *, slots: int = 0, kv_tokens: int = 0) -> None:
        """Change the sizes; see `Engine.resize`. Only what is in hand limits them."""
        with self._changed:
            needed = max((held.most_tokens for held in (*self._running.values(), *self._waiting.values())), default=0)
            if 0 < kv_tokens < needed:
                raise NoRoomError(f"kv_tokens={kv_tokens} is too few: a request in hand may need {needed}")
            if slots:
                self._memory.resize(slots)
            self._kv_tokens = kv_tokens or self._kv_tokens
            self._hold_back()
            self._changed.notify_all()

    def sleep(self) -> None:
        """Make no step until woken; see `Engine.sleep`."""
        with self._changed:
            self._asleep = True
            self._hold_back()

    def wake(self) -> None:
        """Go on; see `Engine.wake`."""
        with self._changed:
            self._asleep = False
            self._changed.notify_all()

    def memory(self) -> Memory:
        """That of the process: there are no weights and no cache."""
        return Memory(device="cpu", rss_mib=rss_mib())

    def close(self) -> None:
        """Forget everything; a waiting or hanging `step` returns."""
        self._closed.set()
        with self._changed:
            self._waiting.clear()
            self._running.clear()
            self._changed.notify_all()

    def _fault(self, held: Held) -> bool:
        """Do as the prompt says, outside the lock: while `step` hangs, heartbeats still read the load."""
        fault = fault_of(held.request)
        if fault == DIE:
            die()
        if fault == HANG:
            self._closed.wait()
        return fault is not None

    def _hold_back(self) -> None:
        """Let all that run wait again, before the others, with their tokens so far."""
        self._waiting = self._running | self._waiting
        self._running = {}

    def _admissible(self) -> list[Held]:
        """Those that wait, in their order, as far as slots and tokens go."""
        if not self._waiting:
            return []
        free_tokens = self._kv_tokens - sum(held.most_tokens for held in self._running.values())
        admissible: list[Held] = []
        for held in list(self._waiting.values())[: max(0, self._memory.slots - len(self._running))]:
            free_tokens -= held.most_tokens
            if free_tokens < 0:
                break
            admissible.append(held)
        return admissible

    def _start_waiting(self) -> list[Held]:
        started = [] if self._asleep else self._admissible()
        speed = self._options.prefill_tokens_per_s
        for held in started:
            self._running[held.request_id] = self._waiting.pop(held.request_id)
            held.begun = True
            to_read = len(held.prompt_ids) + len(held.tokens)
            self._prompt_tokens += to_read
            prefill_s = to_read / speed if speed else 0.0
            held.due_s = self._clock.now_s() + prefill_s + self._interval_s
        return started

    def _fail(self, failing: Sequence[Held]) -> list[Completion]:
        failed, self._rejected = self._rejected, []
        for held in failing:
            if self._running.pop(held.request_id, None) is not None:
                code = OUT_OF_MEMORY if fault_of(held.request) == OOM else ENGINE_ERROR
                failed.append(failure(held.request_id, code, "it failed, as asked"))
        return failed

    def _advance(self) -> list[Completion]:
        now_s = self._clock.now_s()
        self._steps += bool(self._running)
        grown = sum(h.grow(now_s, self._interval_s) for h in self._running.values())
        self._tokens += grown
        if self._meter is not None:
            self._meter.add(grown)
        over = [held for held in self._running.values() if held.over]
        for held in over:
            del self._running[held.request_id]
        return [held.completion() for held in over] + self._make_room()

    def _make_room(self) -> list[Completion]:
        """Where memory runs out the youngest wait again, with their tokens; one that is alone then fails."""
        running = list(self._running.values())
        kept = self._memory.kept([held.now_tokens for held in running], self._steps)
        if running and not kept:
            self._running.clear()
            return [failure(running[0].request_id, OUT_OF_MEMORY, _TOO_LARGE)]
        back = {held.request_id: held for held in running[kept:]}
        self._waiting = back | self._waiting
        for request_id in back:
            del self._running[request_id]
        return []

    def _until_due_s(self) -> float:
        due_s = min((held.due_s for held in self._running.values()), default=float("inf"))
        return max(0.0, due_s - self._clock.now_s())
