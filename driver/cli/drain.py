"""`stoker drain`: take a worker out of service without losing or repeating work."""

import time
from typing import Annotated

import typer

from broker.errors import InvalidRequestError
from broker.patience import Patience
from broker.states import WorkerState
from driver.cli.options import NO_WAIT, Broker, refuse_ignored, seconds
from driver.cli.terminal import short_client, told
from driver.client import Client
from driver.deadline import Deadline
from driver.errors import NotFinishedError

POLL_S = 0.2


def drain(
    context: typer.Context,
    worker: Annotated[str, typer.Argument(help="The worker's name, as `stoker status` shows it.")],
    wait: Annotated[bool, typer.Option(help="Wait until the worker has ended.")] = True,
    timeout: Annotated[float, typer.Option(callback=seconds, help="Seconds to wait.")] = 120.0,
    broker: Broker = None,
) -> None:
    """Let a worker finish what it has, give back what it cannot finish in time, and end."""
    if not wait:
        refuse_ignored(context, "timeout", why=NO_WAIT)
    client = short_client(broker)
    alive = {row.worker: row.id for row in client.workers() if row.state != WorkerState.DEAD}
    if worker not in alive:
        names = ", ".join(sorted(alive)) or "none"
        raise InvalidRequestError(f"no worker {worker!r} is alive (alive: {names})")
    session_id, deadline = alive[worker], Deadline(timeout if wait else 0.0)
    with told(look="stoker status"):
        # It may have been asked though the answer is late: who waits asks again, which does no harm.
        Patience(deadline.left_s)(lambda: client.store.sessions.request_drain(session_id))
        if wait:
            _wait(client, worker, session_id, deadline, timeout)
    typer.echo(f"{worker} has ended" if wait else f"{worker} drains")


def _wait(client: Client, worker: str, session_id: str, deadline: Deadline, timeout_s: float) -> None:
    # The worker drains whether Redis answers us or not: an outage is waited out.
    while Patience(deadline.left_s)(lambda: client.store.sessions.state(session_id)) not in (None, WorkerState.DEAD):
        if deadline.is_over:
            raise NotFinishedError(f"{worker} is still draining after {timeout_s:g} s")
        time.sleep(POLL_S)
