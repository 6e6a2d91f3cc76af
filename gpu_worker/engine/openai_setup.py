"""From the settings to an engine over a server: starts it if need be, finds its tokenizer and the context's size."""

import json
from functools import partial
from pathlib import Path
from typing import Any

from broker.errors import ConfigurationError
from broker.ports import free_port
from gpu_worker.engine.openai_backend import OpenAIOptions
from gpu_worker.engine.openai_process import ServerProcess, server_command
from gpu_worker.engine.openai_server import OpenAIEngine
from gpu_worker.engine.prompts import PromptReader
from gpu_worker.settings import WorkerSettings


def open_openai(settings: WorkerSettings) -> OpenAIEngine:
    """The engine, once its server answers.

    Raises:
        ConfigurationError: a setting is wrong, the key is refused, another model is served, the tokenizer is not there.
        EngineDeadError: the server does not come up.
    """
    folder = Path(settings.model).expanduser()
    model = str(folder) if folder.is_dir() else settings.model
    tokenizer = settings.openai_tokenizer or (model if (folder / "tokenizer_config.json").is_file() else "")
    launch, url = None, settings.openai_url
    if settings.openai_command:
        port = free_port()
        launch = partial(ServerProcess, server_command(settings.openai_command, model=model, port=port))
        url = url or f"http://127.0.0.1:{port}"
    options = OpenAIOptions(
        url=url,
        model=model,
        api_key=settings.openai_api_key,
        dialect=settings.openai_dialect,
        slots=settings.slots,
        kv_tokens=settings.kv_tokens,
        context_tokens=settings.openai_context_tokens,
        likely_context_tokens=_configured_context(folder),
        start_timeout_s=settings.openai_start_timeout,
    )
    return OpenAIEngine(options, launch=launch, prompts=partial(_prompts, tokenizer) if tokenizer else None)


def _prompts(tokenizer: str) -> PromptReader:
    from transformers import AutoTokenizer

    try:
        made: Any = AutoTokenizer.from_pretrained(tokenizer)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"openai_tokenizer={tokenizer!r} cannot be loaded: {error}") from error
    return PromptReader(made, vocabulary=len(made))


def _configured_context(folder: Path) -> int:
    """What the model's own configuration says, where it is on this machine; else 0."""
    try:
        found = json.loads((folder / "config.json").read_text("utf-8")).get("max_position_embeddings")
    except (OSError, ValueError):
        return 0
    return found if isinstance(found, int) else 0
