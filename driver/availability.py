"""Says why work does not start: no broker, no driver, or no worker for the model. For people who wait."""

from broker.records import Session
from broker.states import WorkerState
from broker.store import Store


def obstacle(store: Store, model: str, *, private: bool = False) -> str | None:
    """What keeps requests for this model ("" for any) from running now, in one sentence; None when nothing does.

    On a private broker nobody else can start what is missing, so there is no advice to do so.
    """
    if not store.has_leader():
        advice = "" if private else ": start one with `stoker driver` (or `stoker up`)"
        return f"no driver is running{advice}"
    alive = [session for session in store.sessions.table() if _is_alive(session, store.settings.heartbeat_timeout)]
    able = [session for session in alive if model in ("", session.model)]
    if any(session.state == WorkerState.READY for session in able):
        return None
    if able and all(session.state == WorkerState.SLEEPING for session in able):
        advice = "" if private else f": wake it with `stoker ctl {able[0].worker} wake`"
        return f"the workers for {_name(model)} are asleep{advice}"
    if able:
        return f"no worker for {_name(model)} is ready yet: {len(able)} still starting"
    others = sorted({session.model for session in alive if session.model})
    served = f" (workers serve: {', '.join(others)})" if others else ""
    wanted = store.scale.read().wanted
    advice = "" if private else ": start one with `stoker worker`"
    advice = f": {wanted} wanted" if wanted > 0 else advice
    return f"no worker for {_name(model)} is alive{served}{advice}"


def _is_alive(session: Session, timeout_s: float) -> bool:
    return session.state != "dead" and session.beat_age_s <= timeout_s


def _name(model: str) -> str:
    return f"model {model!r}" if model else "any model"
