"""The errors of `driver`, in one tree below `broker.errors.StokerError`.

StokerError
├── RequestFailedError   a request has an output with an error instead of text
├── TaskNotFoundError    the facade knows no such task (also a KeyError)
├── NotFinishedError     a job or task is not done in time (also a TimeoutError)
├── WorkerStartError     a local worker could not be started
├── DriverStateError     a `Driver` is asked for what it cannot do now (also a RuntimeError)
└── BrokerError
    └── BrokerUnavailableError
        └── UnconfirmedError  nobody knows whether Redis has done what it was told
"""

from broker.errors import BrokerUnavailableError, StokerError


class RequestFailedError(StokerError):
    """A request has an output with an error; `error_code` is that error's code."""

    code = "request_failed"

    def __init__(self, error_code: str, message: str) -> None:
        super().__init__(f"{error_code}: {message}")
        self.error_code = error_code


class TaskNotFoundError(StokerError, KeyError):
    """The facade knows no task of this id."""

    code = "task_not_found"


class NotFinishedError(StokerError, TimeoutError):
    """A job or task is not done in time; it goes on, and can be asked for again."""

    code = "not_finished"
    retryable = True


class WorkerStartError(StokerError):
    """A worker on this machine could not be started; the message holds the last line of its log."""

    code = "worker_start_failed"


class DriverStateError(StokerError, RuntimeError):
    """A `Driver` is not started, was started before, or was stopped."""

    code = "wrong_driver_state"


class UnconfirmedError(BrokerUnavailableError):
    """Redis was told to change something and has not answered in time; it may have done it, or not."""

    code = "not_confirmed"
