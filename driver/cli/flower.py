"""`stoker flower`: Celery's monitor on this broker."""

import importlib.util
import os
import sys
from typing import Annotated

import typer

from broker.errors import ConfigurationError
from broker.settings import load_broker_settings
from driver.cli.options import Broker

MAX_TASKS = 2_000  # Flower's own default, 100,000, takes gigabytes (mher/flower#1305)
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def flower(
    broker: Broker = None,
    address: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 5555,
    basic_auth: Annotated[str | None, typer.Option(help="user:password for the web page.", show_default=False)] = None,
) -> None:
    """Run Flower: each worker by its GPU's name, and every batch as a task."""
    if importlib.util.find_spec("flower") is None:
        raise ConfigurationError("Flower is not installed: pip install 'stoker[flower]'")
    settings = load_broker_settings(broker_url=broker)
    environment = {**os.environ, "STOKER_BROKER_URL": settings.broker_url}
    command = [
        sys.executable,
        *("-m", "celery", "-A", "broker.app", "flower"),
        f"--address={address}",
        f"--port={port}",
        f"--max_tasks={MAX_TASKS}",
        "--purge_offline_workers=60",
    ]
    if basic_auth:
        command.append(f"--basic_auth={basic_auth}")
    elif address in LOOPBACK:
        # Flower's API answers 401 unless it is told that nobody else can reach it.
        environment["FLOWER_UNAUTHENTICATED_API"] = "1"
    os.execve(sys.executable, command, environment)  # noqa: S606 - Flower takes this process's place
