"""The plots of docs/scheduling.md, drawn from new simulations: `scripts/simulate plots`."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from tests.simulate import svg
from tests.simulate.scenarios import Scenario, equal, heterogeneous, mixed, world
from tests.simulate.timeline import Timeline
from tests.simulate.workload import SimulatedJob

NAMES = {"stoker": "Stoker", "fifo": "FIFO", "random": "random"}
COLOURS = {"stoker": "#1b7837", "fifo": "#762a83", "random": "#e08214"}
CLASSES = {10: ("high", "#1b7837"), 0: ("normal", "#5aae61"), -10: ("low", "#a6dba0")}
GOAL = 1.03
SHARE_S = 5.0  # over which a share is taken


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """How large the simulated systems are."""

    gpus: int = 50
    requests: int = 50_000  # of the run with equal jobs; a thousand for each GPU is what the goals are about
    heterogeneous: int = 20_000
    mixed: int = 30_000
    small_jobs: int = 150
    shares: int = 12_000


Runs = Mapping[str, Timeline]  # by planner


def draw(folder: Path, sizes: Sizes, say: Callable[[str], None] = lambda _: None) -> list[Path]:
    """Simulate, and write the plots into a folder. Returns the files."""
    written: list[Path] = []
    for name, text in _plots(sizes, say):
        written.append(folder / f"{name}.svg")
        written[-1].write_text(text, "utf-8")
        say(f"wrote {written[-1]}")
    return written


def _plots(sizes: Sizes, say: Callable[[str], None]) -> Iterator[tuple[str, str]]:
    scenarios = {
        f"{sizes.gpus} equal GPUs": equal(sizes.gpus, sizes.requests),
        "GPUs of speed 1, 2, 4, 4": heterogeneous(sizes.heterogeneous),
        f"{sizes.gpus} GPUs, some die": mixed(sizes.gpus, sizes.mixed, sizes.small_jobs),
    }
    runs = {label: _run_all(label, scenario, say) for label, scenario in scenarios.items()}
    alike, _, dying = runs.values()
    yield "makespan", _makespan(runs)
    yield "utilisation", _utilisation(f"Utilisation: {sizes.gpus} equal GPUs, 10 equal jobs", alike)
    yield "utilisation-deaths", _utilisation(f"Utilisation: {sizes.gpus} GPUs, some die and come back", dying)
    yield "waiting-by-priority", _waiting(dying)
    yield "fairness", _fairness(alike)
    yield "shares", _shares(sizes.shares)


def _run_all(label: str, scenario: Scenario, say: Callable[[str], None]) -> Runs:
    say(f"simulates: {label}")
    return {name: _timeline(scenario, name) for name in NAMES}


def _timeline(scenario: Scenario, name: str) -> Timeline:
    measures = world(scenario, name, measures=Timeline).run()
    assert isinstance(measures, Timeline)
    return measures


def _makespan(runs: Mapping[str, Runs]) -> str:
    groups = [
        (label, [_ratio(name, timeline.results().over_bound) for name, timeline in by_name.items()])
        for label, by_name in runs.items()
    ]
    return svg.bars(f"Makespan over its lower bound (the bars begin at 1; the goal is {GOAL})", groups, start=1.0)


def _ratio(name: str, ratio: float) -> svg.Bar:
    return svg.Bar(value=ratio, text=f"{NAMES[name]}: {ratio:.3f}", colour=COLOURS[name])


def _utilisation(title: str, runs: Runs) -> str:
    return svg.lines(
        title, [_line(name, timeline.utilisation()) for name, timeline in runs.items()], x_name="s", y_most=1
    )


def _fairness(runs: Runs) -> str:
    return svg.lines(
        "Jain's index of what 10 equal jobs have been given, while all of them wait",
        [_line(name, timeline.fairness()) for name, timeline in runs.items()],
        x_name="s",
        y_most=1,
    )


def _line(name: str, points: list[tuple[float, float]]) -> svg.Line:
    return svg.Line(name=NAMES[name], colour=COLOURS[name], points=tuple(points))


def _waiting(runs: Runs) -> str:
    groups: list[tuple[str, list[svg.Bar]]] = []
    for name, timeline in runs.items():
        waits = timeline.results().wait_s
        rows = [
            svg.Bar(value=waits[priority], text=f"{label}: {waits[priority]:.1f} s", colour=colour)
            for priority, (label, colour) in CLASSES.items()
        ]
        groups.append((NAMES[name], rows))
    return svg.bars("Seconds from a job's arrival to its first output, by class (mean)", groups)


def _shares(requests: int) -> str:
    """Two users, one of them with two jobs of different weight; the other comes later; then a job of a higher class."""
    half = requests // 2
    arrivals_s = (0.0, 0.0, half / 320, half / 160)
    jobs = {
        "ann, weight 1": SimulatedJob(count=half, user="ann"),
        "ann, weight 3": SimulatedJob(count=half, user="ann", weight=3),
        "bob": SimulatedJob(count=requests // 6, user="bob", at_s=arrivals_s[2]),
        "carl, high": SimulatedJob(count=requests // 12, user="carl", at_s=arrivals_s[3], priority=10),
    }
    timeline = _timeline(Scenario(speeds=(1.0,) * 10, jobs=tuple(jobs.values())), "stoker")
    colours = ("#a6dba0", "#1b7837", "#762a83", "#e08214")
    return svg.lines(
        f"Each job's part of the tokens of the last {SHARE_S:g} s (10 GPUs)",
        [
            svg.Line(name=name, colour=colour, points=tuple(timeline.shares(place, SHARE_S)))
            for place, (name, colour) in enumerate(zip(jobs, colours, strict=True))
        ],
        x_name="s",
        y_most=1,
    )
