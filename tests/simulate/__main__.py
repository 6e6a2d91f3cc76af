"""`scripts/simulate`: simulates, and prints a table for docs/scheduling.md."""

import time
from pathlib import Path
from typing import Annotated

import typer

from tests.simulate.limit import least_over_bound, soonest_end_s
from tests.simulate.measures import Results
from tests.simulate.plots import Sizes, draw
from tests.simulate.scenarios import (
    ALONE,
    PLANNERS,
    SLOTS,
    STOKER,
    UNMOVED,
    Scenario,
    drawn_again,
    equal,
    heterogeneous,
    mixed,
    simulate,
    small,
)
from tests.simulate.troubles import GPUS, REQUESTS, row, troubles

app = typer.Typer(help="Each command simulates and prints what came out.", no_args_is_help=True)
SIZES = Sizes()
Gpus = Annotated[int, typer.Option(min=1, help="Simulated GPUs.")]
Requests = Annotated[int, typer.Option(min=1, help="Requests of all jobs together.")]
Jobs = Annotated[int, typer.Option(min=1, help="Jobs.")]
Users = Annotated[int, typer.Option(min=1, help="Users that the jobs are of.")]
Seed = Annotated[int, typer.Option(help="Draws other lengths.")]


def _one_of_them(only: str) -> str:
    if only and only not in PLANNERS:
        raise typer.BadParameter(f"{only!r} is none of {', '.join(PLANNERS)}")
    return only


Only = Annotated[str, typer.Option(help=f"One of {', '.join(PLANNERS)}; all if empty.", callback=_one_of_them)]


@app.command("equal")
def equal_command(
    gpus: Gpus = 1000, requests: Requests = 1_000_000, jobs: Jobs = 10, only: Only = "", seed: Seed = 0
) -> None:
    """Equal GPUs and equal jobs."""
    _refuse_fewer(requests, jobs)
    _show(equal(gpus, requests, jobs), only, seed)


@app.command("heterogeneous")
def heterogeneous_command(requests: Requests = 20_000, only: Only = "", seed: Seed = 0) -> None:
    """Four GPUs, of speeds 1, 2, 4 and 4, and two equal jobs."""
    _refuse_fewer(requests, 2)
    _show(heterogeneous(requests), only, seed)


@app.command("mixed")
def mixed_command(gpus: Gpus = 100, requests: Requests = 50_000, only: Only = "", seed: Seed = 0) -> None:
    """A huge job, small ones of all priorities behind it, and workers that die."""
    scenario = drawn_again(mixed(gpus, requests), seed=seed)
    typer.echo(f"the last jobs come so late that nothing can end before {soonest_end_s(scenario.jobs, ALONE):.1f} s")
    _show(scenario, only, seed)


@app.command("troubles")
def troubles_command(
    only: Annotated[str, typer.Option(help="Those whose name begins so; all if empty.")] = "",
    gpus: Gpus = GPUS,
    requests: Requests = REQUESTS,
    seeds: Annotated[int, typer.Option(min=1, help="How often each is simulated, with other lengths.")] = 3,
) -> None:
    """GPUs that become slow, leave or come, and wrong estimates: with work that moves, and without."""
    for name, scenario in troubles(requests, gpus).items():
        for planner in (STOKER, UNMOVED) if name.startswith(only) else ():
            typer.echo(row(name, planner, [simulate(scenario, planner, seed) for seed in range(seeds)]))


@app.command()
def plots(
    folder: Annotated[Path, typer.Option(help="Where to write them.")] = Path("docs"),
    gpus: Gpus = SIZES.gpus,
    requests: Requests = SIZES.requests,
) -> None:
    """Simulate what docs/scheduling.md shows, and draw it as SVG files."""
    draw(folder, Sizes(gpus=gpus, requests=requests), typer.echo)


@app.command("limit")
def limit_command(gpus: Gpus = 1000, requests: Requests = 1_000_000, seed: Seed = 0) -> None:
    """The least makespan over the bound with equal GPUs, for anything that does not know how long a text becomes."""
    typer.echo(f"{least_over_bound(gpus, requests, slots=SLOTS, alone=ALONE, seed=seed):.4f} x bound")


@app.command("small")
def small_command(gpus: Gpus = 8, jobs: Jobs = 50_000, users: Users = 50_000, only: Only = "", seed: Seed = 0) -> None:
    """Jobs of one request each."""
    _show(small(gpus, jobs, users), only, seed)


def _refuse_fewer(requests: int, jobs: int) -> None:
    if requests < jobs:
        raise typer.BadParameter(f"{requests} are fewer than one for each of {jobs} jobs", param_hint="--requests")


def _show(scenario: Scenario, only: str, seed: int) -> None:
    for name in [only] if only else PLANNERS:
        started_s = time.monotonic()
        _print(name, simulate(scenario, name, seed), time.monotonic() - started_s)


def _print(name: str, results: Results, took_s: float) -> None:
    waits = ", ".join(f"{priority}: {wait:.1f} s" for priority, wait in results.wait_s.items())
    ends = ", ".join(f"{priority}: {end:.1f} s" for priority, end in results.done_s.items())
    typer.echo(
        f"{name:7} makespan {results.makespan_s:.1f} s = {results.over_bound:.3f} x bound, "
        f"utilisation {results.utilisation:.3f}, Jain {results.jain:.4f}, "
        f"round {results.round_ms:.1f} ms (large {results.large_round_ms:.1f}, worst {results.slowest_round_ms:.0f}), "
        f"{results.requests / max(results.batches, 1):.1f} requests a batch; "
        f"{results.moved} moved ({results.moved_again} again) by {results.orders} orders; "
        f"first output by priority: {waits}; done: {ends}  [{took_s:.0f} s to simulate]"
    )


if __name__ == "__main__":
    app()
