"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from broker.errors import InvalidRequestError
from driver.job_options import PRIORITIES, PRIORITY_LIMIT, priority_number

NO_WAIT = "it is for how long to wait, and nothing is waited for"


def seconds(value: float | None) -> float | None:
    """Refuse what is no time to wait: NaN passes every comparison."""
    if value is not None and not value >= 0:
        raise typer.BadParameter("must be a number of seconds, 0 or more")
    return value


def refuse_ignored(context: typer.Context, *names: str, why: str) -> None:
    """Refuse options that were given and would mean nothing: no wish is dropped in silence."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(why, param_hint=f"--{name.replace('_', '-')}")


def priority_of(text: str) -> int:
    """A priority by its name or number."""
    try:
        return priority_number(text if text in PRIORITIES else int(text))
    except (InvalidRequestError, ValueError):
        limits = f"from {-PRIORITY_LIMIT} to {PRIORITY_LIMIT}"
        raise typer.BadParameter(
            f"{text!r} is none of {', '.join(PRIORITIES)}, and no whole number {limits}", param_hint="--priority"
        ) from None


Priority = Annotated[str, typer.Option(help="high, normal, low, or a whole number from -100 to 100.")]
User = Annotated[str, typer.Option(help="Whose share of the workers this uses, and whose limits count.")]
Weight = Annotated[
    float, typer.Option(help="Share beside the user's other jobs: 3 is three times that of one with 1; 0.001 to 1000.")
]
Broker = Annotated[
    str | None,
    typer.Option(help="Redis URL; default $STOKER_BROKER_URL, else the broker of `stoker up`.", show_default=False),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="The alias smollm2-135m, a local directory, a .gguf file, or a hub id; default $STOKER_MODEL, "
        "else smollm2-135m.",
        show_default=False,
    ),
]
Workers = Annotated[int, typer.Option(min=0, help="Workers to start on this machine.")]
Autoscale = Annotated[
    str | None,
    typer.Option(metavar="MIN,MAX", help="As many workers as the work needs, within bounds.", show_default=False),
]
Engine = Annotated[
    str | None,
    typer.Option(
        help="transformers (default), openai (a server such as vLLM), simulated (made-up words), or your own.",
        show_default=False,
    ),
]
LogFolder = Annotated[Path | None, typer.Option(help="Keep the workers' logs here.", show_default=False)]
