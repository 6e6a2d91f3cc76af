"""`stoker scale`: how many workers there are and should be, and who decides that."""

import json
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from broker.bounds import parse_bounds
from broker.errors import InvalidRequestError
from broker.records import ScaleMode, ScaleRecord, Session
from broker.states import WorkerState
from driver.cli.options import Broker
from driver.cli.terminal import short_client, told
from driver.client import Client

AUTO = "auto"
NO_DRIVER = "no driver is running: nobody acts on it; start one with `stoker driver` (or `stoker up`)"
STATES = (WorkerState.READY, WorkerState.LOADING, WorkerState.DRAINING, WorkerState.SLEEPING)


def scale(
    workers: Annotated[
        str | None,
        typer.Argument(
            metavar="[N | MIN,MAX | auto]",
            help="So many; as many as the work needs, within bounds; or as the driver's own settings say.",
            show_default=False,
        ),
    ] = None,
    broker: Broker = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Set how many workers there should be, or show it. What is set stays until `stoker scale auto`.

    The leading driver acts on it: `stoker up` starts and drains workers of its machine, `stoker driver` runs its
    --scale-command, and `--json` and Redis tell others.
    """
    client = short_client(broker)
    if workers is not None:
        with told(look="stoker scale"):
            _set(client, workers.strip())
    record, sessions = client.store.scale.read(), client.workers()
    if not client.store.has_leader():
        record = msgspec.structs.replace(record, problem=NO_DRIVER)
    if as_json:
        typer.echo(json.dumps(_as_json(record, sessions)))
    else:
        _print(record, sessions)


def _set(client: Client, wish: str) -> None:
    target = client.store.scale
    if wish == AUTO:
        target.unset()
    elif "," in wish:
        bounds = parse_bounds(wish)
        target.set_auto(bounds.least, bounds.most)
    elif wish.isascii() and wish.isdecimal() and len(wish) <= 9:
        target.set_manual(int(wish))
    else:
        raise InvalidRequestError(f"{wish!r} is neither a number of workers, nor MIN,MAX, nor {AUTO}")


def _as_json(record: ScaleRecord, sessions: list[Session]) -> dict[str, Any]:
    return {
        "mode": str(record.mode) or "driver",
        "bounds": _bounds(record) or None,
        "wanted": record.wanted if record.wanted >= 0 else None,
        "ready": _count(sessions, WorkerState.READY),
        "coming": _count(sessions, WorkerState.LOADING),
        "draining": _count(sessions, WorkerState.DRAINING),
        "sleeping": _count(sessions, WorkerState.SLEEPING),
        "reason": record.reason,
        "problem": record.problem,
    }


def _print(record: ScaleRecord, sessions: list[Session]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(f"set by   {_setter(record)}"))
    if record.wanted >= 0:
        console.print(Text(f"wanted   {record.wanted}" + (f" ({record.reason})" if record.reason else "")))
    console.print(Text("workers  " + ", ".join(f"{_count(sessions, state)} {state}" for state in STATES)))
    if record.problem:
        console.print(Text(f"problem  {record.problem}", style="yellow"))


def _setter(record: ScaleRecord) -> str:
    if record.mode is ScaleMode.MANUAL:
        return f"stoker scale {record.least}"
    if record.mode is ScaleMode.AUTO:
        return f"stoker scale {record.least},{record.most}"
    if record.bounds:
        return f"the driver, --autoscale {record.bounds}"
    if record.wanted >= 0:
        return "the driver, which has not decided anew yet"
    return "nobody: give N, or MIN,MAX, or start the driver with --autoscale"


def _bounds(record: ScaleRecord) -> str:
    """Those that are set, though the leader may not have seen them yet."""
    return record.bounds if record.mode is ScaleMode.DRIVER else f"{record.least},{record.most}"


def _count(sessions: list[Session], state: WorkerState) -> int:
    return sum(row.state == state for row in sessions)
