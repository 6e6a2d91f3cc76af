"""The thread that renews the session's lease and reports progress, whatever the rest of the process does."""

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from broker.errors import BrokerError
from broker.records import BeatAnswer, Heartbeat

logger = logging.getLogger(__name__)

RETRY_S = 0.5  # after a beat that failed: who is back soon is to be heard of soon


class Pulse(Protocol):
    """How a beat is sent: `broker.pulse`, or a test's own."""

    @property
    def is_settled(self) -> bool:
        """Whether the last beat told all there is to tell; else another should follow at once."""
        ...

    def beat(self, heartbeat: Heartbeat) -> BeatAnswer:
        """Renew the lease and report."""
        ...


class Heart:
    """Beats every `interval_s` seconds until stopped; `on_answer` hears what each beat learned."""

    def __init__(
        self,
        pulse: Pulse,
        interval_s: float,
        read: Callable[[], Heartbeat],
        on_answer: Callable[[BeatAnswer], None],
    ) -> None:
        self._pulse = pulse
        self._interval_s = interval_s
        self._read = read
        self._on_answer = on_answer
        self._wanted = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._broker_up = True
        self._news = threading.Condition()
        self._begun = 0
        self._answered = 0

    def start(self) -> None:
        """Start beating."""
        self._thread.start()

    def beat_now(self) -> int:
        """Do not wait for the interval: something changed that the driver should see. Only sets a flag.

        Returns the number for `answered`.
        """
        number = self._begun + 1  # one that is on its way may have read what was before
        self._wanted.set()
        return number

    def answered(self, number: int, timeout_s: float) -> bool:
        """Wait so long for Redis to have taken this beat, or a later one."""
        with self._news:
            return self._news.wait_for(lambda: self._answered >= number, timeout_s)

    def stop(self) -> None:
        """Stop beating. Safe to call twice, and from the heartbeat itself."""
        self._stopped.set()
        self._wanted.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def step(self) -> None:
        """One beat, or two where one leaves something to tell. An outage is logged once; the next beat tries again."""
        number = self._begun = self._begun + 1
        try:
            self._beat()
            if not self._pulse.is_settled and not self._stopped.is_set():
                self._beat()
        except BrokerError as error:
            if self._broker_up:
                logger.warning("no heartbeat: %s", error)
            self._broker_up = False
            return
        self._broker_up = True
        with self._news:
            self._answered = number
            self._news.notify_all()

    def _beat(self) -> None:
        self._on_answer(self._pulse.beat(self._read()))

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._wanted.clear()
            try:
                self.step()
            except Exception:  # a worker without a heart would work on, and nobody would know
                logger.exception("a heartbeat failed")
            self._wanted.wait(self._interval_s if self._broker_up else min(self._interval_s, RETRY_S))
