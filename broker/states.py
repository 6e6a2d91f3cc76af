"""The states of a job and of a worker, by the words that stand in Redis."""

from enum import StrEnum


class JobState(StrEnum):
    """What the ledger says of a whole job."""

    OPEN = "open"  # requests may still be added
    RUNNING = "running"  # sealed, and not every request has its output
    DONE = "done"  # every request has its output


class WorkerState(StrEnum):
    """What a worker says of itself in its heartbeat."""

    STARTING = "starting"  # the name is reserved, the process is coming up
    LOADING = "loading"  # the model is being loaded and warmed up
    READY = "ready"
    SLEEPING = "sleeping"  # its model is out of the GPU's memory; woken by hand
    DRAINING = "draining"  # finishes what it has, takes nothing new
    POISONED = "poisoned"  # fails everything; set aside
    DEAD = "dead"  # its lease is over, or its end was reported; set by others
