"""Generates with an OpenAI-compatible server on this machine: a request is a stream over HTTP.

A server gives text and no token ids: there are no checkpoints, and a request that was interrupted begins again.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

import msgspec

from broker.commands import Memory
from broker.errors import ConfigurationError, InvalidRequestError, StokerError
from broker.messages import Request, SamplingParams
from gpu_worker.engine.base import Capacity, Completion, Load, Traits
from gpu_worker.engine.completions import failure
from gpu_worker.engine.errors import EngineDeadError, NoRoomError
from gpu_worker.engine.memory import rss_mib
from gpu_worker.engine.openai_client import About
from gpu_worker.engine.openai_held import HeldCall
from gpu_worker.engine.openai_intake import OpenAIIntake
from gpu_worker.engine.openai_process import ServerProcess
from gpu_worker.engine.openai_streams import Streams
from gpu_worker.engine.openai_wire import Event
from gpu_worker.engine.prompts import PromptReader

_LOOK_S = 0.2  # at the server's process
_WARM_UP = "warm-up"


class OpenAIOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where the server is and what to hold to; 0 leaves a size to the server, or to its kind."""

    url: str
    model: str
    api_key: str = ""
    dialect: str = "auto"
    slots: int = 0
    kv_tokens: int = 0
    context_tokens: int = 0
    likely_context_tokens: int = 0  # where neither the setting nor the server says
    start_timeout_s: float = 600.0


