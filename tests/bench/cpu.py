"""CPU time of processes."""

from collections.abc import Iterable

import psutil

from broker.embedded import EmbeddedServer


def cpu_s(pids: Iterable[int]) -> float:
    """Seconds that these processes have computed so far, all threads; one that has ended counts nothing."""
    return sum(_of(pid) for pid in set(pids))


def server_pids(server: EmbeddedServer) -> list[int]:
    """Of the server and its guard."""
    guard = psutil.Process(server.pid)
    return [guard.pid, *(child.pid for child in guard.children())]


def _of(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return times.user + times.system
