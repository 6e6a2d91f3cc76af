"""Talks HTTP to an OpenAI-compatible server: what it is, and the events of one request's stream."""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncGenerator
from typing import Any, cast

import httpx2
import msgspec

from broker.errors import ConfigurationError
from gpu_worker.engine.errors import EngineDeadError
from gpu_worker.engine.openai_dialects import DIALECTS, Dialect
from gpu_worker.engine.openai_events import Event, ServerError, error_text, read_event
from gpu_worker.engine.openai_process import ServerProcess
from gpu_worker.engine.openai_wire import Call
from gpu_worker.engine.progress import report

_CONNECT_S = 5.0
_SILENCE_S = 600.0  # between two events; the driver's stall timeout is what finds a hanging server
_POLL_S = 0.1
_TELL_S = 5.0  # a server that is not there after so long is worth a line in the log
_BAD_GATEWAY = 502
_OK = 200
_UNAUTHORISED = (401, 403)
_SERVER_SIDE = 500
# What servers of each kind say of themselves in their list of models.
_OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp", "tensorrt_llm": "tensorrt-llm"}

logger = logging.getLogger(__name__)

# It tells of every request at INFO.
logging.getLogger("httpx2").setLevel(logging.WARNING)


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says of itself; `context_tokens` is 0 where it does not tell."""

    model: str
    dialect: Dialect
    context_tokens: int


def open_client(url: str, api_key: str) -> httpx2.AsyncClient:
    """A client for one server; `url` is with or without the `/v1` at its end. As many connections as requests."""
    return httpx2.AsyncClient(
        base_url=url.rstrip("/").removesuffix("/v1"),
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        timeout=httpx2.Timeout(_SILENCE_S, connect=_CONNECT_S),
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
        trust_env=False,  # the server is at hand: no proxy
    )


async def wait_for_server(
    client: httpx2.AsyncClient, process: ServerProcess | None, *, model: str, dialect: str, timeout_s: float
) -> About:
    """Wait until the server answers, and learn what it is.

    Raises:
        ConfigurationError: it refuses the key, or serves another model.
        EngineDeadError: it ended, or does not answer in time.
    """
    began_s = time.monotonic()
    why = ""
    told = process is not None  # its own words are in the log
    while time.monotonic() < began_s + timeout_s:
        if process is not None and (ended := process.ended):
            raise EngineDeadError(f"{ended}; it did not start")
        try:
            return await _look(client, model, dialect)
        except (httpx2.HTTPError, ServerError) as error:
            if isinstance(error, ServerError) and error.status in _UNAUTHORISED:
                raise ConfigurationError(f"openai_api_key: {client.base_url} refuses it: {error}") from error
            why = str(error) or type(error).__name__
        report(f"waiting for the server at {client.base_url}: {why}")
        if not told and time.monotonic() > began_s + _TELL_S:
            told = True
            logger.warning("waiting for the server at %s, for up to %g s: %s", client.base_url, timeout_s, why)
        await asyncio.sleep(_POLL_S)
    raise EngineDeadError(f"the server at {client.base_url} does not answer after {timeout_s:g} s: {why}")


async def is_alive(client: httpx2.AsyncClient) -> bool:
    """Whether the server answers at all."""
    try:
        response = await client.get("v1/models", timeout=_CONNECT_S)
    except httpx2.HTTPError:
        return False
    return response.status_code < _SERVER_SIDE


async def events(client: httpx2.AsyncClient, call: Call) -> AsyncGenerator[Event]:
    """The events of one request, until the server has said that it is done.

    Raises:
        ServerError: the server refuses the request, or sends what cannot be read.
        httpx2.HTTPError: the connection failed.
    """
    async with client.stream("POST", call.path, json=call.body) as response:
        if response.status_code != _OK:
            words = (await response.aread()).decode("utf-8", "replace")
            raise ServerError(response.status_code, error_text(words))
        ended = False
        async with contextlib.aclosing(_lines(response)) as lines:
            async for line in lines:
                name, _, data = line.partition(b":")
                if name != b"data":
                    continue  # empty lines between events, comments that keep the connection open
                if data.strip() == b"[DONE]":
                    break
                event = read_event(data.decode("utf-8", "replace"))
                ended = ended or event.finish_reason is not None
                yield event
    if not ended:
        raise ServerError(_BAD_GATEWAY, "the stream broke off in the middle of the text")


async def _lines(response: httpx2.Response) -> AsyncGenerator[bytes]:
    """The lines of a stream. httpx's own end at U+2028 and the like, too, which are characters of a text here."""
    rest = b""
    async for part in response.aiter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line
    yield rest


async def _look(client: httpx2.AsyncClient, model: str, dialect: str) -> About:
    health = await client.get("health", timeout=_CONNECT_S)
    if health.status_code >= _SERVER_SIDE:  # there, and still loading
        raise ServerError(health.status_code, error_text(health.text))
    response = await client.get("v1/models", timeout=_CONNECT_S)
    if response.status_code != _OK:
        raise ServerError(response.status_code, error_text(response.text))
    entry = _entry(response.text, model, str(client.base_url))
    known = _OWNERS.get(str(entry.get("owned_by", "")))
    if dialect == "auto":
        dialect = known or ("transformers" if await _is_transformers(client) else "openai")
    return About(model=entry["id"], dialect=DIALECTS[dialect], context_tokens=_context_tokens(entry))


def _entry(body: str, model: str, url: str) -> dict[str, Any]:
    """The model's entry in the list of models; the only one there is, under whatever name."""
    try:
        entries = cast("list[dict[str, Any]]", json.loads(body)["data"])
        found = {str(entry["id"]): entry for entry in entries}
    except (KeyError, TypeError, ValueError) as error:
        raise ServerError(_BAD_GATEWAY, f"{url} sent no list of models: {body[:200]!r}") from error
    if model in found:
        return found[model]
    if len(found) == 1:
        return next(iter(found.values()))
    raise ConfigurationError(f"model={model!r}: {url} does not serve it, but: {', '.join(found) or 'none'}")


def _context_tokens(entry: dict[str, Any]) -> int:
    about = entry.get("meta")
    meta = cast("dict[str, Any]", about) if isinstance(about, dict) else {}
    found = entry.get("max_model_len") or meta.get("n_ctx")
    return found if isinstance(found, int) else 0


async def _is_transformers(client: httpx2.AsyncClient) -> bool:
    """`transformers serve` says nothing of itself, but has an endpoint that is its own."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return "/load_model" in json.loads((await client.get("openapi.json")).text)["paths"]
    return False
