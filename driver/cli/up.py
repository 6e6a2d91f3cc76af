"""`stoker up`: everything on this machine."""

from typing import Annotated

import typer

from broker.settings import DEFAULT_PORT
from driver.cli.options import Broker, Engine, LogFolder, Model, Workers
from driver.cli.signals import interrupt_on_sigterm, wait_for_stop
from driver.driver import Driver
from driver.settings import load_driver_settings


def up(
    broker: Broker = None,
    workers: Workers = 1,
    model: Model = None,
    engine: Engine = None,
    port: Annotated[int, typer.Option(help="Port of the embedded broker, on 127.0.0.1.")] = DEFAULT_PORT,
    log_folder: LogFolder = None,
) -> None:
    """Start a broker (unless one is given), a driver and workers here; Ctrl-C stops them all."""
    interrupt_on_sigterm()
    settings = load_driver_settings(model=model, initial_worker_count=workers, engine=engine, broker_url=broker)
    driver = Driver(settings, port=port, log_folder=log_folder)
    try:
        driver.start()
        typer.echo(f"broker   {driver.client.store.settings.masked_url}")
        typer.echo(f"logs     {driver.log_folder}")
        typer.echo(f"loading  {settings.model} in {workers} worker(s) …")
        driver.wait_until_ready()
        typer.echo("ready    try: stoker generate 'Name three colours.'   (Ctrl-C stops everything)")
        wait_for_stop()
    except KeyboardInterrupt:
        pass
    finally:
        typer.echo("stopping …")
        driver.stop()