class OpenAIEngine:
    """Fulfils `Engine` over a server; one that it starts, by `launch`, ends with it.

    `prompts` counts prompts before they are sent, and gives their ids; without it only the server knows.

    Raises:
        ConfigurationError: the server refuses the key, serves another model, or nobody tells the context's size.
        EngineDeadError: it does not come up.
    """

    def __init__(
        self,
        options: OpenAIOptions,
        *,
        launch: Callable[[], ServerProcess] | None = None,
        prompts: PromptReader | None = None,
    ) -> None:
        self._options = options
        self._launch = launch
        self._changed = threading.Condition(threading.RLock())
        self._waiting: dict[str, HeldCall] = {}
        self._running: dict[str, HeldCall] = {}
        self._streaming: dict[str, Future[None]] = {}
        self._done: list[Completion] = []
        self._closed = False
        self._steps = 0
        self._tokens = 0
        self._asleep = False
        self._prompt_tokens = 0
        self._process = launch() if launch is not None else None
        self._streams = Streams(options.url, options.api_key, slots=options.slots)
        try:
            about = self._met()
        except BaseException:
            self.close()
            raise
        self._intake = OpenAIIntake(about, prompts)
        slots, context = options.slots or about.dialect.slots, about.context_tokens
        self._context_tokens = context
        self._capacity = Capacity(slots=slots, kv_tokens=options.kv_tokens or slots * context, context_tokens=context)

    @property
    def traits(self) -> Traits:
        """As the kind of server has it."""
        return self._intake.traits

    @property
    def capacity(self) -> Capacity:
        """As configured; the server itself decides what it holds at once."""
        return self._capacity

    @property
    def load(self) -> Load:
        """What this worker has at the server; each event of a stream is a step."""
        with self._changed:
            return Load(
                running=len(self._running),
                waiting=len(self._waiting),
                steps=self._steps,
                generated_tokens=self._tokens,
                kv_tokens_used=sum(len(held.prompt_ids) + held.tokens for held in self._running.values()),
                prompt_tokens=self._prompt_tokens,
            )

    def warm_up(self) -> None:
        """Generate a few tokens.

        Raises:
            EngineDeadError: the server does not generate.
        """
        self.submit(_WARM_UP, Request(params=SamplingParams(max_tokens=2, temperature=0.0), prompt="Hello"))
        done: list[Completion] = []
        while not done:
            done = self.step(1.0)
        if done[0].error is not None:
            raise EngineDeadError(f"the warm-up generation failed: {done[0].error.message}")

    def submit(self, request_id: str, request: Request, *, generated: tuple[int, ...] = ()) -> None:
        """Take a request; see `Engine.submit`. It begins from the beginning, whatever was `generated`."""
        del generated
        try:
            held = self._intake.held(request_id, request, context_tokens=self._capacity.context_tokens)
        except InvalidRequestError as error:
            self._finish(failure(request_id, error.code, str(error)))
            return
        with self._changed:
            if not self._closed and request_id not in self._running:
                self._waiting.setdefault(request_id, held)
                self._start_waiting()

    def step(self, timeout_s: float) -> list[Completion]:
        """Wait for completions; see `Engine.step`."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._require_server()
            with self._changed:
                left_s = deadline - time.monotonic()
                if self._done or self._closed or left_s <= 0:
                    done, self._done = self._done, []
                    return done
                self._changed.wait(min(left_s, _LOOK_S))

    def cancel(self, request_id: str) -> Completion | None:
        """Drop a request and close its connection; see `Engine.cancel`."""
        with self._changed:
            held = self._waiting.pop(request_id, None) or self._running.pop(request_id, None)
            if (streaming := self._streaming.pop(request_id, None)) is not None:
                streaming.cancel()
                self._start_waiting()
            return held.completion() if held is not None else None

    def generated(self, request_id: str) -> tuple[int, ...]:
        """None: a server gives text, not tokens."""
        del request_id
        return ()

    def text(self, request_id: str) -> str:
        """The text so far of a request that streams; see `Engine.text`. None of one that is sampled without a seed."""
        with self._changed:
            held = self._running.get(request_id) or self._waiting.get(request_id)
            return held.settled() if held is not None else ""

    def resize(self, *, slots: int = 0, kv_tokens: int = 0) -> None:
        """Change how much is sent to the server at once; see `Engine.resize`. The server stays as it is."""
        with self._changed:
            needed = max((held.most_tokens for held in (*self._running.values(), *self._waiting.values())), default=0)
            if 0 < kv_tokens < needed:
                raise NoRoomError(f"kv_tokens={kv_tokens} is too few: a request in hand may need {needed}")
            kv_tokens = kv_tokens or self._capacity.kv_tokens
            self._capacity = Capacity(
                slots=slots or self._capacity.slots,
                kv_tokens=kv_tokens,
                context_tokens=min(self._context_tokens, kv_tokens),
            )
            while self._running and not self._fits(()):
                self._hold_back(next(reversed(self._running)))
            self._start_waiting()

    def sleep(self) -> None:
        """End the server, if it was started here; see `Engine.sleep`. What is in hand begins again after `wake`."""
        with self._changed:
            if self._asleep:
                return
            self._asleep = True
            for request_id in reversed(list(self._running)):
                self._hold_back(request_id)
            process, self._process = self._process, None
        if process is not None:
            process.stop()

    def wake(self) -> None:
        """Start the server again; see `Engine.wake`."""
        with self._changed:
            if not self._asleep or self._closed:
                return
        process = self._process = self._launch() if self._launch is not None else None
        try:
            self._met()
        except StokerError as error:
            self._process = None
            if process is not None:
                process.stop()
            raise NoRoomError(f"the server does not come back: {error}") from error
        with self._changed:
            self._asleep = False
            self._start_waiting()

    def memory(self) -> Memory:
        """That of this process; the server's is not known here."""
        return Memory(device="server", rss_mib=rss_mib())

    def close(self) -> None:
        """Close all connections, end the thread, and the server if it was started here. Safe to call twice."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._waiting.clear()
            self._running.clear()
            self._changed.notify_all()
        self._streams.close()
        if self._process is not None:
            self._process.stop()

    def _fits(self, more: tuple[HeldCall, ...]) -> bool:
        held = (*self._running.values(), *more)
        tokens = sum(item.most_tokens for item in held)
        return len(held) <= self._capacity.slots and tokens <= self._capacity.kv_tokens

    def _start_waiting(self) -> None:
        while self._waiting and not self._closed and not self._asleep:
            request_id, held = next(iter(self._waiting.items()))
            if not self._fits((held,)):
                return
            self._running[request_id] = self._waiting.pop(request_id)
            self._prompt_tokens += len(held.prompt_ids)
            self._streaming[request_id] = self._streams.open(held, self._grown, self._ended)

    def _hold_back(self, request_id: str) -> None:
        """Let one that runs wait again, before the others."""
        self._streaming.pop(request_id).cancel()
        self._waiting = {request_id: self._running.pop(request_id).fresh()} | self._waiting

    def _grown(self, held: HeldCall, event: Event) -> None:
        with self._changed:
            if self._running.get(held.request_id) is held:  # else it was cancelled just now
                self._steps += 1
                self._tokens += held.take(event)

    def _ended(self, held: HeldCall, completion: Completion) -> None:
        with self._changed:
            if self._running.get(held.request_id) is held:
                del self._running[held.request_id], self._streaming[held.request_id]
                self._finish(completion)
                self._start_waiting()

    def _finish(self, completion: Completion) -> None:
        with self._changed:
            self._done.append(completion)
            self._changed.notify_all()

    def _require_server(self) -> None:
        if self._closed:
            return
        ended = self._process.ended if self._process is not None else None
        if ended or self._streams.lost:
            raise EngineDeadError(ended or self._streams.lost)

    def _met(self) -> About:
        """Wait for the server; what it says, with a context that is known."""
        options = self._options
        about = self._streams.meet(
            self._process, model=options.model, dialect=options.dialect, timeout_s=options.start_timeout_s
        )
        context = options.context_tokens or about.context_tokens or options.likely_context_tokens
        if not context:
            raise ConfigurationError(
                f"the server at {options.url} does not say how long its context is: set STOKER_OPENAI_CONTEXT_TOKENS"
            )
        return msgspec.structs.replace(about, context_tokens=context)
