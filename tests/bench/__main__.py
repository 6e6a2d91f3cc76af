"""`scripts/bench`: measures, and prints what it measured."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from tests.bench.death import run_death
from tests.bench.efficiency import Sizes, run_efficiency
from tests.bench.everything import ROUNDS, run_all
from tests.bench.interruption import Killing
from tests.bench.latency import Plan, run_latency
from tests.bench.memory import measure_memory
from tests.bench.mix import disagreements, measure_mix
from tests.bench.overhead import run_overhead
from tests.bench.recovery import measure_crash, measure_killed_worker
from tests.bench.scale import run_million, run_scale, run_start_up
from tests.bench.scenario import Report, publish
from tests.bench.scheduling import measure_scheduling
from tests.bench.steady import measure_steady
from tests.bench.summary import Summary

SIZES = Sizes()
app = typer.Typer(help="Each command prints medians of what it measured in this run.", no_args_is_help=True)
CACHE = Path("~/.cache/stoker").expanduser()
Quick = Annotated[bool, typer.Option("--quick", help="Tiny sizes, one round, and only the peers that are installed.")]
Write = Annotated[bool, typer.Option("--write", help="Write the section of docs/benchmarks.md instead of printing it.")]
Rounds = Annotated[int, typer.Option(min=1, help="Repetitions of each measurement.")]


@app.command("all")
def everything(quick: Quick = False, write: Write = False) -> None:
    """Every comparison with peers, one after the other."""
    if not run_all(quick=quick, write=write):
        raise typer.Exit(1)


@app.command()
def overhead(
    rounds: Rounds = ROUNDS,
    scale: Annotated[float, typer.Option(min=0.001, help="So many times the usual number of requests.")] = 1.0,
    quick: Quick = False,
    write: Write = False,
) -> None:
    """Requests per second without a model: Stoker, Celery, RQ, Dramatiq, Ray."""
    _publish("overhead", run_overhead(rounds, quick=quick, scale=scale), write=write)


@app.command()
def latency(
    rounds: Rounds = ROUNDS,
    requests: Annotated[int, typer.Option(min=1, help="Of a round, on an idle system.")] = 300,
    urgent: Annotated[int, typer.Option(min=1, help="Of a round, at high priority.")] = 100,
    waiting: Annotated[int, typer.Option(min=1, help="Others that wait meanwhile.")] = 10_000,
    quick: Quick = False,
    write: Write = False,
) -> None:
    """Milliseconds of one request without a model, idle and past others: Stoker, Celery, RQ, Dramatiq, Ray."""
    plan = Plan(idle=requests, urgent=urgent, waiting=waiting, rounds=rounds)
    _publish("latency", run_latency(plan, quick=quick), write=write)


@app.command()
def efficiency(
    requests: Annotated[int, typer.Option(min=1, help="Of a round.")] = SIZES.requests,
    prompt_words: Annotated[int, typer.Option(min=1, help="Of the longest prompt.")] = SIZES.prompt_words,
    new_tokens: Annotated[int, typer.Option(min=1, help="Of the longest text.")] = SIZES.new_tokens,
    threads: Annotated[int, typer.Option(min=1, help="Of torch, in each process with a model.")] = SIZES.threads,
    rounds: Rounds = SIZES.rounds,
    quick: Quick = False,
    write: Write = False,
) -> None:
    """Tokens per second with a real model: Stoker, transformers' own loop, Celery, celery-batches, Ray."""
    sizes = Sizes(requests=requests, prompt_words=prompt_words, new_tokens=new_tokens, threads=threads, rounds=rounds)
    _publish("efficiency", run_efficiency(sizes, quick=quick), write=write)


@app.command()
def death(rounds: Rounds = 5, quick: Quick = False, write: Write = False) -> None:
    """What a worker's death costs: Stoker, Celery, Ray, RQ."""
    _publish("death", run_death(Killing(), rounds, quick=quick), write=write)


@app.command()
def scale(quick: Quick = False, write: Write = False) -> None:
    """One to eight workers, and what the heartbeats of hundreds cost Redis and the driver."""
    _publish("scale", run_scale(quick), write=write)


@app.command()
def million(quick: Quick = False, write: Write = False) -> None:
    """The memory of each process while a million requests go through."""
    _publish("million", run_million(quick), write=write)


@app.command("start-up")
def start_up(quick: Quick = False, write: Write = False) -> None:
    """Seconds until the first output of a cold system, and the like."""
    _publish("start-up", run_start_up(quick), write=write)


@app.command()
def recovery(rounds: Rounds = 5) -> None:
    """Seconds from a death until what it interrupted runs again."""
    _show("crash, an idle worker at hand: first request elsewhere", measure_crash(rounds, spare=True), "s")
    _show("crash, all workers busy: first request again", measure_crash(rounds, spare=False), "s")
    _show("supervisor and process killed: all requests released", measure_killed_worker(rounds), "s")


