"""The server behind an engine: started here or elsewhere, met, looked at, ended and started again."""

import threading
from collections.abc import Callable

import msgspec

from broker.errors import ConfigurationError, StokerError
from gpu_worker.engine.errors import EngineDeadError, NoRoomError
from gpu_worker.engine.openai_client import About
from gpu_worker.engine.openai_process import ServerProcess
from gpu_worker.engine.openai_streams import Streams

Launch = Callable[[], ServerProcess]


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


class Backend:
    """One server, which ends with this where `launch` has started it; and the connections to it."""

    def __init__(self, options: OpenAIOptions, launch: Launch | None) -> None:
        self._options = options
        self._launch = launch
        self._ending = threading.Lock()
        self._closed = False
        self._process = launch() if launch is not None else None
        self.streams = Streams(options.url, options.api_key)

    def meet(self) -> About:
        """Wait for the server; what it says, with a context that is known.

        Raises:
            ConfigurationError: it refuses the key, serves another model, or nobody tells the context's size.
            EngineDeadError: it does not come up.
        """
        options = self._options
        about = self.streams.meet(
            self._process, model=options.model, dialect=options.dialect, timeout_s=options.start_timeout_s
        )
        context = options.context_tokens or about.context_tokens or options.likely_context_tokens
        if not context:
            raise ConfigurationError(
                f"the server at {options.url} does not say how long its context is: set STOKER_OPENAI_CONTEXT_TOKENS"
            )
        return msgspec.structs.replace(about, context_tokens=context)

    def require(self) -> None:
        """Look whether it is there.

        Raises:
            EngineDeadError: it ended, or was lost.
        """
        if self._closed:
            return
        ended = self._process.ended if self._process is not None else None
        if ended or self.streams.lost:
            raise EngineDeadError(ended or self.streams.lost)

    def stop(self) -> None:
        """End the server, if it was started here."""
        process, self._process = self._process, None
        if process is not None:
            process.stop()

    def start_again(self) -> None:
        """Start the server that `stop` has ended, if it is one of ours.

        Raises:
            NoRoomError: it does not come back.
        """
        if self._closed or self._launch is None:
            return
        self._process = self._launch()
        try:
            self.meet()
        except BaseException as error:
            self.stop()
            if isinstance(error, StokerError):
                raise NoRoomError(f"the server does not come back: {error}") from error
            raise

    def close(self) -> None:
        """Close all connections, and end the server if it was started here. Safe to call twice."""
        with self._ending:
            if self._closed:
                return
            self._closed = True
        self.streams.close()
        if self._process is not None:
            self._process.stop()
