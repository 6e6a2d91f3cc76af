"""The settings of a driver, and of the worker/driver facade on one machine."""

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from broker.bounds import WORKER_LIMIT, parse_bounds
from broker.environment import load, not_finite, refuse_wrong_types
from broker.errors import ConfigurationError, InvalidRequestError
from broker.records import Policy

DEFAULT_MODEL = "smollm2-135m"
ABOVE_ZERO = (
    "schedule_interval",
    "ageing",
    "worker_monitor_interval",
    "detection_interval",
    "stall_timeout",
    "drain_target",
    "trend_window",
    "scale_command_timeout",
    "switch_backlog",
    "switch_stay",
)


class DriverSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a driver schedules and watches; durations are in seconds.

    `model` and `initial_worker_count` are for the facade `Driver`, which starts workers on this machine; `broker_url`
    empty means a private embedded server there.

    Raises:
        ConfigurationError: lists every value that does not fit.
    """

    model: str = DEFAULT_MODEL
    initial_worker_count: int = 1
    broker_url: str = ""
    engine: str = ""  # the worker's default if empty
    schedule_interval: float = 0.1
    batch_size: int = 32  # requests; so many more as a worker has more than 128 slots
    batch_tokens: int = 16_384  # estimated prompt tokens plus max_tokens of a batch; more likewise
    max_batch_delay: float = 0.5  # how long a batch for a worker with nothing idle may wait to fill
    ageing: float = 60.0  # a job that waits unserved rises one priority every so many seconds
    user_weights: str = ""  # of users' shares, as in alice=2,bob=0.5; 1 for all others
    worker_monitor_interval: float = 5.0
    detection_interval: float = 1.0
    stall_timeout: float = 60.0  # a worker with work in hand and no engine step for so long hangs
    failure_threshold: int = 3  # missed heartbeats before a worker is suspect
    max_pending_requests: int = 0  # submitted, with no output yet; 0: no limit
    max_pending_tokens: int = 0  # estimated prompt tokens plus max_tokens of these
    max_user_pending_requests: int = 0  # the same of one user
    max_user_pending_tokens: int = 0
    autoscale: str = ""  # MIN,MAX workers; empty: their number is nobody's business but people's
    drain_target: float = 60.0  # as many workers are wanted as do all work in so long
    scale_in_cooldown: float = 120.0  # so long fewer workers must have been enough before one is stopped
    trend_window: float = 60.0  # growth of the work that goes on for so long is expected to go on
    scale_command: str = ""  # starts and stops workers; {n} is the number wanted
    scale_command_timeout: float = 60.0
    share_identical: bool = True  # generate what must be the same once for all of a job
    result_cache_ttl: int = 0  # how long such outputs serve other jobs; 0: not at all
    result_cache_mib: int = 64
    switch_models: str = ""  # NAME or NAME=MODEL, …: what idle workers may be switched to by backlog
    switch_backlog: float = 30.0  # a backlog that lasts longer calls for one more worker
    switch_stay: float = 120.0  # so long a worker stays with a new model

    def __post_init__(self) -> None:
        """Refuse values that cannot work, all at once."""
        refuse_wrong_types(self)
        problems = [
            f"{name}={getattr(self, name):g} must be above 0" for name in ABOVE_ZERO if not getattr(self, name) > 0
        ]
        problems += [
            f"{name}={getattr(self, name)} must be at least {least}"
            for name, least in (
                ("initial_worker_count", 0),
                ("batch_size", 1),
                ("batch_tokens", 1),
                ("failure_threshold", 1),
                *((name, 0) for name in Policy.__struct_fields__),
                ("scale_in_cooldown", 0),
            )
            if getattr(self, name) < least
        ]
        if self.initial_worker_count > WORKER_LIMIT:
            problems.append(f"initial_worker_count={self.initial_worker_count} must be at most {WORKER_LIMIT}")
        if self.max_batch_delay < 0:
            problems.append(f"max_batch_delay={self.max_batch_delay:g} must not be negative")
        try:
            _user_weights(self.user_weights)
        except ValueError as error:
            problems.append(str(error))
        problems += not_finite(self)
        problems += _autoscale_problem(self.autoscale)
        if not all((*models_to_switch(self), *models_to_switch(self).values())):
            problems.append(f"switch_models={self.switch_models!r} must be names, or NAME=MODEL, with commas between")
        if not self.model:
            problems.append("model must not be empty")
        if problems:
            raise ConfigurationError("; ".join(problems))

    def policy(self) -> Policy:
        """What this driver sets for everybody while it leads."""
        return Policy(**{name: getattr(self, name) for name in Policy.__struct_fields__})

    @property
    def weights_of_users(self) -> dict[str, float]:
        """The weights of users' shares, by user."""
        return _user_weights(self.user_weights)


def _user_weights(text: str) -> dict[str, float]:
    weights: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        user, _, weight = part.rpartition("=")
        try:
            weights[user.strip()] = float(weight)
        except ValueError:
            raise ValueError(f"user_weights: {part!r} is not user=weight") from None
        if not 0.001 <= weights[user.strip()] <= 1000:
            raise ValueError(f"user_weights: {part!r} must have a weight from 0.001 to 1000")
    return weights


def _autoscale_problem(text: str) -> list[str]:
    try:
        if text:
            parse_bounds(text)
    except InvalidRequestError as error:
        return [f"autoscale: {error}"]
    return []


def models_to_switch(settings: DriverSettings) -> dict[str, str]:
    """What idle workers may be switched to: what requests call a model, and where it is."""
    parts = [item.partition("=") for item in settings.switch_models.split(",")] if settings.switch_models else []
    return {name.strip(): (model if mark else name).strip() for name, mark, model in parts}


class _Drain(msgspec.Struct, frozen=True, kw_only=True):
    drain_timeout: float = 30.0  # as a worker reads it


def drain_timeout_of_workers(environment: Mapping[str, str]) -> float:
    """How long workers drain, in seconds, that are started with this added to the environment of this process.

    Raises:
        ConfigurationError: the value does not fit.
    """
    variable = "STOKER_DRAIN_TIMEOUT"
    return load(_Drain, {variable: {**os.environ, **environment}.get(variable, "")}).drain_timeout


def load_driver_settings(environ: Mapping[str, str] | None = None, **overrides: Any) -> DriverSettings:
    """Driver settings from the environment (`STOKER_BATCH_SIZE`, …); keyword arguments win.

    Raises:
        ConfigurationError: an unknown `STOKER_*` variable, or a value that does not fit.
    """
    return load(DriverSettings, os.environ if environ is None else environ, overrides)
