"""A whole Stoker of real processes: Valkey, drivers and workers, which tests may kill as they like."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import redis

from broker.embedded import EmbeddedServer
from broker.errors import BrokerUnavailableError
from broker.lifeline import Lifeline
from broker.records import Session
from broker.settings import BrokerSettings
from broker.store import Store
from driver import Client, Job
from tests.support.leaks import leaked_keys
from tests.support.process import Process, Worker, children, descendants, stoker_command
from tests.support.waiting import wait_until

FAULTS = Path(__file__).parent / "faults"
HEARTBEAT_TIMEOUT_S = 3.0
TOKENS_PER_S = 100
SETTINGS = {
    "STOKER_HEARTBEAT_INTERVAL": "0.2",
    "STOKER_HEARTBEAT_TIMEOUT": str(HEARTBEAT_TIMEOUT_S),
    "STOKER_DETECTION_INTERVAL": "0.2",
    "STOKER_STALL_TIMEOUT": "2",
    "STOKER_ENGINE": "simulated",
    "STOKER_SIMULATED_FAULTS": "1",
    "STOKER_SIMULATED_TOKENS_PER_S": str(TOKENS_PER_S),
    "STOKER_RESTART_BACKOFF": "0",
    "STOKER_MAX_RESTARTS": "1000",
    "STOKER_DRAIN_TIMEOUT": "10",
    "STOKER_POISON_PAUSE": "1",
    "STOKER_LOG_LEVEL": "INFO",
}


class Cluster:
    """Starts with a server only; `stop` ends everything and checks that nothing is left.

    The server keeps its data and its port, and writes every command to the disk before it answers, or as `fsync` says.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None, *, fsync: str = "always") -> None:
        self.folder = folder
        self._fsync = fsync
        self.drivers: list[Process] = []
        self.workers: dict[str, Worker] = {}
        self._settings = SETTINGS | dict(settings or {})
        self._lifeline = Lifeline()
        self._commands: list[Process] = []
        self._started = 0
        self.server = EmbeddedServer(folder=folder / "valkey", fsync=fsync).start()
        self.port = self.server.port
        timeout_s = float(self._settings["STOKER_HEARTBEAT_TIMEOUT"])
        self.client = Client(
            settings=BrokerSettings(broker_url=self.url, heartbeat_interval=0.2, heartbeat_timeout=timeout_s)
        )

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def store(self) -> Store:
        return self.client.store

    @property
    def redis(self) -> redis.Redis:
        return self.store.redis

    @property
    def driver_log(self) -> str:
        """What all drivers have said so far."""
        return "".join(driver.log for driver in self.drivers)

    # Starting

    def start_driver(self, *, fault: str = "", settings: Mapping[str, str] | None = None) -> Process:
        driver = self.start_stoker("driver", fault=fault, settings=settings)
        self.drivers.append(driver)
        return driver

    def start_worker(self, name: str, *, fault: str = "", settings: Mapping[str, str] | None = None) -> Worker:
        worker = Worker(
            [sys.executable, "-m", "gpu_worker"],
            self.environment(fault=fault, settings={"STOKER_WORKER_NAME": f"{name}@e2e", **(settings or {})})
            | self._lifeline.environment(),
            self._log(name),
            pass_fds=self._lifeline.fds,
        )
        worker.name = f"{name}@e2e"
        self.workers[name] = worker
        return worker

    def ready(self, *names: str, timeout: float = 60.0) -> list[Session]:
        """Wait until these workers (all of the cluster's, if none are named) are ready; their sessions."""
        wanted = [self.workers[name] for name in names or self.workers]

        def sessions() -> list[Session]:
            rows = self.client.workers()
            # A session whose process was killed still looks ready for a while.
            found = [row for w in wanted for row in rows if row.state == "ready" and row.pid in descendants(w.pid)]
            return found if len(found) == len(wanted) and self.store.has_leader() else []

        return wait_until(sessions, timeout, what=lambda: f"ready workers {names}; there are {self.client.workers()}")

    def environment(self, *, fault: str = "", settings: Mapping[str, str] | None = None) -> dict[str, str]:
        """For a process of this cluster; `fault` names a function of `faults/injected.py`."""
        environment = {**os.environ, **self._settings, **(settings or {}), "STOKER_BROKER_URL": self.url}
        environment |= {"TMPDIR": tempfile.gettempdir(), "COLUMNS": "250"}
        if fault:
            path = os.pathsep.join(filter(None, (str(FAULTS), os.environ.get("PYTHONPATH"))))
            environment |= {"PYTHONPATH": path, "E2E_FAULT": fault}
        return environment

    def start_stoker(self, *arguments: str, fault: str = "", settings: Mapping[str, str] | None = None) -> Process:
        """Start a `stoker` command against this cluster, and leave it running."""
        return self._start(stoker_command(*arguments), arguments[0], self.environment(fault=fault, settings=settings))

    def start_client(self, program: str, *arguments: str, fault: str = "") -> Process:
        """Start a Python program that uses this cluster, and leave it running."""
        command = [sys.executable, "-c", program, *arguments]
        return self._start(command, "client", self.environment(fault=fault))

    def stoker(self, *arguments: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run the `stoker` command against this cluster."""
        return subprocess.run(
            stoker_command(*arguments),
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    # Looking

    def session(self, name: str) -> Session | None:
        """The newest session of a worker that is not dead."""
        rows = [row for row in self.client.workers() if row.worker == self.workers[name].name and row.state != "dead"]
        return max(rows, key=lambda row: row.epoch, default=None)

    def busy(self, name: str, tokens: int = 1) -> Session:
        """Wait until a worker generates, and has done so many tokens more since the call."""
        before = session.generated_tokens if (session := self.session(name)) else 0
        return wait_until(
            lambda: (row := self.session(name)) and row.running and row.generated_tokens >= before + tokens and row,
            what=f"{name} generates",
        )

    def busy_one(self, tokens: int = 1) -> str:
        """Wait until some worker generates, and has done so many tokens more since the call; its short name.

        Which one gets a small job is the driver's choice.
        """
        before = {row.id: row.generated_tokens for row in self.client.workers()}

        def found() -> str | None:
            rows = [(name, row) for name in self.workers if (row := self.session(name)) and row.running]
            return next((name for name, row in rows if row.generated_tokens >= before.get(row.id, 0) + tokens), None)

        return wait_until(found, what="a worker that generates")

    def other(self, name: str) -> str:
        """The short name of the other one of two workers."""
        (other,) = self.workers.keys() - {name}
        return other

    def saved_tokens(self, job: Job) -> dict[int, tuple[int, ...]]:
        """The tokens that checkpoints hold, by request."""
        saved = self.redis.hgetall(self.store.keys.job(job.id).checkpoints)
        return {int(index): msgspec.msgpack.decode(tokens, type=tuple[int, ...]) for index, tokens in saved.items()}

    def generated_tokens(self) -> int:
        """Tokens that the workers who live now have generated, as of their last beats."""
        return sum(row.generated_tokens for row in self.client.workers())

    def settled(self) -> int:
        """Wait until every worker has reported that it has nothing in hand; tokens generated by then."""

        def reported() -> list[Session]:
            rows = self.client.workers()
            idle = all(row.running + row.waiting + row.inhand_requests == 0 for row in rows)
            return rows if idle else []

        beats = {row.id: row.beat_ms for row in wait_until(reported, what="idle workers")}
        wait_until(lambda: all(row.beat_ms > beats.get(row.id, 0) for row in self.client.workers()), what="a new beat")
        return self.generated_tokens()

    def unfinished(self) -> list[str]:
        """Open jobs, batches, and what waits in queues or is unacknowledged."""
        found = [f"job {job.decode()}" for job in self.redis.zrange(self.store.keys.jobs, 0, -1)]
        for pattern in ("gpu.*", "*:unacked", "*:unacked_index", "*:batch:*"):
            found += [key.decode() for key in self.redis.scan_iter(pattern, count=1000)]
        return found

    # The server

    def stop_server(self) -> None:
        """End the server in order; its data stays."""
        self.server.stop()

    def kill_server(self) -> None:
        """kill -9 of the server itself."""
        for pid in children(self.server.pid):
            os.kill(pid, signal.SIGKILL)
        self.server.stop()

    def restart_server(self) -> None:
        """Start the server again on its port, with its data."""
        self.server = EmbeddedServer(port=self.port, folder=self.folder / "valkey", fsync=self._fsync).start()
        wait_until(self._server_answers, what="an answer of the server")

    # Ending

    def end_worker(self, name: str) -> int:
        """Take a worker out; its exit code."""
        return self.workers.pop(name).end()

    def end_drivers(self) -> None:
        for driver in self.drivers:
            driver.end()
        self.drivers.clear()

    def assert_clean(self) -> None:
        """Nothing is open, nothing waits in a queue, and no key is left that nobody would remove."""
        wait_until(lambda: not self.unfinished(), what=lambda: f"the end of {self.unfinished()}")
        wait_until(lambda: not leaked_keys(self.store), what=lambda: f"the end of {leaked_keys(self.store)}")

    def stop(self) -> None:
        """End everything. Fails when a process, a port, a temporary folder or a key is left."""
        try:
            self._end_in_order()
        finally:
            for process in (*self.workers.values(), *self._commands):
                process.end()
            self.client.close()
            self._lifeline.close()
            self.server.stop()
        assert not self._server_answers(), f"port {self.port} still answers"

    def _end_in_order(self) -> None:
        if self.client.workers() and not any(driver.is_running for driver in self.drivers):
            self.start_driver()
        for name in list(self.workers):
            self.end_worker(name)
        wait_until(lambda: not self.client.workers(), what="the driver has buried every session")
        self.assert_clean()

    def _server_answers(self) -> bool:
        try:
            return self.store.answers()
        except BrokerUnavailableError:
            return False

    def _start(self, command: Sequence[str], name: str, environment: Mapping[str, str]) -> Process:
        environment = {**environment, **self._lifeline.environment()}
        process = Process(command, environment, self._log(name), pass_fds=self._lifeline.fds)
        self._commands.append(process)
        return process

    def _log(self, name: str) -> Path:
        self._started += 1
        return self.folder / f"{self._started}-{name}.log"
