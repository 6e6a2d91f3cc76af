"""Releases what a dead worker held. Everything here may run twice, or stop at any line, and do no harm."""

import contextlib
import logging
from collections.abc import Sequence

import msgspec

from broker.clock import Clock
from broker.errors import JobNotFoundError, MessageError
from broker.messages import failed_output
from broker.records import BatchRecord, Cause, QuarantinedRequest, Session
from broker.states import WorkerState
from broker.store import Store
from driver.detector import DetectorLimits, Verdict, judge
from driver.silence import Silence

logger = logging.getLogger(__name__)


class Recovery:
    """The one redeliverer: only the leading driver runs it."""

    def __init__(self, store: Store, limits: DetectorLimits, clock: Clock) -> None:
        self._store = store
        self._limits = limits
        self._presence = store.presence(clock)
        self._silence_of_all = Silence(clock, limits.presence_counts_after)

    def recover(self, sessions: Sequence[Session], *, trust_silence: bool, trust_absence: bool) -> int:
        """Fence the dead and the hung, release what they hold, forget them. Returns requests pending again.

        Without `trust_silence` nobody is declared dead for missed beats: after an outage of Redis all beats are old.
        Without `trust_absence` nobody is for missed beats and a closed connection.
        """
        absent = self._absent(sessions) if trust_absence else set[str]()
        released = 0
        for session in sessions:
            dead = self._fence(session, trust_silence=trust_silence, is_absent=session.id in absent)
            if dead is not None:
                released += self._bury(dead)
        return released

    def _absent(self, sessions: Sequence[Session]) -> set[str]:
        """The sessions that have missed beats, and whose connection is closed; nothing is asked while all beat.

        None are while not one worker beats, and until all have had the time to come back.
        """
        if self._limits.are_all_silent(sessions):
            self._silence_of_all.forgive()
        if not self._silence_of_all.counts:
            return set()
        silent = [row for row in sessions if self._limits.may_be_absent(row) and row.state != "dead"]
        closed = self._presence.closed(row.connection for row in silent)
        return {row.id for row in silent if row.connection in closed}

    def _fence(self, session: Session, *, trust_silence: bool, is_absent: bool) -> Session | None:
        """The session if it is dead, declaring it so where that is due; None when it lives."""
        if session.state == "dead":
            return session
        verdict = judge(session, self._limits, connected=False if is_absent else None)
        if verdict is Verdict.HUNG:
            cause, reason = Cause.HUNG, f"no engine step for {session.stalled_s:.0f} s with work in hand"
        elif verdict is Verdict.DEAD and is_absent:
            reason = f"its connection is closed and no heartbeat for {session.beat_age_s:.1f} s"
            cause = _cause_of_silence(session)
        elif verdict is Verdict.DEAD and trust_silence:
            cause, reason = _cause_of_silence(session), f"no heartbeat for {session.beat_age_s:.1f} s"
        else:
            return None
        if not self._store.sessions.expire(session.id, cause, reason, session.beat_ms):
            return None  # it has beaten, or was declared dead, since
        logger.warning("%s is %s: %s", session.worker, cause, reason)
        return msgspec.structs.replace(session, state="dead", cause=cause, reason=reason)

    def _bury(self, session: Session) -> int:
        blamed = session.cause in (Cause.CRASHED, Cause.HUNG, Cause.LOST)
        forgiven = self._store.settings.max_losses if session.cause == Cause.LOST else 0
        released = 0
        for batch in self._store.queries.batches(session.id):
            if blamed:
                self._quarantine_culprit(session, batch, forgiven)
            released += self._store.ledger.release_batch(batch, count_attempt=blamed, forgiven=forgiven)
        if not self._store.sessions.forget(session):
            logger.info("%s still holds batches", session.worker)
        if released:
            logger.warning("%s: %d requests are pending again (%s)", session.worker, released, session.reason)
        return released

    def _quarantine_culprit(self, session: Session, batch: BatchRecord, forgiven: int) -> None:
        """Give up a request that was alone with its worker when that died, and has no attempt left."""
        indices = self._store.queries.batch_indices(batch.id)
        if not batch.isolated or batch.state != "claimed" or len(indices) != 1:
            return
        index = indices[0]
        losses = self._store.queries.losses(batch.job, index)
        counted = self._store.queries.attempts(batch.job, index) + 1
        if losses < forgiven or counted < self._store.settings.max_attempts:
            return
        deaths = counted + min(losses, self._store.settings.max_losses)
        reason = f"its worker died {deaths} times while running it, the last time alone: {session.reason}"
        output = failed_output(index, "worker_crash", reason, worker_id=session.worker)
        # A request that does not decode, or whose job is gone, leaves no copy; it is given up all the same.
        with contextlib.suppress(JobNotFoundError, MessageError):
            self._keep_copy(batch.job, index, reason)
        with contextlib.suppress(JobNotFoundError):
            self._store.ledger.commit(batch.id, batch.job, batch.session, [output])
        logger.warning("job %s request %d is given up: %s", batch.job, index, reason)

    def _keep_copy(self, job_id: str, index: int, reason: str) -> None:
        request = self._store.queries.request(job_id, index)
        if request is None:
            return
        entry = QuarantinedRequest(
            job_id=job_id,
            index=index,
            model=self._store.queries.job(job_id).model,
            request=request,
            reason=reason,
            at_ms=self._store.queries.server_time_ms(),
        )
        self._store.ledger.quarantine(entry)


def _cause_of_silence(session: Session) -> Cause:
    """A worker that was draining was ended on purpose, by whoever had no more time (a spot machine, `docker stop`)."""
    return Cause.STOPPED if session.drain or session.state == WorkerState.DRAINING else Cause.LOST
