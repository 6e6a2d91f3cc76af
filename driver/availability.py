"""Says why work does not start: no broker, no driver, or no worker for the model. For people who wait."""

from broker.messages import WorkerState
from broker.records import Session
from broker.store import Store


def obstacle(store: Store, model: str) -> str | None:
    """What keeps requests for this model ("" for any) from running now, in one sentence; None when nothing does."""
    if not store.has_leader():
        return "no driver is running: start one with `stoker driver` (or `stoker up`); the job waits"
    alive = [session for session in store.sessions.table() if _is_alive(session, store.settings.heartbeat_timeout)]
    able = [session for session in alive if model in ("", session.model)]
    if any(session.state == WorkerState.READY for session in able):
        return None
    if able:
        return f"no worker for {_name(model)} is ready yet: {len(able)} still starting; the job waits"
    others = sorted({session.model for session in alive if session.model})
    served = f" (workers serve: {', '.join(others)})" if others else ""
    return f"no worker for {_name(model)} is alive{served}: start one with `stoker worker`; the job waits"


def _is_alive(session: Session, timeout_s: float) -> bool:
    return session.state != "dead" and session.beat_age_s <= timeout_s


def _name(model: str) -> str:
    return f"model {model!r}" if model else "any model"
