"""The Python client: submits prompts as a job and finds jobs again. Needs Redis only; no torch, no Celery."""

import contextlib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Self

from broker.errors import (
    BrokerError,
    BrokerUnavailableError,
    InvalidRequestError,
    JobNotFoundError,
)
from broker.messages import Output, Request, SamplingParams
from broker.records import Session
from broker.settings import BrokerSettings, load_broker_settings
from broker.store import Store
from broker.values import shown
from driver.availability import obstacle
from driver.deadline import Deadline
from driver.feed import JobFeed
from driver.job import Job
from driver.job_options import priority_number, refuse_wrong_options
from driver.lease import RENEW_S, Leases
from driver.prompts import Prompt, as_requests, requests_one_by_one
from driver.room import Room
from driver.window import WINDOW, WindowedOutputs, run_to_the_end


class Client:
    """Submits jobs to one broker. Thread-safe; close it, or use it as a context manager.

    `url` is the broker's (`redis://…`); without it `STOKER_BROKER_URL` counts, else the default of `stoker up`.

    Raises:
        ConfigurationError: the URL or an environment variable is wrong.
    """

    def __init__(self, url: str | None = None, *, settings: BrokerSettings | None = None) -> None:
        self.store = Store(settings or load_broker_settings(broker_url=url))
        self.leases = Leases(self.store.ledger.renew, RENEW_S)

    def submit(
        self,
        prompts: Sequence[Prompt | Request],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        model: str = "",
        priority: int | str = 0,
        deadline: float | None = None,
        user: str = "",
        block: bool = False,
        timeout: float | None = None,
        stream: bool = False,
        weight: float = 1.0,
    ) -> Job:
        """Submit prompts as one job; all of them are in the ledger when this returns.

        `params` is for all prompts, or one for each; a `Request` has its own, and `params` that nobody would use are
        refused. `model` "" lets any worker serve them.
        Requests that are not done within `deadline` seconds end with the error `deadline_exceeded` and the text so far.
        With `stream`, the text of all of them can be read as it comes, by `Job.stream`; a `Request` says so itself.

        `priority` is "high" (10), "normal" (0), "low" (-10), or a whole number from -100 to 100. Among jobs of one
        priority each `user` has an equal share of the workers, and each job of a user one by its `weight`
        (docs/scheduling.md); `user` is also whose limits count.

        Where limits are set, the job is taken as a whole or refused; with `block`, requests go in as there is room
        for them, and this waits for it, up to `timeout` seconds in all; without, there can be no `timeout`.

        Raises:
            InvalidRequestError: no prompts, or one that cannot be run; names its place. Nothing is submitted.
            BrokerUnavailableError: Redis does not answer.
            QueueFullError: a limit is reached; `retry_after_s` says when to try again. Nothing stays submitted.
            ExceedsLimitError: the job, or with `block` one request, is larger than a limit.
        """
        requests = as_requests(prompts, params, stream=stream)
        feed = self.open_job(
            model=model,
            priority=priority,
            deadline=deadline,
            user=user,
            block=block,
            timeout=timeout,
            weight=weight,
        )
        try:
            feed.add_and_seal(requests)
        except BrokerUnavailableError:
            feed.let_go()  # it would not answer a cancel either; the driver ends what does not go on
            raise
        except BaseException:  # Ctrl-C too: nobody learns the job's id
            with contextlib.suppress(JobNotFoundError, BrokerError):
                self.job(feed.job_id).cancel()
            raise
        return self.job(feed.job_id)

    def open_job(
        self,
        *,
        model: str = "",
        priority: int | str = 0,
        deadline: float | None = None,
        user: str = "",
        block: bool = True,
        timeout: float | None = None,
        weight: float = 1.0,
    ) -> JobFeed:
        """A new job to which requests are added bit by bit; seal it at the end.

        It stays open as long as this process lives and keeps what this returns. If not, the driver seals it after two
        minutes, and what was added is generated.

        With `block`, adding waits while the queue is full, up to `timeout` seconds over the job's life; without, it
        raises a QueueFullError, and there can be no `timeout`.

        Raises:
            InvalidRequestError: an option is not what it should be.
        """
        refuse_wrong_options(model, deadline, user, weight)
        return JobFeed(
            self.store.ledger,
            str(uuid.uuid4()),
            model,
            priority=priority_number(priority),
            deadline_s=deadline,
            user=user,
            weight=float(weight),
            room=_room(timeout, block=block),
            leases=self.leases,
        )

    def run(
        self,
        prompts: Iterable[Prompt | Request],
        params: SamplingParams | None = None,
        *,
        model: str = "",
        priority: int | str = 0,
        user: str = "",
        window: int = WINDOW,
        timeout: float | None = None,
        weight: float = 1.0,
    ) -> Iterator[Output]:
        """Outputs of any number of prompts, each as soon as it is there; `index` is its prompt's place, from 0.

        Prompts are taken from the iterable as outputs are read: at most `window` of them are submitted and not yet
        answered, and what was read is removed from Redis. Where limits are set, this waits for room. Whoever stops
        reading cancels the rest. `params` are for prompts; a `Request` has its own. A list with `params` must have a
        prompt that needs them; of other iterables, which cannot be looked through, the first must be one.

        Raises:
            InvalidRequestError: a prompt cannot be run, or an option is not what it should be; names its place.
            ExceedsLimitError: a request is larger than a limit.
            BrokerUnavailableError: Redis does not answer at the start; later it is waited for.
            NotFinishedError: not all outputs came within `timeout` seconds (also a TimeoutError).
            IncompleteJobError, JobNotFoundError: this process stood still for so long that it was taken for gone.
        """
        if type(window) is not int or window < 1:
            raise InvalidRequestError(f"window must be a whole number above 0, not {shown(window)}")
        feed = self.open_job(model=model, priority=priority, user=user, block=False, weight=weight)
        requests = requests_one_by_one(prompts, params)
        outputs = WindowedOutputs(feed, self.store.outputs(feed.job_id), requests, window=window)
        return run_to_the_end(self.job(feed.job_id), feed, outputs, timeout)

    def job(self, job_id: str) -> Job:
        """A handle on a job submitted earlier, by any process."""
        return Job(self.store, job_id, obstacle=self.obstacle)

    def workers(self) -> list[Session]:
        """The heartbeat table: one row a worker session.

        Raises:
            BrokerUnavailableError: Redis does not answer.
        """
        return self.store.sessions.table()

    def obstacle(self, model: str = "") -> str | None:
        """Why requests for this model would not run now, in a sentence; None when nothing is in the way.

        Raises:
            BrokerUnavailableError: Redis does not answer.
        """
        return obstacle(self.store, model)

    def close(self) -> None:
        """Close the connections; jobs go on, open ones as if this process had ended."""
        self.leases.close()
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _room(timeout: float | None, *, block: bool) -> Room | None:
    if timeout is not None and not block:
        raise InvalidRequestError("timeout is how long to wait for room, and only block=True waits: give both, or none")
    Deadline(timeout)  # refuses what is no number
    return Room(timeout) if block else None
