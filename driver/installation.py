"""What a `Driver` runs on this machine: a broker (unless one is given), a driver, workers, and who looks after them."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from broker.bounds import parse_bounds
from broker.clock import SystemClock
from broker.embedded import EmbeddedServer
from broker.errors import ConfigurationError
from broker.settings import BrokerSettings, load_broker_settings
from broker.store import Store
from broker.values import is_whole_number, shown
from driver import availability
from driver.background import Background
from driver.client import Client
from driver.errors import DriverStateError
from driver.monitor import Monitor
from driver.own_folder import OwnFolder
from driver.scalers.base import Scaler
from driver.scalers.command import command_scaler
from driver.scalers.local import LocalWorkers
from driver.scalers.share import LocalShare
from driver.service import DriverService
from driver.settings import DriverSettings

MAX_PORT = 65_535

PartT = TypeVar("PartT")


class Installation:
    """Starts its parts one after another and stops them in the opposite order, also when the start was interrupted.

    Asked for a part before its start, it raises a DriverStateError.
    """

    def __init__(
        self,
        settings: DriverSettings,
        *,
        worker_environment: Mapping[str, str] | None = None,
        port: int = 0,
        log_folder: str | Path | None = None,
    ) -> None:
        """`port` is the embedded broker's, 0 for a free one. Without `log_folder` the logs go with the rest.

        Raises:
            ConfigurationError: `port` is no port.
        """
        if not is_whole_number(port) or not 0 <= port <= MAX_PORT:
            raise ConfigurationError(f"port must be a whole number from 0 to {MAX_PORT}, not {shown(port)}")
        self._settings = settings
        self._worker_environment = dict(worker_environment or {})
        self._port = port
        self._kept_log_folder = None if log_folder is None else Path(log_folder)
        self._own_log_folder: OwnFolder | None = None
        self._server: EmbeddedServer | None = None
        self._loops: list[Background] = []
        self._client: Client | None = None
        self._log_folder: Path | None = None
        self._workers: LocalWorkers | None = None
        self._monitor: Monitor | None = None

    @property
    def client(self) -> Client:
        """A client of the broker that is used; who waits on it learns that the workers have given up."""
        return _started(self._client)

    @property
    def log_folder(self) -> Path:
        """Where the workers' logs are."""
        return _started(self._log_folder)

    @property
    def workers(self) -> LocalWorkers:
        """The workers of this machine."""
        return _started(self._workers)

    @property
    def monitor(self) -> Monitor:
        """Who looks after them."""
        return _started(self._monitor)

    def start(self) -> None:
        """Start everything; workers load their models in the background.

        Raises:
            EmbeddedServerError: no broker was given and none could be started.
            BrokerUnavailableError: the given broker does not answer.
        """
        broker = self._open_broker()
        self._log_folder = self._make_log_folder()
        self._client = _OwnClient(self, broker, private=self._server is not None)
        self._client.store.check()
        self._workers = LocalWorkers(self._environment(broker), self._log_folder)
        service = DriverService(Store(broker), self._settings, SystemClock(), self._scaler(self._workers))
        self._workers.scale(self._first_count())
        self._monitor = Monitor(self._workers, self._server, self._settings.worker_monitor_interval)
        for name, loop in (("driver", service), ("worker-monitor", self._monitor)):
            self._loops.append(Background(name, loop.run, loop.stop))
            self._loops[-1].start()

    def stop(self) -> None:
        """Stop everything that was started: workers first, the broker last. Safe to call twice."""
        if self._monitor is not None:
            self._monitor.stop()
        if self._workers is not None:
            self._workers.stop()
        for loop in self._loops:
            loop.stop()
        for loop in self._loops:
            loop.join()
        self._loops.clear()
        if self._client is not None:
            self._client.close()
        if self._server is not None:
            self._server.stop()
        if self._own_log_folder is not None:
            self._own_log_folder.remove()

    def _open_broker(self) -> BrokerSettings:
        if self._settings.broker_url:
            return load_broker_settings(broker_url=self._settings.broker_url)
        self._server = EmbeddedServer(port=self._port)  # known before it runs: an interrupt must find it
        self._server.start()
        return load_broker_settings(broker_url=self._server.url)

    def _make_log_folder(self) -> Path:
        if self._kept_log_folder is not None:
            folder = self._kept_log_folder
        elif self._server is not None:
            folder = self._server.folder / "logs"  # goes with the server's, also when this process is killed
        else:
            self._own_log_folder = OwnFolder("stoker-logs-")
            folder = self._own_log_folder.path
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise ConfigurationError(f"the logs cannot be kept in {folder}: a file is in its place") from error
        return folder

    def _environment(self, broker: BrokerSettings) -> dict[str, str]:
        environment = {"STOKER_BROKER_URL": broker.broker_url, "STOKER_MODEL": self._settings.model}
        if self._settings.engine:
            environment["STOKER_ENGINE"] = self._settings.engine
        return environment | self._worker_environment

    def _scaler(self, workers: LocalWorkers) -> Scaler:
        """Who starts and stops workers: the user's command, if there is one, else this machine."""
        return command_scaler(self._settings) or LocalShare(workers)

    def _first_count(self) -> int:
        count = self._settings.initial_worker_count
        if not self._settings.autoscale:
            return count
        bounds = parse_bounds(self._settings.autoscale)
        return min(max(count, bounds.least), bounds.most)


class _OwnClient(Client):
    def __init__(self, installation: Installation, settings: BrokerSettings, *, private: bool) -> None:
        super().__init__(settings=settings)
        self._installation = installation
        self._private = private

    def obstacle(self, model: str = "") -> str | None:
        reason = availability.obstacle(self.store, model, private=self._private)
        if reason is not None:
            self._installation.monitor.check()
        return reason


def _started(part: PartT | None) -> PartT:
    if part is None:
        raise DriverStateError("this Driver is not started: call start(), or use it in a with-block")
    return part
