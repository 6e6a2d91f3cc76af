"""`stoker driver` and `stoker worker`: one process of a larger installation."""

import importlib.util
import logging
import os
import signal
import sys
from typing import Annotated

import typer

from broker.clock import SystemClock
from broker.errors import ConfigurationError
from broker.settings import load_broker_settings
from broker.store import Store
from driver.background import Background
from driver.cli.options import Autoscale, Broker, Engine, Model
from driver.cli.signals import STOP_SIGNALS
from driver.scalers.command import command_scaler
from driver.settings import load_driver_settings


def driver(
    broker: Broker = None,
    batch_size: Annotated[int | None, typer.Option(help="Largest batch, in requests.", show_default="32")] = None,
    autoscale: Autoscale = None,
    scale_command: Annotated[
        str | None,
        typer.Option(help="Starts and stops workers; {n} stands for how many there should be.", show_default=False),
    ] = None,
) -> None:
    """Run a driver: it schedules, watches and recovers. A second one stands by."""
    from driver.service import DriverService  # brings Celery, which no other command should wait for

    logging.getLogger("driver").setLevel(logging.INFO)
    settings = load_driver_settings(batch_size=batch_size, autoscale=autoscale, scale_command=scale_command)
    store = Store(load_broker_settings(broker_url=broker)).check()
    service = DriverService(store, settings, SystemClock(), command_scaler(settings))
    loop = Background("driver", service.run, service.stop)
    for number in STOP_SIGNALS:
        signal.signal(number, lambda _number, _frame: loop.stop())
    typer.echo(f"driver on {store.settings.masked_url} (Ctrl-C stops it)")
    loop.start()
    loop.wait()
    if not loop.join():
        typer.echo(
            "stoker: ended within a round that does not end (does Redis answer?); the lead runs out by itself", err=True
        )
    store.close()


def worker(
    broker: Broker = None,
    model: Model = None,
    name: Annotated[
        str | None, typer.Option(help="Worker name, unique in the cluster.", show_default="gpu0@HOST or cpu0@HOST")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="auto (a free GPU, else the CPU), cpu, cuda:N, or cuda:N,M.", show_default="auto")
    ] = None,
    served_model_name: Annotated[
        str | None, typer.Option(help="What requests call the model.", show_default="as in --model")
    ] = None,
    pool: Annotated[
        str | None, typer.Option(help="engine (batches share the GPU), solo, or prefork.", show_default="engine")
    ] = None,
    engine: Engine = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, float16, or bfloat16.", show_default="auto")] = None,
    attention: Annotated[
        str | None, typer.Option(help="Implementation of attention; see docs/settings.md.", show_default="auto")
    ] = None,
    slots: Annotated[
        int | None, typer.Option(min=1, help="Requests that decode together.", show_default="as memory allows")
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit of a model on the hub.", show_default="the newest")
    ] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")
    ] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Never ask the hub.")] = False,
) -> None:
    """Run a worker on one device: it loads the model and keeps it. SIGTERM and Ctrl-C finish what is in hand first.

    Exit codes: 0 stopped or drained, 1 given up, 3 the broker does not answer, 78 wrong configuration of the worker.
    """
    if importlib.util.find_spec("psutil") is None:
        raise ConfigurationError("the worker is not installed: pip install 'stoker[worker]'")
    options = {
        "STOKER_BROKER_URL": broker,
        "STOKER_MODEL": model,
        "STOKER_WORKER_NAME": name,
        "STOKER_DEVICE": device,
        "STOKER_SERVED_MODEL_NAME": served_model_name,
        "STOKER_POOL": pool,
        "STOKER_ENGINE": engine,
        "STOKER_DTYPE": dtype,
        "STOKER_ATTENTION": attention,
        "STOKER_SLOTS": None if slots is None else str(slots),
        "STOKER_REVISION": revision,
        "STOKER_TRUST_REMOTE_CODE": "true" if trust_remote_code else None,
        "STOKER_OFFLINE": "true" if offline else None,
    }
    environment = {**os.environ, **{variable: value for variable, value in options.items() if value is not None}}
    environment.setdefault("STOKER_LOG_LEVEL", "INFO")
    Store(load_broker_settings(broker_url=broker)).check().close()  # the usual exit codes for what every command needs
    # The worker takes this process's place: signals and the exit code are its own.
    os.execve(sys.executable, [sys.executable, "-m", "gpu_worker"], environment)  # noqa: S606
