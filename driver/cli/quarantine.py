"""`stoker quarantine`: requests that cost their workers' lives, to look at and to try again."""

from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from broker.errors import InvalidRequestError
from broker.ledger import quarantine_name
from broker.records import QuarantinedRequest
from driver.cli.options import Broker
from driver.cli.terminal import short_client
from driver.client import Client

SHOWN_CHARACTERS = 60

app = typer.Typer(help="Requests that were given up because their workers died.", no_args_is_help=False)


@app.callback(invoke_without_command=True)
def quarantine(context: typer.Context, broker: Broker = None) -> None:
    """List them; `stoker quarantine retry JOB/INDEX` submits one again."""
    context.obj = broker
    if context.invoked_subcommand is not None:
        return
    entries = short_client(broker).store.queries.quarantined()
    if not entries:
        typer.echo("nothing is quarantined")
        return
    Console().print(_table(entries))


@app.command("retry")
def retry(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="JOB/INDEX", help="As listed.")],
) -> None:
    """Submit a quarantined request again, as a job of its own; its first output stays as it is."""
    quarantined = short_client(context.obj).store.queries.quarantined()
    entries = {quarantine_name(entry): entry for entry in quarantined}
    if name not in entries:
        raise InvalidRequestError(f"nothing named {name!r} is quarantined; `stoker quarantine` lists what is")
    entry = entries[name]
    # Not in a hurry: a late answer must not look like a failure, as whoever tries again would have it run twice.
    job = Client(context.obj).submit([entry.request], model=entry.model)
    typer.echo(f"submitted as job {job.id}")


def _table(entries: list[QuarantinedRequest]) -> Table:
    table = Table("request", "when", "reason", "prompt", box=None)
    for entry in entries:
        when = datetime.fromtimestamp(entry.at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        cells = (quarantine_name(entry), when, entry.reason, _shown(entry))
        table.add_row(*(Text(cell) for cell in cells))  # in a plain string, brackets would be rich's markup
    return table


def _shown(entry: QuarantinedRequest) -> str:
    request = entry.request
    text = request.prompt or " / ".join(turn.content for turn in request.messages or ()) or str(request.input_ids)
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"
