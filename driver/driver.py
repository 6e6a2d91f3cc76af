"""The whole of Stoker on one machine, behind one object: broker, driver, workers, and a simple task interface."""

import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from broker.bounds import WORKER_LIMIT
from broker.errors import ConfigurationError, JobNotFoundError
from broker.records import ScaleMode
from broker.states import WorkerState
from driver.client import Client
from driver.errors import DriverStateError, TaskNotFoundError
from driver.installation import Installation
from driver.scalers.share import requests_in_hand
from driver.settings import DriverSettings
from driver.task import task_request, task_result

READY_TIMEOUT_S = 600.0


class Driver:
    """Starts a broker (unless one is given), a driver and workers on this machine. `start`, use, `stop`.

    Every process that it starts ends with it. Used before `start`, started twice, or started again after `stop`, it
    raises a DriverStateError.

    Raises:
        ConfigurationError: a setting or an environment variable is wrong.
    """

    def __init__(
        self,
        settings: DriverSettings | None = None,
        *,
        worker_environment: Mapping[str, str] | None = None,
        port: int = 0,
        log_folder: str | Path | None = None,
    ) -> None:
        self.settings = settings or DriverSettings()
        if self.settings.broker_url and port:
            raise ConfigurationError(f"port={port} is for a broker of its own, and broker_url names one: leave one out")
        self._parts = Installation(
            self.settings, worker_environment=worker_environment, port=port, log_folder=log_folder
        )
        self._started = False
        self._stopped = threading.Event()

    @property
    def client(self) -> Client:
        """A client of this driver's broker."""
        return self._parts.client

    @property
    def broker_url(self) -> str:
        """The broker that is used."""
        return self.client.store.url

    @property
    def log_folder(self) -> Path:
        """Where the workers' logs are."""
        return self._parts.log_folder

    def start(self) -> Self:
        """Start everything; workers load their models in the background, and work waits for them.

        Raises:
            EmbeddedServerError: no broker was given and none could be started.
            BrokerUnavailableError: the given broker does not answer.
        """
        self._refuse_stopped()
        if self._started:
            raise DriverStateError("this Driver was started before; make another one")
        self._started = True
        try:
            self._parts.start()
        except BaseException:
            self.stop()
            raise
        return self

    def wait_until_ready(self, timeout: float = READY_TIMEOUT_S) -> Self:
        """Wait until every worker has loaded its model.

        Raises:
            WorkerStartError: a worker could not start; the message says why.
            NotFinishedError: they are not ready within `timeout` seconds (also a TimeoutError).
        """
        monitor = self._parts.monitor
        self._refuse_stopped()
        monitor.wait_until_ready(timeout, self._ready_workers)
        return self

    def check(self) -> None:
        """Make sure that workers of this machine are left, or on their way.

        Raises:
            WorkerStartError: all have given up; the message says why. `scale_workers` tries again.
        """
        self._parts.monitor.check()

    def submit_task(self, task: Mapping[str, Any]) -> str:
        """Submit one request: `input_ids`, `prompt` or `messages`, with `max_new_tokens`, `temperature`, `top_p`, ….

        Returns the task's id, which is a Celery task id too.

        Raises:
            InvalidRequestError: a field is unknown or its value does not fit.
            QueueFullError: as much waits as may; `retry_after_s` says when to try again.
        """
        return self.client.submit([task_request(task)], model=self.settings.model).id

    def get_result(self, task_id: str, timeout: float | None = None) -> dict[str, Any]:
        """A task's result: `generated_text`, `input_ids`, `output_ids`, `worker_id`, `finish_reason`.

        With `logprobs` and `n` asked for there are `logprobs` and `choices`, too.

        Raises:
            TaskNotFoundError: no such task (also a KeyError).
            NotFinishedError: it is not done within `timeout` seconds (also a TimeoutError).
            RequestFailedError: it failed; `error_code` says why.
            WorkerStartError: this machine's workers have given up, and there is no other.
        """
        try:
            output = self.client.job(task_id).get(timeout)[0]
        except JobNotFoundError as error:
            raise TaskNotFoundError(f"no task {task_id!r}") from error
        return task_result(output)

    def scale_workers(self, count: int) -> None:
        """Have `count` workers on this machine; returns when those that are too many have ended.

        Those with the least in hand go, and finish it or give it back first.

        Raises:
            ValueError: the count is no number of workers.
            DriverStateError: the number is decided elsewhere: by `autoscale`, or by `stoker scale`.
        """
        if type(count) is not int or not 0 <= count <= WORKER_LIMIT:
            raise ValueError(f"count must be a whole number from 0 to {WORKER_LIMIT}, not {count!r}")
        self._refuse_stopped()
        workers = self._parts.workers
        self._refuse_decided()
        self._parts.monitor.forget()
        workers.scale(count, requests_in_hand(self.client.workers()))

    def stop(self) -> None:
        """Stop everything that was started: workers first, the broker last. Safe to call twice."""
        self._stopped.set()
        self._parts.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _refuse_decided(self) -> None:
        """Two who decide would undo each other's work."""
        record = self.client.store.scale.read()
        if record.mode is not ScaleMode.DRIVER:
            raise DriverStateError(
                "the number of workers is set with `stoker scale`; `stoker scale auto` takes it back"
            )
        if self.settings.autoscale:
            raise DriverStateError(f"this Driver keeps between {self.settings.autoscale} workers itself (autoscale)")

    def _refuse_stopped(self) -> None:
        if self._stopped.is_set():
            raise DriverStateError("this Driver was stopped; make another one")

    def _ready_workers(self) -> int:
        """Workers of this machine that are ready; a shared broker has others, too."""
        own = self._parts.workers.instances
        return len({row.instance for row in self.client.workers() if row.state == WorkerState.READY} & own)
