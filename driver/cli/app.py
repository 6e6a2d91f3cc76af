"""Puts the commands together, and turns every error of ours into one line and an exit code."""

import logging
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from broker.errors import BrokerUnavailableError, ConfigurationError, InvalidRequestError, StokerError
from driver.cli import batch, ctl, drain, flower, generate, quarantine, roles, scale, status, up
from driver.errors import UnconfirmedError

UNAVAILABLE_ADVICE = "; start a broker with `stoker up`, or name yours with --broker or STOKER_BROKER_URL"
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNAVAILABLE = 3

app = typer.Typer(
    name="stoker",
    help="Keeps GPUs fed with text generation: a task queue on Celery and Redis.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("up")(up.up)
app.command("driver")(roles.driver)
app.command("worker")(roles.worker)
app.command("batch")(batch.batch)
app.command("generate")(generate.generate)
app.command("status")(status.status)
app.command("drain")(drain.drain)
app.command("scale")(scale.scale)
app.add_typer(ctl.app, name="ctl")
app.add_typer(quarantine.app, name="quarantine")
app.command("flower")(flower.flower)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stoker {version('stoker')}")
        raise typer.Exit


@app.callback()
def root(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Exit codes: 0 done, 1 something failed, 2 wrong usage, 3 the broker does not answer, 130 interrupted."""


def run() -> None:
    """Run the command line; an interrupt is the caller's."""
    logging.basicConfig(level=logging.WARNING, format="stoker: %(message)s", stream=sys.stderr)
    try:
        app()
    except StokerError as error:
        typer.echo(f"stoker: error: {error}{_advice(error)}", err=True)
        sys.exit(_exit_code(error))
    except OSError as error:
        typer.echo(f"stoker: error: {_plain(error)}", err=True)
        sys.exit(EXIT_USAGE if error.filename else EXIT_FAILED)


def _advice(error: StokerError) -> str:
    """What to do when there may be no broker at all."""
    missing = isinstance(error, BrokerUnavailableError) and not isinstance(error, UnconfirmedError)
    return UNAVAILABLE_ADVICE if missing else ""


def _plain(error: OSError) -> str:
    """What the system said, without its number."""
    return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)


def _exit_code(error: StokerError) -> int:
    if isinstance(error, (ConfigurationError, InvalidRequestError)):
        return EXIT_USAGE
    if isinstance(error, BrokerUnavailableError):
        return EXIT_UNAVAILABLE
    return EXIT_FAILED
