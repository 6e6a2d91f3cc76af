"""Where and when a section was measured, so that somebody else can do it again."""

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import psutil

ROOT = Path(__file__).parents[2]


class Stamp(msgspec.Struct, frozen=True, kw_only=True):
    """One run on one machine."""

    date: str
    cpus: int
    cpu_model: str
    memory_gib: float
    load_before: float  # average of the minute before the run
    python: str
    stoker: str
    peers: Mapping[str, str]  # versions by name
    rounds: int
    command: str

    def text(self) -> str:
        """The stamp as the page shows it."""
        versions = ", ".join(f"{name} {version}" for name, version in self.peers.items())
        repeated = "once" if self.rounds == 1 else f"in {self.rounds} rounds"
        return (
            f"`{self.command}`, {repeated}, on {self.date}: {self.cpus} CPUs ({self.cpu_model}), "
            f"{self.memory_gib:.0f} GiB, load average before {self.load_before:.1f}; Python {self.python}, "
            f"Stoker {self.stoker}{', ' if versions else ''}{versions}."
        )


def take_stamp(command: str, rounds: int, load_before: float, peers: Mapping[str, str] | None = None) -> Stamp:
    """The stamp of a run on this machine that has just ended."""
    return Stamp(
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        cpus=len(os.sched_getaffinity(0)),
        cpu_model=_cpu_model(),
        memory_gib=psutil.virtual_memory().total / 2**30,
        load_before=load_before,
        python=platform.python_version(),
        stoker=_stoker_version(),
        peers=peers or {},
        rounds=rounds,
        command=command,
    )


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _stoker_version() -> str:
    version = importlib.metadata.version("stoker")
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude=*"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return f"{version} ({done.stdout.strip()})" if done.returncode == 0 else version
