"""What `scripts/bench` can run: scenarios that become sections of `docs/benchmarks.md`."""

from collections.abc import Callable, Mapping, Sequence

import msgspec
import typer

from tests.bench.comparison import Comparison
from tests.bench.page import PAGE, write_section
from tests.bench.peer import Peer
from tests.bench.stamp import take_stamp


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of a scenario has found."""

    body: str  # Markdown, without heading and stamp
    rounds: int
    load_before: float  # load average of the minute before the run
    peers: Mapping[str, str] = {}  # versions by name
    failures: Sequence[str] = ()
    plots: Mapping[str, str] = {}  # SVG by its file's name in docs/, which the body shows


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """`run(quick)` measures with the sizes of the real run, or with tiny ones and the peers that are installed."""

    name: str  # of its section in the page
    command: str  # that repeats it
    run: Callable[[bool], Report]


def publish(name: str, command: str, report: Report, *, write: bool) -> bool:
    """Write a report into the page, or print it. Whether nothing failed."""
    stamp = take_stamp(command, report.rounds, report.load_before, report.peers)
    text = f"{stamp.text()}\n\n{report.body.strip()}"
    if write:
        for file_name, svg in report.plots.items():
            (PAGE.parent / file_name).write_text(svg, "utf-8")
        write_section(name, text)
        typer.echo(f"{name}: written to docs/benchmarks.md")
    else:
        typer.echo(f"\n{text}\n")
    for failure in report.failures:
        typer.echo(f"{name}: FAILED: {failure}", err=True)
    return not report.failures


def chosen(peers: Mapping[str, Peer], *, quick: bool) -> dict[str, Peer]:
    """Those that take part: all, or in a quick run those whose packages are installed."""
    return {name: peer for name, peer in peers.items() if not quick or peer.is_installed}


def report_of(
    comparison: Comparison, body: str, versions: Mapping[str, str], plots: Mapping[str, str] | None = None
) -> Report:
    """The report of one comparison."""
    return Report(
        body=body,
        rounds=comparison.rounds,
        load_before=comparison.load_before,
        peers=versions,
        failures=comparison.failures,
        plots=plots or {},
    )
