"""Stoker's control side, and what users import: the client, and the driver on one machine.

Every name is loaded when it is first asked for: a command can be interrupted from its first moment on, and a client
does without what only the facade needs (Celery takes as long to import as all the rest).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from broker.chat import ChatMessage
    from broker.errors import (
        BrokerRefusedError,
        BrokerUnavailableError,
        ConfigurationError,
        ExceedsLimitError,
        IncompleteJobError,
        InvalidRequestError,
        JobNotFoundError,
        QueueFullError,
        StokerError,
    )
    from broker.messages import FinishReason, Output, OutputError, OutputSource, Request, SamplingParams, Usage
    from broker.states import JobState
    from driver.client import Client
    from driver.deltas import Delta
    from driver.driver import Driver
    from driver.job import Job, Progress
    from driver.settings import DriverSettings

__all__ = [
    "BrokerRefusedError",
    "BrokerUnavailableError",
    "ChatMessage",
    "Client",
    "ConfigurationError",
    "Delta",
    "Driver",
    "DriverSettings",
    "ExceedsLimitError",
    "FinishReason",
    "IncompleteJobError",
    "InvalidRequestError",
    "Job",
    "JobNotFoundError",
    "JobState",
    "Output",
    "OutputError",
    "OutputSource",
    "Progress",
    "QueueFullError",
    "Request",
    "SamplingParams",
    "StokerError",
    "Usage",
]

_HOMES = {
    "driver.client": ("Client",),
    "driver.deltas": ("Delta",),
    "driver.driver": ("Driver",),
    "driver.job": ("Job", "Progress"),
    "driver.settings": ("DriverSettings",),
    "broker.chat": ("ChatMessage",),
    "broker.states": ("JobState",),
    "broker.errors": (
        "BrokerRefusedError",
        "BrokerUnavailableError",
        "ConfigurationError",
        "ExceedsLimitError",
        "IncompleteJobError",
        "InvalidRequestError",
        "JobNotFoundError",
        "QueueFullError",
        "StokerError",
    ),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'driver' has no attribute {name!r}")
    return getattr(import_module(_HOME.get(name, "broker.messages")), name)
