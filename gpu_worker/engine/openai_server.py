"""Generates with an OpenAI-compatible server on this machine: a request is a stream over HTTP.

A server gives text and no token ids: there are no checkpoints, and a request that was interrupted begins again.
"""

import threading
import time
from collections.abc import Callable

import msgspec

from broker.commands import Memory
from broker.errors import ConfigurationError, InvalidRequestError, StokerError
from broker.messages import Request, SamplingParams
from gpu_worker.engine.base import Capacity, Completion, Load, Traits
from gpu_worker.engine.completions import failure
from gpu_worker.engine.errors import EngineDeadError, NoRoomError
from gpu_worker.engine.memory import rss_mib
from gpu_worker.engine.openai_client import About
from gpu_worker.engine.openai_intake import OpenAIIntake
from gpu_worker.engine.openai_process import ServerProcess
from gpu_worker.engine.openai_queue import ServerQueue
from gpu_worker.engine.openai_streams import Streams
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

    `prompts` makes what counts prompts before they are sent, and gives their ids; it takes its time while the server
    starts. Without it only the server knows.

    Raises:
        ConfigurationError: the server refuses the key, serves another model, or nobody tells the context's size.
        EngineDeadError: it does not come up.
    """

    def __init__(
        self,
        options: OpenAIOptions,
        *,
        launch: Callable[[], ServerProcess] | None = None,
        prompts: Callable[[], PromptReader] | None = None,
    ) -> None:
        self._options = options
        self._launch = launch
        self._ending = threading.Lock()
        self._closed = False
        self._asleep = False
        self._process = launch() if launch is not None else None
        self._streams = Streams(options.url, options.api_key)
        try:
            reader = prompts() if prompts is not None else None
            about = self._met()
        except BaseException:
            self._end()
            raise
        self._intake = OpenAIIntake(about, reader)
        slots, context = options.slots or about.dialect.slots, about.context_tokens
        self._queue = ServerQueue(
            self._streams, slots=slots, kv_tokens=options.kv_tokens or slots * context, context_tokens=context
        )
        self._queue.resume()

    @property
    def traits(self) -> Traits:
        """As the kind of server has it."""
        return self._intake.traits

    @property
    def capacity(self) -> Capacity:
        """As configured; the server itself decides what it holds at once."""
        return self._queue.capacity

    @property
    def load(self) -> Load:
        """What this worker has at the server; each event of a stream is a step."""
        return self._queue.load

    def warm_up(self) -> None:
        """Generate a few tokens.

        Raises:
            EngineDeadError: the server does not generate.
        """
        self.submit(_WARM_UP, Request(params=SamplingParams(max_tokens=2, temperature=0.0), prompt="Hello"))
        give_up_s = time.monotonic() + self._options.start_timeout_s
        done: list[Completion] = []
        while not done and (left_s := give_up_s - time.monotonic()) > 0:
            done = self.step(min(left_s, 1.0))
        if not done:
            raise EngineDeadError(f"the server generated nothing within {self._options.start_timeout_s:g} s")
        if done[0].error is not None:
            raise EngineDeadError(f"the warm-up generation failed: {done[0].error.message}")

    def submit(self, request_id: str, request: Request, *, generated: tuple[int, ...] = ()) -> None:
        """Take a request; see `Engine.submit`. It begins from the beginning, whatever was `generated`."""
        del generated
        try:
            held = self._intake.held(request_id, request, context_tokens=self.capacity.context_tokens)
        except InvalidRequestError as error:
            self._queue.finish(failure(request_id, error.code, str(error)))
        else:
            self._queue.add(held)

    def step(self, timeout_s: float) -> list[Completion]:
        """Wait for completions; see `Engine.step`."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._require_server()
            left_s = deadline - time.monotonic()
            if self._queue.wait(max(0.0, min(left_s, _LOOK_S))) or left_s <= 0:
                self._require_server()  # it may be why they ended
                return self._queue.take()

    def cancel(self, request_id: str) -> Completion | None:
        """Drop a request and close its connection; see `Engine.cancel`."""
        held = self._queue.drop(request_id)
        return held.completion() if held is not None else None

    def generated(self, request_id: str) -> tuple[int, ...]:
        """None: a server gives text, not tokens."""
        del request_id
        return ()

    def text(self, request_id: str) -> str:
        """The text so far of a request that streams; see `Engine.text`. None of one that is sampled without a seed."""
        return self._queue.settled(request_id)

    def not_begun(self) -> tuple[str, ...]:
        """Requests that were not sent to the server yet; see `Engine.not_begun`."""
        return self._queue.unsent

    def resize(self, *, slots: int = 0, kv_tokens: int = 0) -> None:
        """Change how much is sent to the server at once; see `Engine.resize`. The server stays as it is."""
        self._queue.resize(slots=slots, kv_tokens=kv_tokens)

    def sleep(self) -> None:
        """End the server, if it was started here; see `Engine.sleep`. What is in hand begins again after `wake`."""
        if self._asleep:
            return
        self._asleep = True
        self._queue.pause()
        process, self._process = self._process, None
        if process is not None:
            process.stop()

    def wake(self) -> None:
        """Start the server again; see `Engine.wake`."""
        if not self._asleep or self._closed:
            return
        if self._launch is not None:
            self._relaunch(self._launch)
        self._asleep = False
        self._queue.resume()

    def memory(self) -> Memory:
        """That of this process; the server's is not known here."""
        return Memory(device="server", rss_mib=rss_mib())

    def close(self) -> None:
        """Close all connections, end the thread, and the server if it was started here. Safe to call twice."""
        self._queue.close()
        self._end()

    def _end(self) -> None:
        with self._ending:
            if self._closed:
                return
            self._closed = True
        self._streams.close()
        if self._process is not None:
            self._process.stop()

    def _relaunch(self, launch: Callable[[], ServerProcess]) -> None:
        self._process = launch()
        try:
            self._met()
        except BaseException as error:
            process, self._process = self._process, None
            process.stop()
            if isinstance(error, StokerError):
                raise NoRoomError(f"the server does not come back: {error}") from error
            raise

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
