"""All connections to one server, in one thread with one asyncio loop; a stream that breaks is tried again."""

import asyncio
import contextlib
import logging
import threading
from concurrent.futures import Future
from typing import Protocol

import httpx2

from gpu_worker.engine.base import Completion
from gpu_worker.engine.completions import failure
from gpu_worker.engine.errors import ENGINE_ERROR
from gpu_worker.engine.openai_client import About, events, is_alive, open_client, wait_for_server
from gpu_worker.engine.openai_events import Event, ServerError
from gpu_worker.engine.openai_held import HeldCall
from gpu_worker.engine.openai_process import ServerProcess

logger = logging.getLogger(__name__)

ATTEMPTS = 4
_BACKOFF_S = 0.25  # before the second try; doubles with each further one
_CLOSE_S = 10.0
_CLIENT_SIDE = range(400, 500)
_TRY_AGAIN = (408, 409, 425, 429)  # of those, what may pass
_WORKERS_FAULT = (401, 403, 404, 405)  # the server is not what it was: no request is to blame
_TOO_LONG = ("context length", "context size", "context_length", "exceed_context", "max_model_len", "too long")


class Listener(Protocol):
    """Hears of requests, in the streams' own thread."""

    def begin(self, held: HeldCall) -> None:
        """It is sent: at first, or once more from the beginning."""
        ...

    def grow(self, held: HeldCall, event: Event) -> None:
        """The server has said something."""
        ...

    def end(self, held: HeldCall, failed: Completion | None) -> None:
        """The server has said all, or the request has failed."""
        ...


class Streams:
    """Sends requests and reads what comes."""

    def __init__(self, url: str, api_key: str) -> None:
        self.lost = ""  # why the server must be taken for dead
        self._client = open_client(url, api_key)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="openai", daemon=True)
        self._thread.start()

    def meet(self, process: ServerProcess | None, *, model: str, dialect: str, timeout_s: float) -> About:
        """Wait for the server; see `wait_for_server`."""
        waiting = wait_for_server(self._client, process, model=model, dialect=dialect, timeout_s=timeout_s)
        return asyncio.run_coroutine_threadsafe(waiting, self._loop).result()

    def open(self, held: HeldCall, listener: Listener) -> Future[None]:
        """Send a request. Cancelling the future closes the connection."""
        return asyncio.run_coroutine_threadsafe(self._run(held, listener), self._loop)

    def close(self) -> None:
        """Close all connections and end the thread."""
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result(_CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_S)
        self._loop.close()

    async def _run(self, held: HeldCall, listener: Listener) -> None:
        try:
            failed = await self._insist(held, listener)
        except Exception as error:  # a fault of ours: the request must not hang for it
            logger.exception("request %s", held.request_id)
            failed = failure(held.request_id, ENGINE_ERROR, f"{type(error).__name__}: {error}")
        listener.end(held, failed)

    async def _insist(self, held: HeldCall, listener: Listener) -> Completion | None:
        """Let the server answer; None when it has, else the failure."""
        why: Exception | None = None
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(_BACKOFF_S * 2 ** (attempt - 1))
            try:
                await self._read(held, listener)
            except (ServerError, httpx2.HTTPError) as error:
                why = error
                if isinstance(error, ServerError) and _is_final(error):
                    break
            else:
                return None
        assert why is not None
        if isinstance(why, httpx2.HTTPError) and not await is_alive(self._client):
            self.lost = f"the server at {self._client.base_url} does not answer any more: {_words(why)}"
        return _refusal(held.request_id, why)

    async def _read(self, held: HeldCall, listener: Listener) -> None:
        listener.begin(held)
        async with contextlib.aclosing(events(self._client, held.call)) as stream:
            async for event in stream:
                listener.grow(held, event)

    async def _shut(self) -> None:
        tasks = asyncio.all_tasks(self._loop) - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.aclose()


def _is_final(error: ServerError) -> bool:
    return error.status in _CLIENT_SIDE and error.status not in _TRY_AGAIN


def _refusal(request_id: str, error: Exception) -> Completion:
    words = _words(error)
    if not isinstance(error, ServerError):
        return failure(request_id, ENGINE_ERROR, f"the connection to the server failed {ATTEMPTS} times: {words}")
    message = f"the server refused with status {error.status}: {words}"
    if not _is_final(error) or error.status in _WORKERS_FAULT:
        return failure(request_id, ENGINE_ERROR, message)
    if any(mark in words.lower() for mark in _TOO_LONG):
        return failure(request_id, "context_length_exceeded", message)
    return failure(request_id, "invalid_request", message)


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
