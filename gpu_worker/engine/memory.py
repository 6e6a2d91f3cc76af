"""How much of this machine's memory this process uses, and how much there is."""

import psutil

MIB = 1 << 20


def rss_mib() -> float:
    """Resident memory of this process, in MiB."""
    return round(psutil.Process().memory_info().rss / MIB, 1)


def available_bytes() -> int:
    """What may be allocated without swapping."""
    return int(psutil.virtual_memory().available)
