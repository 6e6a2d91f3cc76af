"""The worker process: a Celery worker whose `worker_process_init` loads the engine and keeps it.

Started by the supervisor, which has already pinned the device; nothing here imports torch before the engine loads.
"""

import logging
import mmap
import os
import signal
import socket
import sys
import time
import uuid
import warnings
from typing import Any

from celery import Celery, signals
from celery.exceptions import CPendingDeprecationWarning, SecurityWarning

from broker import lifeline, panel
from broker.celery_app import create_app, worker_queue
from broker.environment import PREFIX
from broker.errors import BrokerError, ConfigurationError, StokerError, WorkerNameTakenError
from broker.keys import Keys
from broker.settings import BrokerSettings, load_broker_settings
from broker.store import Store
from gpu_worker import tasks
from gpu_worker.control import Control
from gpu_worker.engine.catalog import create_engine
from gpu_worker.events import EventsInGroups
from gpu_worker.exits import EXIT_CONFIGURATION, EXIT_NAME_TAKEN, end_process
from gpu_worker.extension import Extension, ExtensionContext
from gpu_worker.runtime import Runtime
from gpu_worker.settings import WorkerSettings, load_worker_settings
from gpu_worker.telemetry import Telemetry

logger = logging.getLogger(__name__)

INSTANCE = PREFIX + "INTERNAL_INSTANCE"
MODEL_LOAD_LIMIT_S = 1800.0
MONITOR_BEAT_S = 20.0

POOLS = {"engine": "gpu_worker.pool:EnginePool", "solo": "solo", "prefork": "prefork"}


def main() -> int:
    """Run the worker until it is told to stop. Returns the exit code."""
    lifeline.watch(os.environ, lambda: os.kill(os.getpid(), signal.SIGKILL))
    settings = load_worker_settings()
    _set_up_logging(settings)
    broker = load_broker_settings()
    session_id = uuid.uuid4().hex
    try:
        app = create_app(broker, Keys(broker.namespace).session(session_id))
    except ConfigurationError as error:
        end_process(EXIT_CONFIGURATION, str(error))
    tasks.register(app)
    panel.register(tasks.answer)
    app.conf.update(_worker_config(settings))
    steps: Any = app.steps
    steps["consumer"].add(EventsInGroups)
    process = WorkerProcess(broker, settings, session_id)
    signals.worker_process_init.connect(process.on_init, weak=False)
    signals.worker_process_shutdown.connect(process.on_shutdown, weak=False)
    signals.worker_shutdown.connect(process.on_shutdown, weak=False)  # the solo pool sends no other
    signals.worker_shutting_down.connect(process.on_stop_request, weak=False)
    signals.setup_logging.connect(_keep_logging, weak=False)
    return _run_celery(app, settings)


class WorkerProcess:
    """Makes the runtime when a pool process starts, and ends it when that stops."""

    def __init__(self, broker: BrokerSettings, settings: WorkerSettings, session_id: str) -> None:
        self._broker = broker
        self._settings = settings
        self._first_session_id = session_id
        # Shared with the pool's processes: each is a fork with the same memory, and only the first is the first.
        self._first_is_taken = mmap.mmap(-1, 1)
        self._main_pid = os.getpid()

    def on_init(self, **_: Any) -> None:
        """Open a session and load the engine. An error of ours ends the process with a line that says what to do."""
        try:
            runtime = self._open_runtime()
            tasks.runtimes[:] = [runtime]
            tasks.controls[:] = [Control(runtime, self._open_extension(runtime))]
            runtime.start()
        except StokerError as error:
            end_process(_exit_code(error), str(error))

    def on_shutdown(self, **_: Any) -> None:
        """End the session; whatever it still holds is given back."""
        tasks.controls.clear()
        if tasks.runtimes:
            tasks.runtimes.pop().stop()

    def on_stop_request(self, **_: Any) -> None:
        """SIGTERM: finish what is in hand. While still loading there is nothing to finish."""
        if not tasks.runtimes:
            self._drain_pool_process()
        elif not tasks.runtimes[0].is_ready:
            os._exit(0)
        else:
            tasks.runtimes[0].drain()

    def _drain_pool_process(self) -> None:
        """With a prefork pool the runtime is in another process, which learns by its next beat that it must drain."""
        store = Store(self._broker)
        try:
            session_id = store.sessions.current(self._settings.worker_name)
            if session_id is not None:
                store.sessions.request_drain(session_id)
        except BrokerError as error:
            logger.warning("could not ask the pool's process to drain: %s", error)
        finally:
            store.close()

    def _open_runtime(self) -> Runtime:
        settings = self._settings
        store = Store(self._broker)
        # A pool process that replaces a dead one is a new life, and gets a session of its own.
        session_id = uuid.uuid4().hex if self._first_is_taken[0] else self._first_session_id
        self._first_is_taken[0] = 1
        fields = {"host": socket.gethostname(), "pid": os.getpid(), "device": settings.device}
        store.sessions.open(session_id, settings.worker_name, os.environ.get(INSTANCE, session_id), fields)
        telemetry = Telemetry(_gpus(settings), time.monotonic)
        return Runtime(store, settings, session_id, self._main_pid, telemetry, create_engine)

    def _open_extension(self, runtime: Runtime) -> Extension | None:
        path = self._settings.worker_extension_cls
        if not path:
            return None
        return Extension(path, ExtensionContext(runtime.worker, lambda: runtime.seat.engine))


def _exit_code(error: StokerError) -> int:
    if isinstance(error, WorkerNameTakenError):
        return EXIT_NAME_TAKEN
    return 1 if error.retryable else EXIT_CONFIGURATION


def _run_celery(app: Celery, settings: WorkerSettings) -> int:
    worker = app.Worker(
        hostname=settings.worker_name,
        pool_cls=POOLS[settings.pool],
        concurrency=settings.concurrency,
        loglevel=settings.log_level,
        task_events=True,
        quiet=True,
        # Chatter between workers grows with their square; our heartbeat table serves instead (celery#5243).
        without_gossip=True,
        without_mingle=True,
        # These events are for monitors alone: without them Flower hides a worker that has nothing to do.
        heartbeat_interval=MONITOR_BEAT_S,
    )
    worker.start()
    return int(worker.exitcode or 0)


def _worker_config(settings: WorkerSettings) -> dict[str, Any]:
    return {
        "task_queues": (worker_queue(settings.worker_name),),
        # A replacement child loads the model first; Celery's default would kill it at 4 s.
        "worker_proc_alive_timeout": MODEL_LOAD_LIMIT_S,
    }


def _gpus(settings: WorkerSettings) -> tuple[int, ...]:
    if not settings.device.startswith("cuda:"):
        return ()
    return tuple(int(index) for index in settings.device.removeprefix("cuda:").split(","))


def _set_up_logging(settings: WorkerSettings) -> None:
    # Celery warns of root because of pickle, which is refused here.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    # At every lost connection it says that Celery 6 will stop running tasks by default; that is settled here.
    warnings.filterwarnings("ignore", category=CPendingDeprecationWarning)
    logging.basicConfig(
        level=settings.log_level,
        stream=sys.stderr,
        format=f"%(asctime)s {settings.worker_name} %(levelname)s %(name)s: %(message)s",
    )


def _keep_logging(**_: Any) -> None:
    """Celery sets up no logging of its own when something listens to its signal."""


if __name__ == "__main__":
    sys.exit(main())
