"""Stoker's control side, and what users import: the client, and the driver on one machine."""

from typing import TYPE_CHECKING, Any

from broker.errors import (
    BrokerUnavailableError,
    ConfigurationError,
    InvalidRequestError,
    JobNotFoundError,
    StokerError,
)
from broker.messages import (
    ChatMessage,
    FinishReason,
    JobState,
    Output,
    OutputError,
    Request,
    SamplingParams,
    Usage,
)
from driver.client import Client
from driver.job import Job, Progress
from driver.settings import DriverSettings

if TYPE_CHECKING:
    from driver.driver import Driver

__all__ = [
    "BrokerUnavailableError",
    "ChatMessage",
    "Client",
    "ConfigurationError",
    "Driver",
    "DriverSettings",
    "FinishReason",
    "InvalidRequestError",
    "Job",
    "JobNotFoundError",
    "JobState",
    "Output",
    "OutputError",
    "Progress",
    "Request",
    "SamplingParams",
    "StokerError",
    "Usage",
]


def __getattr__(name: str) -> Any:
    # The facade needs Celery, which takes as long to import as all the rest; a client does without.
    if name == "Driver":
        from driver.driver import Driver

        return Driver
    raise AttributeError(f"module 'driver' has no attribute {name!r}")
