"""Does what the answer to a beat asks for: end, give requests back, drain; and looks for jobs that were cancelled."""

import logging
import os
import signal
from collections.abc import Callable

from broker.queries import Queries
from broker.records import BeatAnswer, BeatReply
from gpu_worker.exits import EXIT_FENCED, end_process
from gpu_worker.in_hand import InHand
from gpu_worker.seat import Seat
from gpu_worker.standing import IN_SERVICE, Standing

logger = logging.getLogger(__name__)


class Orders:
    """What the leader wants of one session. Called by the heartbeat's thread, after every beat that was answered."""

    def __init__(
        self,
        main_pid: int,
        standing: Standing,
        seat: Seat,
        in_hand: InHand,
        queries: Queries,
        drain: Callable[[], None],
    ) -> None:
        self._main_pid = main_pid
        self._standing = standing
        self._seat = seat
        self._in_hand = in_hand
        self._queries = queries
        self._drain = drain

    def follow(self, answer: BeatAnswer) -> None:
        """Do as the answer says.

        Raises:
            BrokerError: Redis cannot be asked for cancelled jobs.
        """
        if answer.reply is BeatReply.FENCED:
            end_process(EXIT_FENCED, "this session was declared dead; its work is elsewhere now")
        if answer.recalled:
            self._recall(answer.recalled, begun=answer.begun)
        if answer.reply is BeatReply.DRAIN and self._standing.state in IN_SERVICE:
            logger.warning("asked to drain")
            self._drain()
            os.kill(self._main_pid, signal.SIGTERM)
        self._look_for_cancelled_jobs()

    def _recall(self, count: int, *, begun: bool) -> None:
        """Have requests given back that would end sooner elsewhere; those that have begun only where that is wanted."""
        loop = self._seat.loop
        batches = self._in_hand.unhurried() if begun else ()
        found = self._in_hand.recall(loop.movable(begun=batches), count) if loop is not None else 0
        logger.info("asked to give back %d requests; found %d", count, found)

    def _look_for_cancelled_jobs(self) -> None:
        job_ids = self._in_hand.job_ids()
        if job_ids:
            cancelled = zip(job_ids, self._queries.cancelled(job_ids), strict=True)
            self._in_hand.cancel_jobs({job_id for job_id, is_cancelled in cancelled if is_cancelled})
