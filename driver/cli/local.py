"""Everything on one machine, for a command that brings its own broker, driver and workers."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.markup import escape

from driver.cli.options import refuse_ignored
from driver.cli.signals import ignore_interrupts, interrupt_once
from driver.settings import load_driver_settings

if TYPE_CHECKING:
    from driver.driver import Driver


def refuse_beside_local(context: typer.Context, *, local: bool) -> None:
    """Refuse what would mean nothing with `--local`, or without it."""
    if local:
        refuse_ignored(context, "broker", why="--local brings its own broker; leave one of them out")
        if context.params.get("workers") == 0:
            raise typer.BadParameter("nobody else can work for the broker that --local brings", param_hint="--workers")
    else:
        why = "it says what --local starts; give --local too, or leave it out"
        refuse_ignored(context, "workers", "engine", "log_folder", why=why)


@contextmanager
def local_driver(
    *, model: str | None, workers: int, engine: str | None, log_folder: Path | None = None
) -> "Generator[Driver]":
    """A ready driver with its own broker and workers; everything ends with the block."""
    interrupt_once()
    from driver.driver import Driver  # brings Celery, which no other command should wait for

    console = Console(stderr=True)
    settings = load_driver_settings(model=model, initial_worker_count=workers, engine=engine, broker_url="")
    driver = Driver(settings, log_folder=log_folder)
    try:
        with console.status(f"starting: broker, driver, {_count(workers)}, loading {escape(settings.model)} …"):
            driver.start().wait_until_ready()
        yield driver
    finally:
        ignore_interrupts()
        with console.status("stopping …"):
            driver.stop()


def _count(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"
