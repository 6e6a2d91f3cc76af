"""`scripts/chaos`: kills at random for a while, and prints the verdict."""

from typing import Annotated

import typer

from tests.chaos.run import ChaosOptions, Report, run_chaos


def main(
    seconds: Annotated[float, typer.Option(help="How long to strike.")] = 60.0,
    workers: Annotated[int, typer.Option(help="Workers (simulated engine).")] = 4,
    requests: Annotated[int, typer.Option(help="Requests of a job; two jobs are always open.")] = 300,
    seed: Annotated[int, typer.Option(help="Chooses what is struck, and when each request ends.")] = 0,
    interval: Annotated[float, typer.Option(help="Seconds between strikes.")] = 2.0,
) -> None:
    """Kill workers, hosts, drivers, connections and Redis at random. Exit code 1 when anything is lost or twice."""
    options = ChaosOptions(seconds=seconds, workers=workers, requests=requests, seed=seed, interval_s=interval)
    report = run_chaos(options, typer.echo)
    typer.echo(describe(report))
    if not report.is_clean:
        raise typer.Exit(1)


def describe(report: Report) -> str:
    """The report for people."""
    strikes = ", ".join(f"{count} x {kind}" for kind, count in report.strikes.items())
    worst = ", ".join(f"{kind} {seconds:.1f} s" for kind, seconds in report.worst_s.items())
    return "\n".join(
        (
            f"strikes      {strikes}",
            f"requests     {report.requests} in {report.seconds:.0f} s",
            f"outputs      {report.outputs}",
            f"lost         {report.lost}",
            f"duplicate    {report.duplicates} ({report.dropped} late second outputs refused)",
            f"wrong        {report.wrong}",
            f"torn         {report.torn} texts that were read while they came",
            f"failed       {report.failed}",
            f"recomputed   {report.recomputed} of {report.tokens} tokens ({report.recomputed_share:.1%})",
            f"worst time   {worst}",
            f"verdict      {'nothing lost, nothing twice' if report.is_clean else 'BROKEN'}",
        )
    )


if __name__ == "__main__":
    typer.run(main)
