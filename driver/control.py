"""Asks running workers through Celery's remote control, and waits for what takes them long."""

import contextlib
import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import msgspec
from celery.app.control import Control
from kombu.exceptions import OperationalError

from broker.celery_app import create_app
from broker.commands import ANSWERS, Answer, Begun, CheckHealth, Command, Health, Operation, Refusal
from broker.errors import BrokerUnavailableError, InvalidRequestError
from broker.states import WorkerState
from broker.store import Store

ALL = "all"
ANSWER_S = 5.0  # a worker answers from its main thread, whatever its engine does
PING_S = 0.5
POLL_S = 0.1


class WorkerControl:
    """Run-time control of the workers of one broker."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._app = create_app(store.settings)
        self._control = Control(self._app)
        self._errors = (OperationalError, *self._app.connection().connection_errors)

    def find(self, names: str) -> list[str]:
        """The workers that a comma-separated list names; `all` is every one that is alive.

        Raises:
            InvalidRequestError: one of them is not alive; names those that are.
        """
        alive = sorted({row.worker for row in self._store.sessions.table() if row.state != WorkerState.DEAD})
        wanted = alive if names == ALL else list(dict.fromkeys(name.strip() for name in names.split(",")))
        if missing := [name for name in wanted if name not in alive]:
            raise InvalidRequestError(f"no worker {missing[0]!r} is alive (alive: {', '.join(alive) or 'none'})")
        if not wanted:
            raise InvalidRequestError("no worker is alive")
        return wanted

    def ask(self, workers: Sequence[str], command: Command, timeout_s: float = ANSWER_S) -> dict[str, Answer]:
        """Give a command to these workers. One that does not answer in time is missing from the answers.

        Raises:
            BrokerUnavailableError: the broker cannot be reached.
        """
        give_up_s = time.monotonic() + timeout_s
        # What is sent to a worker that does not listen yet is lost, and to send a command twice may do it twice.
        there: set[str] = set()
        patience_s = PING_S
        while (deaf := [name for name in workers if name not in there]) and time.monotonic() < give_up_s:
            there |= self._send("ping", {}, deaf, patience_s).keys()
            patience_s *= 2  # for one that answers slowly
        replies = self._send(command.name, msgspec.to_builtins(command), sorted(there), timeout_s) if there else {}
        return {name: _answer(command.name, reply) for name, reply in replies.items()}

    def silence(self, worker: str) -> Refusal:
        """What to say of one that does not answer."""
        states = [row.state for row in self._store.sessions.table() if row.worker == worker]
        return Refusal(
            error=f"no answer within {ANSWER_S:g} s; it is {states[-1] if states else 'gone'}", code="silent"
        )

    def wait(self, begun: Mapping[str, Begun], timeout_s: float) -> dict[str, Answer]:
        """Wait for the end of what these workers have begun.

        A worker that has not ended it in time gives the operation as it is; one that died gives a refusal.
        """
        give_up_s = time.monotonic() + timeout_s
        found: dict[str, Answer] = {name: item.operation for name, item in begun.items()}
        while open_ := [name for name, item in found.items() if isinstance(item, Operation) and not item.ended]:
            if time.monotonic() >= give_up_s:
                break
            time.sleep(POLL_S)
            answers = self.ask(open_, CheckHealth(), min(ANSWER_S, max(give_up_s - time.monotonic(), PING_S)))
            found |= {name: _progress(begun[name], answers[name]) for name in open_ if name in answers}
            found |= {name: LOST for name in self._lost(begun, open_) if name not in answers}
        return found

    def _send(self, command: str, arguments: Any, workers: Sequence[str], timeout_s: float) -> dict[str, Any]:
        """Every worker's reply, as it is."""
        # Celery's pool may hold a connection that has been cut since, and kombu does not replace it to hear replies.
        with self._broker_errors(), self._app.connection_for_write() as connection:
            replies: Any = self._control.broadcast(
                command,
                arguments=arguments,
                destination=list(workers),
                connection=connection,
                reply=True,
                timeout=timeout_s,
            )
        found = {name: reply for pair in replies or () for name, reply in pair.items()}
        if len(found) < len(workers):
            # kombu counts a late answer as one to the next command, so that goes to another address.
            self._control = Control(self._app)
        return found

    def close(self) -> None:
        """Close the connections."""
        self._app.close()

    def _lost(self, begun: Mapping[str, Begun], workers: Sequence[str]) -> list[str]:
        """Those of the workers that do not live the life in which they began."""
        alive = {row.id for row in self._store.sessions.table() if row.state != WorkerState.DEAD}
        return [name for name in workers if begun[name].session not in alive]

    @contextlib.contextmanager
    def _broker_errors(self) -> Generator[None]:
        try:
            yield
        except self._errors as error:
            raise BrokerUnavailableError(f"cannot reach {self._store.settings.masked_url}: {error}") from error


LOST = Refusal(error="the worker ended meanwhile; its supervisor starts it again as it was configured", code="lost")


def _answer(command: str, reply: Any) -> Answer:
    if isinstance(reply, dict) and "ok" in reply:
        return msgspec.convert(reply["ok"], ANSWERS.get(command, Begun))
    with contextlib.suppress(msgspec.ValidationError):
        return msgspec.convert(reply, Refusal)
    return Refusal(error=f"an answer that cannot be read: {reply!r:.200}")


def _progress(begun: Begun, answer: Answer) -> Answer:
    if not isinstance(answer, Health):
        return answer
    if answer.session != begun.session:
        return LOST
    operation = answer.operation
    if operation is None or operation.number != begun.operation.number:  # another one came behind it
        return msgspec.structs.replace(begun.operation, ended=True, result="ended; another operation came since")
    return operation
