"""`stoker up`: everything on this machine."""

import time
from typing import Annotated

import typer

from broker.settings import DEFAULT_PORT
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
        int, typer.Option(min=0, max=65535, help="Port of the embedded broker, on 127.0.0.1; 0 is a free one.")
    ] = DEFAULT_PORT,
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
    driver = Driver(settings, port=port, log_folder=log_folder)
    try:
        driver.start()
        typer.echo(f"broker   {driver.client.store.settings.masked_url}")
        typer.echo(f"logs     {driver.log_folder}")
        typer.echo(f"loading  {settings.model} in {workers} worker(s) …")
        driver.wait_until_ready()
        typer.echo("ready    try: stoker generate 'Name three colours.'   (Ctrl-C stops everything)")
        while True:
            driver.check()
            time.sleep(CHECK_S)
    except KeyboardInterrupt:
        pass
    finally:
        ignore_interrupts()
        typer.echo("stopping …")
        driver.stop()
