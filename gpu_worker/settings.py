"""The settings of one worker process."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from broker.environment import load
from broker.errors import ConfigurationError
from gpu_worker.registry import engine_names, find_engine

DEFAULT_MODEL = "smollm2-135m"
POOLS = ("engine", "solo", "prefork")
# What transformers can run batches of any mixture with.
ATTENTION = ("auto", "eager", "sdpa", "flash_attention_2", "flash_attention_3")
DTYPES = ("auto", "float32", "float16", "bfloat16")
_SERVER_URL = re.compile(r"https?://([^/@:\s\[\]]+|\[[0-9a-fA-F:.]+\])(:\d{1,5})?(/[^@\s]*)?")
OPENAI_DIALECTS = ("auto", "openai", "vllm", "sglang", "tensorrt-llm", "llamacpp", "transformers")


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker runs and how; durations are in seconds, 0 lets the engine decide a size.

    Raises:
        ConfigurationError: lists every value that does not fit.
    """

    model: str = DEFAULT_MODEL
    served_model_name: str = ""  # what requests call it; the model's own name if empty
    worker_name: str = ""  # `name` or `name@host`; the first free device of this host if empty
    engine: str = "transformers"
    pool: str = "engine"
    device: str = "auto"  # auto, cpu, cuda:N, or cuda:N,M: one model over several GPUs
    dtype: str = "auto"
    attention: str = "auto"
    compile: bool = False
    revision: str = ""  # of a model on the hub
    trust_remote_code: bool = False  # run code that comes with the model
    offline: bool = False  # never ask the hub
    max_batches: int = 64  # batches in flight that share the engine
    slots: int = 0
    kv_tokens: int = 0
    cache_dir: str = ""
    warm_up_s: float = 2.0  # how long the start may measure speed and memory; 0: not at all
    drain_timeout: float = 30.0
    checkpoint_tokens: int = 64  # a death costs at most so many tokens a request; 0 saves none
    failure_limit: int = 3  # different requests failed in a row before the worker is set aside
    poison_pause: float = 30.0  # how long it stays set aside before it is restarted
    max_restarts: int = 5  # crashes in a row before the supervisor gives up
    restart_backoff: float = 0.5  # before the second restart in a row; doubles with each further one
    openai_url: str = ""  # a server that runs already, with or without /v1
    openai_command: str = ""  # starts one; {model} and {port} are replaced
    openai_api_key: str = ""
    openai_dialect: str = "auto"
    openai_context_tokens: int = 0
    openai_tokenizer: str = ""  # folder or name of the tokenizer that counts prompts; the model's own if empty
    openai_start_timeout: float = 600.0
    simulated_tokens_per_s: float = 0.0  # per request; 0: as fast as it goes
    simulated_prefill_tokens_per_s: float = 0.0  # of each prompt; 0: at once
    simulated_memory_tokens: int = 0  # of all that runs together; 0: memory without end
    simulated_load_s: float = 0.0
    simulated_slots: int = 32
    simulated_faults: bool = False
    simulated_meter: str = ""  # folder in which generated tokens are counted, in files that outlive the process
    worker_extension_cls: str = ""  # `package.module:Class`, whose methods are commands of run-time control
    log_level: str = "WARNING"

    def __post_init__(self) -> None:
        """Refuse values that cannot work, all at once."""
        problems = [
            f"{name}={value!r} must be one of {', '.join(choices)}"
            for name, value, choices in (
                ("pool", self.pool, POOLS),
                ("dtype", self.dtype, DTYPES),
                ("attention", self.attention, ATTENTION),
                ("openai_dialect", self.openai_dialect, OPENAI_DIALECTS),
                ("log_level", self.log_level, ("DEBUG", "INFO", "WARNING", "ERROR")),
            )
            if value not in choices
        ]
        problems += [
            f"{name}={getattr(self, name)} must be at least {least}"
            for name, least in (
                ("max_batches", 1),
                ("slots", 0),
                ("kv_tokens", 0),
                ("openai_context_tokens", 0),
                ("max_restarts", 0),
                ("checkpoint_tokens", 0),
                ("simulated_memory_tokens", 0),
                ("failure_limit", 1),
            )
            if getattr(self, name) < least
        ]
        problems += [
            f"{name}={getattr(self, name):g} must not be negative"
            for name in (
                "poison_pause",
                "warm_up_s",
                "drain_timeout",
                "restart_backoff",
                "openai_start_timeout",
                "simulated_tokens_per_s",
                "simulated_prefill_tokens_per_s",
                "simulated_load_s",
            )
            if getattr(self, name) < 0
        ]
        if not self.model:
            problems.append("model must not be empty")
        if find_engine(self.engine) is None:
            problems.append(f"engine={self.engine!r} must be one of {', '.join(engine_names())}")
        if self.engine == "openai":
            problems += self._openai_problems()
        if problems:
            raise ConfigurationError("; ".join(problems))

    def _openai_problems(self) -> list[str]:
        problems: list[str] = []
        if not self.openai_url and "{port}" not in self.openai_command:
            problems.append("engine='openai' needs openai_url, or openai_command with {port} in it")
        if self.openai_url and "{port}" in self.openai_command:
            problems.append(
                "openai_url: with {port} in openai_command the worker finds a port itself; give one of both"
            )
        if self.openai_url and not _SERVER_URL.fullmatch(self.openai_url):
            problems.append(
                "openai_url must be http:// or https://, a host and a port, with no password in it; use openai_api_key"
            )
        return problems

    def __repr__(self) -> str:
        shown = msgspec.structs.asdict(self) | {"openai_api_key": "***" if self.openai_api_key else ""}
        return f"WorkerSettings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    @property
    def served_model(self) -> str:
        """The name by which requests ask for this model."""
        return self.served_model_name or self.model

    @property
    def concurrency(self) -> int:
        """Celery tasks that run at once: one for pools that cannot share the engine."""
        return self.max_batches if self.pool == "engine" else 1

    @property
    def cache_path(self) -> Path:
        """Where converted weights are kept."""
        return Path(self.cache_dir).expanduser() if self.cache_dir else Path("~/.cache/stoker").expanduser()


def load_worker_settings(environ: Mapping[str, str] | None = None, **overrides: Any) -> WorkerSettings:
    """Worker settings from the environment (`STOKER_MODEL`, …); keyword arguments win.

    Raises:
        ConfigurationError: an unknown `STOKER_*` variable, or a value that does not fit.
    """
    return load(WorkerSettings, os.environ if environ is None else environ, overrides)
