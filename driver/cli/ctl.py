"""`stoker ctl`: run-time control of workers, one line a worker."""

import contextlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from broker.commands import (
    Answer,
    Begun,
    CallExtension,
    CheckHealth,
    Command,
    Health,
    MemoryUse,
    Operation,
    Refusal,
    Reload,
    SetLimits,
    Sleep,
    SwitchModel,
    Wake,
)
from driver.cli.answers import answer_json, answer_line, failed
from driver.cli.options import NO_WAIT, Broker, refuse_ignored, seconds
from driver.cli.terminal import short_client

if TYPE_CHECKING:
    from driver.control import WorkerControl

EXIT_FAILED = 1

Timeout = Annotated[float, typer.Option(callback=seconds, help="Seconds to wait for the end.")]
Wait = Annotated[bool, typer.Option(help="Wait until it is done.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Finish = Annotated[bool, typer.Option("--finish", help="End what is in hand first, instead of giving it back.")]

app = typer.Typer(help="Look at running workers and change them.", no_args_is_help=True)


@app.callback()
def ctl(
    context: typer.Context,
    worker: Annotated[str, typer.Argument(help="A worker's name, several with commas between, or all.")],
    broker: Broker = None,
) -> None:
    """Give a command to workers. Exit code 1 when one of them does not answer, or does not do it."""
    context.obj = (worker, broker)


@app.command("check_health")
def check_health(
    context: typer.Context,
    deep: Annotated[bool, typer.Option("--deep", help="Also generate a few tokens.")] = False,
    timeout: Timeout = 60.0,
    as_json: AsJson = False,
) -> None:
    """Say how a worker is."""
    _run(context, CheckHealth(deep=deep), timeout, as_json=as_json, wait=deep)


@app.command("memory")
def memory(context: typer.Context, as_json: AsJson = False) -> None:
    """Say what weights and KV cache occupy."""
    _run(context, MemoryUse(), as_json=as_json)


@app.command("set_limits")
def set_limits(
    context: typer.Context,
    slots: Annotated[int, typer.Option(min=0, help="Requests that run together; 0 leaves it.")] = 0,
    kv_tokens: Annotated[int, typer.Option(min=0, help="Tokens of all of them; 0 leaves it.")] = 0,
    timeout: Timeout = 60.0,
    wait: Wait = True,
    as_json: AsJson = False,
) -> None:
    """Change how much runs together; requests in hand stay."""
    _run(context, SetLimits(slots=slots, kv_tokens=kv_tokens), timeout, as_json=as_json, wait=wait)


@app.command("sleep")
def sleep(
    context: typer.Context, finish: Finish = False, timeout: Timeout = 120.0, wait: Wait = True, as_json: AsJson = False
) -> None:
    """Give work back and free the GPU's memory."""
    _run(context, Sleep(finish=finish), timeout, as_json=as_json, wait=wait)


@app.command("wake")
def wake(context: typer.Context, timeout: Timeout = 120.0, wait: Wait = True, as_json: AsJson = False) -> None:
    """Take work again after a sleep."""
    _run(context, Wake(), timeout, as_json=as_json, wait=wait)


@app.command("reload")
def reload(
    context: typer.Context, finish: Finish = False, timeout: Timeout = 600.0, wait: Wait = True, as_json: AsJson = False
) -> None:
    """Load the model anew."""
    _run(context, Reload(finish=finish), timeout, as_json=as_json, wait=wait)


@app.command("switch_model")
def switch_model(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="As for `stoker worker --model`.")],
    served_model_name: Annotated[
        str, typer.Option(help="What requests call it.", show_default="the model's own name")
    ] = "",
    finish: Finish = False,
    timeout: Timeout = 600.0,
    wait: Wait = True,
    as_json: AsJson = False,
) -> None:
    """Serve another model, without a restart. The old one comes back where it cannot be loaded."""
    command = SwitchModel(model=model, served_model_name=served_model_name, finish=finish)
    _run(context, command, timeout, as_json=as_json, wait=wait)


@app.command("call")
def call(
    context: typer.Context,
    method: Annotated[str, typer.Argument(help="A method of the worker's extension.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...")] = None,
    timeout: Timeout = 60.0,
    wait: Wait = True,
    as_json: AsJson = False,
) -> None:
    """Call a method of the worker's extension."""
    _run(context, CallExtension(method=method, arguments=tuple(arguments or ())), timeout, as_json=as_json, wait=wait)


def _run(
    context: typer.Context, command: Command, timeout_s: float = 0.0, *, as_json: bool, wait: bool = False
) -> None:
    if not wait:
        refuse_ignored(context, "timeout", why=NO_WAIT)
    from driver.control import WorkerControl  # brings Celery, which no other command should wait for

    names, broker = context.obj
    with contextlib.closing(short_client(broker)) as client, contextlib.closing(WorkerControl(client.store)) as control:
        answers = _answers(control, control.find(names), command, timeout_s if wait else None)
    _print(answers, as_json=as_json)
    if any(failed(answer, wait=wait) for answer in answers.values()):
        raise typer.Exit(EXIT_FAILED)


def _answers(
    control: "WorkerControl", workers: Sequence[str], command: Command, wait_s: float | None
) -> dict[str, Answer]:
    """What each of the workers says; with `wait_s`, of the end of what it has begun."""
    answers = control.ask(workers, command)
    if wait_s is not None:
        begun = {name: item for name, answer in answers.items() if (item := _begun(answer)) is not None}
        ended = control.wait(begun, wait_s)
        if isinstance(command, CheckHealth):
            ended |= _with_operations(control, ended)
        answers |= ended
    return answers | {name: control.silence(name) for name in workers if name not in answers}


def _begun(answer: Answer) -> Begun | None:
    if isinstance(answer, Health) and answer.operation is not None:
        return Begun(session=answer.session, operation=answer.operation)
    return answer if isinstance(answer, Begun) else None


def _with_operations(control: "WorkerControl", ended: dict[str, Answer]) -> dict[str, Answer]:
    """How the workers are now, each with the end of its deep check."""
    done = {name: answer for name, answer in ended.items() if isinstance(answer, Operation)}
    healths = control.ask(list(done), CheckHealth()) if done else {}
    return {
        name: msgspec.structs.replace(health, operation=done[name])
        for name, health in healths.items()
        if isinstance(health, Health)
    }


def _print(answers: dict[str, Answer], *, as_json: bool) -> None:
    if as_json:
        shown = {name: answer_json(answer) for name, answer in sorted(answers.items())}
        typer.echo(json.dumps(shown, indent=2))
        return
    for name, answer in sorted(answers.items()):
        typer.echo(f"{name}: {answer_line(answer)}", err=isinstance(answer, Refusal))
