"""Reads settings from `STOKER_*` environment variables into a frozen settings struct.

A variable that no part of Stoker knows is an error, not silence; all problems come in one error. The package that owns
the settings passes the environment in, so that only its `settings.py` reads it.
"""

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from broker.errors import ConfigurationError

PREFIX = "STOKER_"

# Every variable of the three packages: a typing error in one of them must be found whichever program starts first.
VARIABLES = frozenset(
    PREFIX + name
    for name in (
        # broker
        "BROKER_URL",
        "NAMESPACE",
        "RESULT_TTL_S",
        "HEARTBEAT_INTERVAL",
        "HEARTBEAT_TIMEOUT",
        "VISIBILITY_TIMEOUT_S",
        "MAX_ATTEMPTS",
        "MAX_LOSSES",
        # gpu_worker
        "MODEL",
        "SERVED_MODEL_NAME",
        "WORKER_NAME",
        "ENGINE",
        "POOL",
        "DEVICE",
        "DTYPE",
        "ATTENTION",
        "COMPILE",
        "REVISION",
        "TRUST_REMOTE_CODE",
        "OFFLINE",
        "MAX_BATCHES",
        "SLOTS",
        "KV_TOKENS",
        "CACHE_DIR",
        "WARM_UP_S",
        "DRAIN_TIMEOUT",
        "CHECKPOINT_TOKENS",
        "FAILURE_LIMIT",
        "POISON_PAUSE",
        "MAX_RESTARTS",
        "RESTART_BACKOFF",
        "OPENAI_URL",
        "OPENAI_COMMAND",
        "OPENAI_API_KEY",
        "OPENAI_DIALECT",
        "OPENAI_CONTEXT_TOKENS",
        "OPENAI_TOKENIZER",
        "OPENAI_START_TIMEOUT",
        "SIMULATED_TOKENS_PER_S",
        "SIMULATED_PREFILL_TOKENS_PER_S",
        "SIMULATED_MEMORY_TOKENS",
        "SIMULATED_LOAD_S",
        "SIMULATED_SLOTS",
        "SIMULATED_FAULTS",
        "SIMULATED_METER",
        "WORKER_EXTENSION_CLS",
        "LOG_LEVEL",
        # driver
        "INITIAL_WORKER_COUNT",
        "SCHEDULE_INTERVAL",
        "BATCH_SIZE",
        "BATCH_TOKENS",
        "MAX_BATCH_DELAY",
        "AGEING",
        "USER_WEIGHTS",
        "WORKER_MONITOR_INTERVAL",
        "DETECTION_INTERVAL",
        "FAILURE_THRESHOLD",
        "STALL_TIMEOUT",
        "MAX_PENDING_REQUESTS",
        "MAX_PENDING_TOKENS",
        "MAX_USER_PENDING_REQUESTS",
        "MAX_USER_PENDING_TOKENS",
        "AUTOSCALE",
        "DRAIN_TARGET",
        "SCALE_IN_COOLDOWN",
        "TREND_WINDOW",
        "SCALE_COMMAND",
        "SCALE_COMMAND_TIMEOUT",
        "SHARE_IDENTICAL",
        "RESULT_CACHE_TTL",
        "RESULT_CACHE_MIB",
        "SWITCH_MODELS",
        "SWITCH_BACKLOG",
        "SWITCH_STAY",
        # between our own processes
        "INTERNAL_LIFELINE_FD",
        "INTERNAL_INSTANCE",
    )
)

SettingsT = TypeVar("SettingsT", bound=msgspec.Struct)


def load(kind: type[SettingsT], environ: Mapping[str, str], overrides: Mapping[str, Any] | None = None) -> SettingsT:
    """Settings of this kind: `overrides` that are not None win over the environment, that over the defaults.

    Raises:
        ConfigurationError: lists every unknown variable and every value that does not fit.
    """
    given = {name: value for name, value in (overrides or {}).items() if value is not None}
    problems = [_unknown(name) for name in environ if name.startswith(PREFIX) and name not in VARIABLES]
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        variable = PREFIX + field.name.upper()
        source, raw = (field.name, given[field.name]) if field.name in given else (variable, environ.get(variable))
        if raw is None or (raw == "" and source == variable):
            continue
        try:
            values[field.name] = msgspec.convert(raw, field.type, strict=False)
        except msgspec.ValidationError as error:
            problems.append(f"{source}={raw!r}: {str(error)[0].lower()}{str(error)[1:]}")
        problems += _not_finite(source, values.get(field.name))
    if problems:
        raise ConfigurationError("; ".join(problems))
    return kind(**values)


def refuse_wrong_types(settings: msgspec.Struct) -> None:
    """Refuse values of another type than their setting's: who makes settings in Python is not checked by anybody else.

    Raises:
        ConfigurationError: lists every one.
    """
    problems: list[str] = []
    for field in msgspec.structs.fields(type(settings)):
        value = getattr(settings, field.name)
        try:
            # A subclass, as numpy's float64 is, is a float too; msgspec takes those of int and str only.
            msgspec.convert(float(value) if isinstance(value, float) else value, field.type)
        except msgspec.ValidationError as error:
            reason = str(error)
            problems.append(f"{field.name}: {reason[0].lower()}{reason[1:]}")  # the value may hold a password
    if problems:
        raise ConfigurationError("; ".join(problems))


def not_finite(settings: msgspec.Struct) -> list[str]:
    """What to say of each setting that is infinite or no number: such a time never comes, and no comparison sees it."""
    values = msgspec.structs.asdict(settings)
    return [problem for name, value in values.items() for problem in _not_finite(name, value)]


def _not_finite(source: str, value: Any) -> list[str]:
    return [f"{source}={value} must be finite"] if isinstance(value, float) and not math.isfinite(value) else []


def _unknown(name: str) -> str:
    return f"unknown environment variable {name}; the known ones are listed in docs/settings.md"
