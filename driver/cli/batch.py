"""`stoker batch`: an OpenAI batch file in, its results out."""

import time
from pathlib import Path
from typing import Annotated

import typer

from broker.errors import ConfigurationError
from driver.batch_feed import Share
from driver.batch_file import BatchOutput, read_batch
from driver.batch_progress import BatchProgress
from driver.batch_run import BatchRun
from driver.cli.local import local_driver, refuse_beside_local
from driver.cli.options import Broker, Engine, LogFolder, Model, Priority, User, Weight, Workers, priority_of
from driver.cli.progress import BatchBar, count_lines
from driver.cli.signals import interrupt_on_sigterm
from driver.client import Client

INTERRUPTED = "stoker: interrupted; what has an answer is written, and the same command goes on with the rest"


def batch(
    context: typer.Context,
    source: Annotated[Path, typer.Argument(metavar="IN", help="Batch file (JSONL, as OpenAI's batch API takes).")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="Results are appended here, as OpenAI's batch API's.")],
    errors: Annotated[
        Path | None, typer.Option(help="Failed lines go here instead of OUT.", show_default=False)
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="Bring a broker, a driver and workers for this run.")] = False,
    workers: Workers = 1,
    model: Model = None,
    priority: Priority = "normal",
    user: User = "",
    weight: Weight = 1.0,
    engine: Engine = None,
    broker: Broker = None,
    log_folder: LogFolder = None,
) -> None:
    """Run a batch file. Lines that OUT already answers are skipped: run it again after any interruption.

    Exit code 0: every line has a result; 1: every line has one, and some failed.
    """
    interrupt_on_sigterm()
    refuse_beside_local(context, local=local)
    _refuse_stream(source)
    share = Share(priority=priority_of(priority), user=user, weight=weight)
    total = count_lines(source)
    with BatchOutput(source, target, errors) as results:
        if _is_answered(source, results):
            # Nothing need be running, or started, for that.
            summary = BatchProgress(skipped=total)
            _report(summary, 0.0)
        elif local:
            with local_driver(model=model, workers=workers, engine=engine, log_folder=log_folder) as driver:
                served = frozenset({driver.settings.model})
                summary = _run(driver.client, source, results, total, model=model or "", served=served, share=share)
        else:
            client = Client(broker)
            client.store.check()
            summary = _run(client, source, results, total, model=model or "", served=None, share=share)
        failed = summary.failed + results.failed_before
    if failed:
        raise typer.Exit(1)


def _refuse_stream(source: Path) -> None:
    if source.exists() and not source.is_file():
        raise ConfigurationError(f"{source} is no regular file; it is read more than once: write it to a file first")


def _is_answered(source: Path, results: BatchOutput) -> bool:
    with source.open("rb") as file:
        return all(results.has(item) for item in read_batch(file))


def _run(
    client: Client,
    source: Path,
    results: BatchOutput,
    total: int,
    *,
    model: str,
    served: frozenset[str] | None,
    share: Share,
) -> BatchProgress:
    started_s = time.monotonic()
    with BatchBar(total) as bar:
        run = BatchRun(client, source, results, model=model, served=served, share=share, report=bar.show)
        try:
            summary = run.run()
        except BaseException as reason:
            client.store.hurry()  # whoever ends it does not wait for a Redis that has stopped
            run.cancel()
            if isinstance(reason, KeyboardInterrupt):
                typer.echo(INTERRUPTED, err=True)
            raise
    _report(summary, time.monotonic() - started_s)
    return summary


def _report(summary: BatchProgress, seconds: float) -> None:
    skipped = f", {summary.skipped} answered before" if summary.skipped else ""
    saved = f", {summary.saved} not generated again" if summary.saved else ""
    rate = f", {summary.completion_tokens / max(seconds, 1e-3):.0f} tokens/s" if summary.completion_tokens else ""
    typer.echo(f"{summary.done} requests in {seconds:.1f} s: {summary.failed} failed{skipped}{saved}{rate}", err=True)
