"""A worker's state, and what it may do in it: the driver sees it in the heartbeat, batches act on it."""

import threading
import time

from broker.errors import StokerError
from broker.states import WorkerState

IN_SERVICE = (WorkerState.READY, WorkerState.SLEEPING)


class NotNowError(StokerError):
    """The worker cannot do this in its state, or while it does something else."""

    code = "not_now"
    retryable = True


class Standing:
    """Changes from thread to thread; safe in a signal handler."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._state = WorkerState.LOADING
        self._reason = ""
        self._drain_until_s = float("inf")
        self._away = False  # takes no batches, as the engine is being worked on or sleeps
        self._finishing = False  # but those in hand may end

    @property
    def state(self) -> WorkerState:
        """The state of now."""
        return self._state

    @property
    def reason(self) -> str:
        """Why, or how far."""
        return self._reason

    @property
    def takes_batches(self) -> bool:
        """Whether a batch that comes now may run."""
        return not self._away and not self.gives_back

    @property
    def gives_back(self) -> bool:
        """Whether batches must be given back now: the engine is needed, a drain's time is over, or it is set aside."""
        if self._away and not self._finishing:
            return True
        return self._state is WorkerState.POISONED or time.monotonic() >= self._drain_until_s

    @property
    def is_ending(self) -> bool:
        """Whether this life of the worker comes to its end."""
        return self._state in (WorkerState.DRAINING, WorkerState.POISONED)

    def ready(self) -> None:
        """The first engine is there."""
        with self._lock:
            if self._state is WorkerState.LOADING:
                self._state, self._reason = WorkerState.READY, ""

    def drain(self, seconds: float) -> bool:
        """Take nothing new; what is in hand has so long. False when that goes on already."""
        with self._lock:
            if self._state is WorkerState.DRAINING:
                return False
            self._state = WorkerState.DRAINING
            self._drain_until_s = time.monotonic() + seconds
            return True

    def set_aside(self, reason: str) -> bool:
        """Take nothing more, for ever. False when that was so already."""
        with self._lock:
            if self._state is WorkerState.POISONED:
                return False
            self._state, self._reason = WorkerState.POISONED, reason
            return True

    def leave(self, state: WorkerState, reason: str, *, finish: bool) -> WorkerState:
        """Take no batches from now on; those in hand are given back, or may `finish`. Returns the state before.

        Raises:
            NotNowError: the worker is not in service.
        """
        with self._lock:
            if self._state not in IN_SERVICE:
                raise NotNowError(f"the worker is {self._state}")
            before = self._state
            self._away, self._finishing = True, finish
            self._state, self._reason = state, reason
            return before

    def explain(self, reason: str) -> None:
        """Say how far it is, unless something more important is to be said."""
        with self._lock:
            if not self.is_ending:
                self._reason = reason

    def come_back(self, state: WorkerState, reason: str = "") -> None:
        """Be ready again, or sleep; a worker that is coming to its end stays so."""
        with self._lock:
            if not self.is_ending:
                self._away = state is not WorkerState.READY
                self._state, self._reason = state, reason
