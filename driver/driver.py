"""The whole of Stoker on one machine, behind one object: broker, driver, workers, and a simple task interface."""

import shutil
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from broker.bounds import WORKER_LIMIT, parse_bounds
from broker.clock import SystemClock
from broker.embedded import EmbeddedServer
from broker.errors import JobNotFoundError
from broker.records import ScaleMode
from broker.settings import BrokerSettings, load_broker_settings
from broker.states import WorkerState
from broker.store import Store
from driver import availability
from driver.client import Client
from driver.errors import DriverStateError, TaskNotFoundError
from driver.monitor import Monitor
from driver.scalers.base import Scaler
from driver.scalers.command import command_scaler
from driver.scalers.local import LocalWorkers
from driver.scalers.share import LocalShare, requests_in_hand
from driver.service import DriverService
from driver.settings import DriverSettings
from driver.task import task_request, task_result

READY_TIMEOUT_S = 600.0

PartT = TypeVar("PartT")


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
        log_folder: Path | None = None,
    ) -> None:
        self.settings = settings or DriverSettings()
        self._worker_environment = dict(worker_environment or {})
        self._port = port
        self._kept_log_folder = log_folder
        self._started = False
        self._log_folder: Path | None = None
        self._own_log_folder: Path | None = None
        self._server: EmbeddedServer | None = None
        self._client: Client | None = None
        self._workers: LocalWorkers | None = None
        self._service: DriverService | None = None
        self._threads: list[threading.Thread] = []
        self._stopped = threading.Event()
        self._monitor: Monitor | None = None

    @property
    def client(self) -> Client:
        """A client of this driver's broker."""
        return _started(self._client)

    @property
    def broker_url(self) -> str:
        """The broker that is used."""
        return self.client.store.url

    @property
    def log_folder(self) -> Path:
        """Where the workers' logs are."""
        return _started(self._log_folder)

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
            self._start()
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
        monitor = _started(self._monitor)
        self._refuse_stopped()
        monitor.wait_until_ready(timeout, self._ready_workers)
        return self

    def check(self) -> None:
        """Make sure that workers of this machine are left, or on their way.

        Raises:
            WorkerStartError: all have given up; the message says why. `scale_workers` tries again.
        """
        _started(self._monitor).check()

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
        workers = _started(self._workers)
        self._refuse_decided()
        _started(self._monitor).forget()
        workers.scale(count, requests_in_hand(self.client.workers()))

    def stop(self) -> None:
        """Stop everything that was started: workers first, the broker last. Safe to call twice."""
        self._stopped.set()
        if self._monitor is not None:
            self._monitor.stop()
        if self._workers is not None:
            self._workers.stop()
        if self._service is not None:
            self._service.stop()
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        if self._client is not None:
            self._client.close()
        if self._server is not None:
            self._server.stop()
        if self._own_log_folder is not None:
            shutil.rmtree(self._own_log_folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self) -> None:
        broker = self._open_broker()
        self._log_folder = self._make_log_folder()
        self._client = _OwnClient(self, broker)
        self._client.store.check()
        self._workers = LocalWorkers(self._environment(broker), self._log_folder)
        self._service = DriverService(Store(broker), self.settings, SystemClock(), self._scaler(self._workers))
        self._workers.scale(self._first_count())
        self._monitor = Monitor(self._workers, self._server, self.settings.worker_monitor_interval)
        for name, target in (("driver", self._service.run), ("worker-monitor", self._monitor.run)):
            thread = threading.Thread(target=target, name=f"stoker-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _open_broker(self) -> BrokerSettings:
        if self.settings.broker_url:
            return load_broker_settings(broker_url=self.settings.broker_url)
        self._server = EmbeddedServer(port=self._port)  # known before it runs: an interrupt must find it
        self._server.start()
        return load_broker_settings(broker_url=self._server.url)

    def _make_log_folder(self) -> Path:
        if self._kept_log_folder is not None:
            folder = self._kept_log_folder
        elif self._server is not None:
            folder = self._server.folder / "logs"  # goes with the server's, also when this process is killed
        else:
            folder = self._own_log_folder = Path(tempfile.mkdtemp(prefix="stoker-logs-"))
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _environment(self, broker: BrokerSettings) -> dict[str, str]:
        environment = {"STOKER_BROKER_URL": broker.broker_url, "STOKER_MODEL": self.settings.model}
        if self.settings.engine:
            environment["STOKER_ENGINE"] = self.settings.engine
        return environment | self._worker_environment

    def _scaler(self, workers: LocalWorkers) -> Scaler:
        """Who starts and stops workers: the user's command, if there is one, else this machine."""
        return command_scaler(self.settings) or LocalShare(workers)

    def _first_count(self) -> int:
        count = self.settings.initial_worker_count
        if not self.settings.autoscale:
            return count
        bounds = parse_bounds(self.settings.autoscale)
        return min(max(count, bounds.least), bounds.most)

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
        own = _started(self._workers).instances
        return len({row.instance for row in self.client.workers() if row.state == WorkerState.READY} & own)


class _OwnClient(Client):
    """The client of a `Driver`: who waits on it learns that the workers have given up."""

    def __init__(self, driver: Driver, settings: BrokerSettings) -> None:
        super().__init__(settings=settings)
        self._driver = driver

    def obstacle(self, model: str = "") -> str | None:
        reason = availability.obstacle(self.store, model, private=not self._driver.settings.broker_url)
        if reason is not None:
            self._driver.check()
        return reason


def _started(part: PartT | None) -> PartT:
    if part is None:
        raise DriverStateError("this Driver is not started: call start(), or use it in a with-block")
    return part
