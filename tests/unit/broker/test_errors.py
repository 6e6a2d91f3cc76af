import pytest

import broker.errors
import driver.errors
import gpu_worker.engine.errors
from broker.errors import InvalidRequestError, JobNotFoundError, StokerError

# Clients compare these; a code once published never changes.
CODES = {
    "StokerError": "internal_error",
    "ConfigurationError": "invalid_configuration",
    "MessageError": "invalid_message",
    "InvalidRequestError": "invalid_request",
    "UnsupportedParameterError": "unsupported_parameter",
    "BrokerError": "broker_error",
    "BrokerUnavailableError": "broker_unavailable",
    "BrokerRefusedError": "broker_refused",
    "WorkerNameTakenError": "worker_name_taken",
    "JobNotFoundError": "job_not_found",
    "IncompleteJobError": "incomplete_job",
    "QueueFullError": "queue_full",
    "ExceedsLimitError": "exceeds_limit",
    "EmbeddedServerError": "embedded_server_failed",
    "RequestFailedError": "request_failed",
    "TaskNotFoundError": "task_not_found",
    "NotFinishedError": "not_finished",
    "WorkerStartError": "worker_start_failed",
    "DriverStateError": "wrong_driver_state",
    "UnconfirmedError": "not_confirmed",
    "ContextLengthExceededError": "context_length_exceeded",
    "EngineDeadError": "engine_dead",
    "NoRoomError": "no_room",
}
RETRYABLE = {
    "BrokerUnavailableError",
    "UnconfirmedError",
    "WorkerNameTakenError",
    "NotFinishedError",
    "EngineDeadError",
    "NoRoomError",
    "QueueFullError",
}
MODULES = (broker.errors, driver.errors, gpu_worker.engine.errors)
ERRORS = {
    kind
    for module in MODULES
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, StokerError)
}


def test_codes_are_stable():
    assert {kind.__name__: kind.code for kind in ERRORS} == CODES


def test_codes_are_unique():
    assert len(set(CODES.values())) == len(CODES)


def test_what_may_be_tried_again_says_so():
    assert {kind.__name__ for kind in ERRORS if kind.retryable} == RETRYABLE


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_tree_in_the_docstring_names_every_error_of_the_module(module):
    own = [kind for kind in ERRORS if kind.__module__ == module.__name__]
    assert own
    assert all(kind.__name__ in module.__doc__ for kind in own)


def test_errors_are_also_what_python_calls_them():
    assert issubclass(InvalidRequestError, ValueError)
    assert issubclass(JobNotFoundError, KeyError)
    assert issubclass(broker.errors.BrokerUnavailableError, ConnectionError)
    assert issubclass(driver.errors.NotFinishedError, TimeoutError)
    assert issubclass(driver.errors.TaskNotFoundError, KeyError)


def test_the_message_is_shown_as_it_is():
    assert str(JobNotFoundError("no job x")) == "no job x"
    assert str(JobNotFoundError()) == "job_not_found"


def test_a_failed_request_names_its_code():
    error = driver.errors.RequestFailedError("cancelled", "the job was cancelled")
    assert (error.error_code, str(error)) == ("cancelled", "cancelled: the job was cancelled")
