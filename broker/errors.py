"""The errors of `broker`, in one tree.

StokerError
├── ConfigurationError      a setting, an option or an environment variable is wrong
├── MessageError            bytes from the wire are not the message they should be
├── InvalidRequestError     a request cannot be run as it stands (also a ValueError)
│   └── UnsupportedParameterError
├── BrokerError             Redis cannot be used
│   ├── BrokerUnavailableError  it does not answer, or not now; retryable
│   └── BrokerRefusedError      it refuses a command, and would refuse it again
├── WorkerNameTakenError    a live session already has this worker name; retryable
├── IncompleteJobError      a job's client was lost before it had said that all requests are there
├── JobNotFoundError        the ledger has no such job (also a KeyError)
├── QueueFullError          as many requests or tokens wait as may; retryable
├── ExceedsLimitError       more at once than may ever wait
└── EmbeddedServerError     the private Valkey server could not be started
"""

from collections.abc import Sequence
from typing import Any, ClassVar


class StokerError(Exception):
    """Base of every error that Stoker raises. `code` is stable; `retryable` says if trying again can help."""

    code: ClassVar[str] = "internal_error"
    retryable: ClassVar[bool] = False

    def __str__(self) -> str:
        # KeyError would print the repr of its message.
        return str(self.args[0]) if self.args else self.code


class ConfigurationError(StokerError):
    """One or more settings are wrong; the message lists all of them."""

    code = "invalid_configuration"


class MessageError(StokerError):
    """A message does not decode; the message names the kind and the path of the offending field."""

    code = "invalid_message"


class InvalidRequestError(StokerError, ValueError):
    """A request cannot be run as it stands."""

    code = "invalid_request"


class UnsupportedParameterError(InvalidRequestError):
    """A request asks for a parameter that Stoker knows and does not offer."""

    code = "unsupported_parameter"


class BrokerError(StokerError):
    """Redis cannot be used."""

    code = "broker_error"


class BrokerUnavailableError(BrokerError, ConnectionError):
    """Redis cannot be reached, does not answer in time, or says that it cannot serve now."""

    code = "broker_unavailable"
    retryable = True


class BrokerRefusedError(BrokerError):
    """Redis refuses a command: a right that is missing, or a key of another type. Waiting does not help."""

    code = "broker_refused"


class WorkerNameTakenError(StokerError):
    """Another live session runs under this worker name."""

    code = "worker_name_taken"
    retryable = True


class JobNotFoundError(StokerError, KeyError):
    """The ledger holds no such job: a wrong id, or its results have expired."""

    code = "job_not_found"


class IncompleteJobError(StokerError):
    """A job ended without all that its client wanted to submit, as the client was lost; what was submitted is done.

    Where it comes instead of a job's outputs, `outputs` has those that there are, in request order.
    """

    code = "incomplete_job"

    def __init__(self, message: str, outputs: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.outputs = outputs


class QueueFullError(StokerError):
    """As many requests or tokens wait as may; nothing of what was sent was taken.

    `limit` names the limit and `most` is its value; `fill` is what counts towards it now, `wanted` what was to be
    added. `retry_after_s` is how long the room takes to come at the present speed, None when nothing moves. Of the
    requests that were sent, the first `fits` would be taken now.
    """

    code = "queue_full"
    retryable = True

    def __init__(
        self,
        message: str,
        *,
        limit: str,
        most: int,
        fill: int,
        wanted: int,
        retry_after_s: float | None = None,
        fits: int = 0,
    ) -> None:
        super().__init__(message)
        self.limit = limit
        self.most = most
        self.fill = fill
        self.wanted = wanted
        self.retry_after_s = retry_after_s
        self.fits = fits


class ExceedsLimitError(StokerError):
    """A request, or a job that is to be taken as a whole, is larger than what may ever wait."""

    code = "exceeds_limit"


class EmbeddedServerError(StokerError):
    """The private Valkey server could not be started."""

    code = "embedded_server_failed"
