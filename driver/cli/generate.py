"""`stoker generate`: one prompt, its answer on standard output."""

import contextlib
import sys
from typing import Annotated

import typer

from broker.errors import InvalidRequestError, StokerError
from broker.messages import Output, Request, SamplingParams
from driver.batch_feed import Share
from driver.cli.local import local_driver, refuse_beside_local
from driver.cli.options import Broker, Engine, Model, Priority, User, priority_of, refuse_ignored, seconds
from driver.cli.signals import interrupt_on_sigterm
from driver.cli.terminal import short_client
from driver.client import Client
from driver.deltas import Delta
from driver.errors import RequestFailedError
from driver.job import Job
from driver.prompts import Prompt, as_requests


def generate(
    context: typer.Context,
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from standard input.")],
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens to generate.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Nucleus sampling.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.", show_default=False)] = None,
    system: Annotated[str | None, typer.Option(help="A system message.", show_default=False)] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Print the text as it comes.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without the chat template.")] = False,
    timeout: Annotated[
        float | None, typer.Option(callback=seconds, help="Seconds to wait.", show_default="no limit")
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="Bring a broker, a driver and a worker for this run.")] = False,
    model: Model = None,
    priority: Priority = "normal",
    user: User = "",
    engine: Engine = None,
    broker: Broker = None,
) -> None:
    """Generate from one prompt."""
    interrupt_on_sigterm()
    refuse_beside_local(context, local=local)
    if raw:
        refuse_ignored(context, "system", why="a text that is continued as it is (--raw) has no system message")
    text = _standard_input() if prompt == "-" else prompt
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed)
    share = Share(priority=priority_of(priority), user=user)
    turns = [{"role": "system", "content": system}] if system else []
    content: Prompt = text if raw else [*turns, {"role": "user", "content": text}]
    request = as_requests([content], params, stream=stream)[0]
    if local:
        with local_driver(model=model, workers=1, engine=engine) as driver:
            _generate(driver.client, request, "", share, timeout)
    else:
        short_client(broker).close()  # who starts it wants to know at once; then it may wait
        _generate(Client(broker), request, model or "", share, timeout)


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"standard input is not UTF-8: {error.reason} at byte {error.start}") from error


def _generate(client: Client, request: Request, model: str, share: Share, timeout: float | None) -> None:
    job = client.submit([request], model=model, priority=share.priority, user=share.user)
    try:
        if request.stream:
            _print_as_it_comes(job, timeout)
        else:
            typer.echo(_good(job.get(timeout)[0]).text)
    except BaseException:
        client.store.hurry()
        with contextlib.suppress(StokerError):  # it must not hide why this ends
            job.cancel()
        raise


def _print_as_it_comes(job: Job, timeout: float | None) -> None:
    printed = 0
    try:
        for delta in job.stream(timeout):
            if delta.output is not None:
                _good(delta.output)
            if delta.offset < printed:
                typer.echo()
                typer.echo(
                    "stoker: it came out otherwise when it was generated again; this is the whole text", err=True
                )
                delta = Delta(index=delta.index, text=delta.output.text if delta.output else "")
            typer.echo(delta.text, nl=False)
            printed = delta.offset + len(delta.text)
    finally:
        if printed:
            typer.echo()


def _good(output: Output) -> Output:
    if output.error is not None:
        raise RequestFailedError(output.error.code, output.error.message)
    return output
