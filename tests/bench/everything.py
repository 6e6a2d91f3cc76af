"""`scripts/bench all`: every scenario in turn; one that breaks does not keep the others from being measured."""

import typer

from tests.bench.death import run_death
from tests.bench.efficiency import Sizes, run_efficiency
from tests.bench.interruption import Killing
from tests.bench.latency import Plan, run_latency
from tests.bench.overhead import run_overhead
from tests.bench.scale import run_million, run_scale, run_start_up
from tests.bench.scenario import Scenario, publish

ROUNDS = 5
SCENARIOS = (
    Scenario(name="overhead", command="scripts/bench overhead", run=lambda quick: run_overhead(ROUNDS, quick=quick)),
    Scenario(name="latency", command="scripts/bench latency", run=lambda quick: run_latency(Plan(), quick=quick)),
    Scenario(
        name="efficiency", command="scripts/bench efficiency", run=lambda quick: run_efficiency(Sizes(), quick=quick)
    ),
    Scenario(name="death", command="scripts/bench death", run=lambda quick: run_death(Killing(), ROUNDS, quick=quick)),
    Scenario(name="scale", command="scripts/bench scale", run=run_scale),
    Scenario(name="million", command="scripts/bench million", run=run_million),
    Scenario(name="start-up", command="scripts/bench start-up", run=run_start_up),
)


def run_all(*, quick: bool, write: bool) -> bool:
    """Run and publish all scenarios. Whether nothing failed."""
    done = [_run(scenario, quick=quick, write=write) for scenario in SCENARIOS]
    return all(done)


def _run(scenario: Scenario, *, quick: bool, write: bool) -> bool:
    typer.echo(f"{scenario.name}:")
    try:
        report = scenario.run(quick)
    except Exception as error:  # the others are measured, and the exit code says that this one was not
        typer.echo(f"{scenario.name}: FAILED: {type(error).__name__}: {error}", err=True)
        return False
    command = f"{scenario.command} --quick" if quick else scenario.command
    return publish(scenario.name, command, report, write=write)
