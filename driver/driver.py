"""The whole of Stoker on one machine, behind one object: broker, driver, workers, and a simple task interface."""

import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from broker.clock import SystemClock
from broker.embedded import EmbeddedServer
from broker.errors import EmbeddedServerError, InvalidRequestError, JobNotFoundError
from broker.messages import Choice, Output, Request, SamplingParams, TokenLogprob, WorkerState, chat_messages
from broker.settings import BrokerSettings, load_broker_settings
from broker.store import Store
from driver.client import Client
from driver.errors import NotFinishedError, RequestFailedError, TaskNotFoundError, WorkerStartError
from driver.scalers.local import LocalWorkers
from driver.service import DriverService
from driver.settings import DriverSettings

logger = logging.getLogger("stoker")

READY_TIMEOUT_S = 600.0
READY_POLL_S = 0.1
PROMPT_FIELDS = ("input_ids", "prompt", "messages")
PARAMETER_NAMES = {"max_new_tokens": "max_tokens"} | {name: name for name in SamplingParams.__struct_fields__}


class Driver:
    """Starts a broker (unless one is given), a driver and workers on this machine. `start`, use, `stop`.

    Every process that it starts ends with it.

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
        self._folder: Path | None = None
        self._server: EmbeddedServer | None = None
        self._client: Client | None = None
        self._workers: LocalWorkers | None = None
        self._service: DriverService | None = None
        self._threads: list[threading.Thread] = []
        self._stopped = threading.Event()
        self._failure: WorkerStartError | None = None

    @property
    def client(self) -> Client:
        """A client of this driver's broker."""
        assert self._client is not None, "start() the driver first"
        return self._client

    @property
    def broker_url(self) -> str:
        """The broker that is used."""
        return self.client.store.url

    @property
    def log_folder(self) -> Path:
        """Where the workers' logs are."""
        assert self._folder is not None, "start() the driver first"
        return self._folder

    def start(self) -> Self:
        """Start everything; workers load their models in the background, and work waits for them.

        Raises:
            EmbeddedServerError: no broker was given and none could be started.
            BrokerUnavailableError: the given broker does not answer.
        """
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
        assert self._workers is not None, "start() the driver first"
        deadline_s = time.monotonic() + timeout
        while (ready := self._ready_workers()) < self._workers.count:
            self._raise_failure()
            if time.monotonic() >= deadline_s:
                raise NotFinishedError(f"{ready} of {self._workers.count} workers are ready after {timeout:g} s")
            self._stopped.wait(READY_POLL_S)
        self._raise_failure()
        return self

    def submit_task(self, task: Mapping[str, Any]) -> str:
        """Submit one request: `input_ids`, `prompt` or `messages`, with `max_new_tokens`, `temperature`, `top_p`, ….

        Returns the task's id, which is a Celery task id too.

        Raises:
            InvalidRequestError: a field is unknown or its value does not fit.
        """
        feed = self.client.open_job(model=self.settings.model)
        feed.add_and_seal([_task_request(task)])
        return feed.job_id

    def get_result(self, task_id: str, timeout: float | None = None) -> dict[str, Any]:
        """A task's result: `generated_text`, `input_ids`, `output_ids`, `worker_id`, `finish_reason`.

        With `logprobs` and `n` asked for there are `logprobs` and `choices`, too.

        Raises:
            TaskNotFoundError: no such task (also a KeyError).
            NotFinishedError: it is not done within `timeout` seconds (also a TimeoutError).
            RequestFailedError: it failed; `error_code` says why.
        """
        try:
            output = self.client.job(task_id).get(timeout)[0]
        except JobNotFoundError as error:
            raise TaskNotFoundError(f"no task {task_id!r}") from error
        return _task_result(output)

    def scale_workers(self, count: int) -> None:
        """Have `count` workers on this machine; surplus ones finish what they have first."""
        if count < 0:
            raise ValueError(f"count must not be negative, not {count}")
        assert self._workers is not None, "start() the driver first"
        self._workers.scale(count)

    def stop(self) -> None:
        """Stop everything that was started: workers first, the broker last. Safe to call twice."""
        self._stopped.set()
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
        if self._folder is not None and self._kept_log_folder is None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self) -> None:
        broker = self._open_broker()
        self._folder = self._kept_log_folder or Path(tempfile.mkdtemp(prefix="stoker-logs-"))
        self._client = Client(settings=broker)
        self._client.store.check()
        self._service = DriverService(Store(broker), self.settings, SystemClock())
        self._workers = LocalWorkers(self._environment(broker), self._folder)
        self._workers.scale(self.settings.initial_worker_count)
        for name, target in (("driver", self._service.run), ("worker-monitor", self._monitor)):
            thread = threading.Thread(target=target, name=f"stoker-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _open_broker(self) -> BrokerSettings:
        if self.settings.broker_url:
            return load_broker_settings(broker_url=self.settings.broker_url)
        self._server = EmbeddedServer(port=self._port).start()
        return load_broker_settings(broker_url=self._server.url)

    def _environment(self, broker: BrokerSettings) -> dict[str, str]:
        environment = {"STOKER_BROKER_URL": broker.broker_url, "STOKER_MODEL": self.settings.model}
        if self.settings.engine:
            environment["STOKER_ENGINE"] = self.settings.engine
        return environment | self._worker_environment

    def _monitor(self) -> None:
        assert self._workers is not None
        while not self._stopped.wait(min(self.settings.worker_monitor_interval, 1.0)):
            self._revive_server()
            try:
                self._workers.check()
            except WorkerStartError as error:
                self._failure = error
                logger.error("a worker could not start: %s", error)  # noqa: TRY400 - the reason, not our stack

    def _revive_server(self) -> None:
        try:
            if self._server is not None and self._server.revive():
                logger.warning("the embedded broker had ended; it runs again, with its data")
        except EmbeddedServerError as error:
            logger.warning("%s", error)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _ready_workers(self) -> int:
        return sum(session.state == WorkerState.READY for session in self.client.workers())


def _task_request(task: Mapping[str, Any]) -> Request:
    unknown = sorted(set(task) - set(PROMPT_FIELDS) - set(PARAMETER_NAMES))
    if unknown:
        known = ", ".join((*PROMPT_FIELDS, *PARAMETER_NAMES))
        raise InvalidRequestError(f"unknown field {unknown[0]!r} in a task; the known ones are {known}")
    params = SamplingParams(**{PARAMETER_NAMES[name]: task[name] for name in PARAMETER_NAMES if name in task})
    input_ids, messages = task.get("input_ids"), task.get("messages")
    return Request(
        params=params,
        prompt=task.get("prompt"),
        input_ids=None if input_ids is None else tuple(int(token) for token in input_ids),
        messages=None if messages is None else chat_messages(messages),
        return_input_ids=True,
    )


def _task_result(output: Output) -> dict[str, Any]:
    if output.error is not None:
        raise RequestFailedError(output.error.code, output.error.message)
    return {
        **_text_fields(output),
        "input_ids": list(output.input_ids or ()),
        "worker_id": output.worker_id,
        **({"choices": [_text_fields(choice) for choice in output.choices]} if output.choices else {}),
    }


def _text_fields(text: Output | Choice) -> dict[str, Any]:
    return {
        "generated_text": text.text,
        "output_ids": list(text.token_ids),
        "finish_reason": str(text.finish_reason),
        **({} if text.logprobs is None else {"logprobs": [_logprob_fields(item) for item in text.logprobs]}),
    }


def _logprob_fields(item: TokenLogprob) -> dict[str, Any]:
    alternatives = [msgspec.structs.asdict(other) for other in item.alternatives]
    return msgspec.structs.asdict(item) | {"alternatives": alternatives}