@app.command()
def scheduling(
    workers: Annotated[int, typer.Option(min=1)] = 8,
    requests: Annotated[int, typer.Option(min=1)] = 100_000,
    rounds: Rounds = 10,
) -> None:
    """Seconds that a small job, and a new worker, wait while a huge job keeps all workers busy."""
    for label, summary in measure_scheduling(workers, requests, rounds).items():
        _show(label, summary, "s")


@app.command()
def mix(
    workers: Annotated[int, typer.Option(min=1)] = 8,
    seconds: Annotated[float, typer.Option(min=1, help="As long as all slots are in use.")] = 60.0,
) -> None:
    """Order and shares of a mix of jobs, by real workers and by the simulation. Exit code 1 when they disagree."""
    found = measure_mix(workers, seconds)
    typer.echo(f"all done after {found.real_s:.1f} s; simulated: {found.simulated_s:.1f} s")
    typer.echo(f"rank correlation of the ends: {found.rank_correlation:.3f}; {', '.join(found.real_order)}")
    for what, shares in (("job", found.jobs), ("user", found.users)):
        for share in shares:
            name = f"{what} {share.name!r} in class {share.priority}"
            typer.echo(f"{name:42} {share.real:.3f} of its class's tokens; simulated: {share.simulated:.3f}")
    for sentence in (problems := disagreements(found)):
        typer.echo(sentence, err=True)
    if problems:
        raise typer.Exit(1)


@app.command()
def steady(
    workers: Annotated[int, typer.Option(min=1)] = 4, seconds: Annotated[float, typer.Option(min=1)] = 15.0
) -> None:
    """CPU, in percent of one core, of a system that only beats, and of one that works."""
    for label, summary in measure_steady(workers, seconds).items():
        _show(label, summary, "% of a core")


@app.command()
def memory(
    lines: Annotated[int, typer.Option(min=1, help="Lines of the batch file.")] = 200_000,
    limit: Annotated[int, typer.Option(min=0, help="STOKER_MAX_PENDING_REQUESTS.")] = 0,
) -> None:
    """Largest memory of each process, in MiB, while a long batch file runs with an engine that costs nothing."""
    found = measure_memory(lines, limit)
    typer.echo(f"{found.lines} lines in {found.seconds:.0f} s: {found.lines / found.seconds:.0f} lines/s")
    for name in ("client", "driver", "worker"):
        typer.echo(f"{name:8} {getattr(found, name):8.1f} MiB")
    typer.echo(f"{'redis':8} {found.redis:8.1f} MiB (before: {found.before:.1f})")


@app.command()
def engine(
    rounds: Rounds = 5,
    requests: Annotated[int, typer.Option(min=1)] = 64,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Of the longest prompt.")] = 96,
    new_tokens: Annotated[int, typer.Option(min=1, help="Of the longest text.")] = 48,
    static_sizes: Annotated[str, typer.Option(help="Batch sizes to try for generate.")] = "8,16,32",
    model: Annotated[str, typer.Option()] = "smollm2-135m",
    cache_dir: Annotated[Path, typer.Option()] = CACHE,
) -> None:
    """Tokens per second of the engine, of transformers' own manager, and of generate; needs torch."""
    sizes = static_sizes.split(",")
    if not all(size.isdecimal() and int(size) for size in sizes):
        raise typer.BadParameter(f"{static_sizes!r} is no list of sizes, such as 8,16", param_hint="--static-sizes")
    from tests.bench.engine import Workload, measure_engine

    workload = Workload(requests=requests, prompt_tokens=prompt_tokens, new_tokens=new_tokens)
    measure_engine(workload, rounds, [int(size) for size in sizes], model, cache_dir)


@app.command()
def soak(
    requests: Annotated[int, typer.Option(min=1)] = 2_000,
    model: Annotated[str, typer.Option()] = "smollm2-135m",
    cache_dir: Annotated[Path, typer.Option()] = CACHE,
) -> None:
    """Memory, threads and handles over many short requests through one engine; needs torch."""
    from tests.bench.soak import measure_soak

    measure_soak(requests, model, cache_dir)


def _publish(name: str, report: Report, *, write: bool) -> None:
    command = " ".join(("scripts/bench", *(word for word in sys.argv[1:] if word != "--write")))
    if not publish(name, command, report, write=write):
        raise typer.Exit(1)


def _show(label: str, summary: Summary, unit: str) -> None:
    typer.echo(
        f"{label:62} {summary.median:8.2f} {unit}   ({summary.low:.2f} to {summary.high:.2f}, n={summary.count})"
    )


if __name__ == "__main__":
    app()
