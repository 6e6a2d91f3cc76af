"""`stoker up`: everything on this machine."""

import time
from shlex import quote
from typing import Annotated

import typer

from broker.settings import DEFAULT_PORT, DEFAULT_URL
from driver.cli.options import Autoscale, Broker, Engine, LogFolder, Model, Workers
from driver.cli.signals import ignore_interrupts, interrupt_once
from driver.settings import load_driver_settings

CHECK_S = 0.5


def up(
    broker: Broker = None,
    workers: Workers = 1,
    autoscale: Autoscale = None,
    model: Model = None,
    engine: Engine = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port of the embedded broker, on 127.0.0.1; 0 is a free one.",
            show_default=str(DEFAULT_PORT),
        ),
    ] = None,
    log_folder: LogFolder = None,
) -> None:
    """Start a broker (unless one is given), a driver and workers here; Ctrl-C stops them all.

    Exit code 1: the workers could not start, or have all given up.
    """
    interrupt_once()
    from driver.driver import Driver  # brings Celery, which no other command should wait for

    settings = load_driver_settings(
        model=model, initial_worker_count=workers, autoscale=autoscale, engine=engine, broker_url=broker
    )
    if settings.broker_url and port is not None:
        raise typer.BadParameter(
            "it is the embedded broker's, and another is given, by --broker or STOKER_BROKER_URL", param_hint="--port"
        )
    own_port = DEFAULT_PORT if port is None and not settings.broker_url else port or 0
    driver = Driver(settings, port=own_port, log_folder=log_folder)
    is_up = False
    try:
        driver.start()
        is_up = True
        typer.echo(f"broker   {driver.client.store.settings.masked_url}")
        typer.echo(f"logs     {driver.log_folder}")
        count = settings.autoscale.replace(",", " to ") or workers
        typer.echo(f"loading  {settings.model} in {count} worker(s) …")
        driver.wait_until_ready()
        place = (
            "" if driver.broker_url == DEFAULT_URL else f"--broker {quote(driver.client.store.settings.masked_url)} "
        )
        typer.echo(f"ready    try: stoker generate {place}'Name three colours.'   (Ctrl-C stops everything)")
        while True:
            driver.check()
            time.sleep(CHECK_S)
    except KeyboardInterrupt:
        pass
    finally:
        ignore_interrupts()
        if is_up:  # else there is nothing to see but the error
            typer.echo("stopping …")
        driver.stop()
