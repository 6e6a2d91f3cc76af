"""Generates with an OpenAI-compatible server on this machine: a request is a stream over HTTP.

A server gives text and no token ids: there are no checkpoints, and a request that was interrupted begins again.
"""

import time
from collections.abc import Callable

from broker.commands import Memory
from broker.errors import InvalidRequestError
from broker.messages import Request, SamplingParams
from gpu_worker.engine.base import Capacity, Completion, Load, Traits
from gpu_worker.engine.completions import failure
from gpu_worker.engine.errors import EngineDeadError
from gpu_worker.engine.memory import rss_mib
from gpu_worker.engine.openai_backend import Backend, Launch, OpenAIOptions
from gpu_worker.engine.openai_intake import OpenAIIntake
from gpu_worker.engine.openai_queue import ServerQueue
from gpu_worker.engine.prompts import PromptReader

_LOOK_S = 0.2  # at the server's process
_WARM_UP = "warm-up"


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
        launch: Launch | None = None,
        prompts: Callable[[], PromptReader] | None = None,
    ) -> None:
        self._options = options
        self._asleep = False
        self._backend = Backend(options, launch)
        try:
            reader = prompts() if prompts is not None else None
            about = self._backend.meet()
        except BaseException:
            self._backend.close()
            raise
        self._intake = OpenAIIntake(about, reader)
        slots, context = options.slots or about.dialect.slots, about.context_tokens
        self._queue = ServerQueue(
            self._backend.streams, slots=slots, kv_tokens=options.kv_tokens or slots * context, context_tokens=context
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
            self._backend.require()
            left_s = deadline - time.monotonic()
            if self._queue.wait(max(0.0, min(left_s, _LOOK_S))) or left_s <= 0:
                self._backend.require()  # it may be why they ended
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
        self._backend.stop()

    def wake(self) -> None:
        """Start the server again; see `Engine.wake`."""
        if not self._asleep:
            return
        self._backend.start_again()
        self._asleep = False
        self._queue.resume()

    def memory(self) -> Memory:
        """That of this process; the server's is not known here."""
        return Memory(device="server", rss_mib=rss_mib())

    def close(self) -> None:
        """Close all connections, end the thread, and the server if it was started here. Safe to call twice."""
        self._queue.close()
        self._backend.close()
