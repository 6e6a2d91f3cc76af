"""Which keys in Redis are left that nothing will ever remove."""

from broker.store import Store
from broker.topology import queue_name

NO_TTL = -1
CELERYS_OWN = ("_kombu.binding",)  # a few, and always the same


def leaked_keys(store: Store) -> list[str]:
    """Keys without a time to live that belong to no open job and to no session in the heartbeat table, sorted."""
    owned = _owned(store)
    return sorted(
        name
        for name in (key.decode() for key in store.redis.scan_iter(count=1000))
        if name not in owned and not name.startswith(CELERYS_OWN) and store.redis.ttl(name) == NO_TTL
    )


def _owned(store: Store) -> set[str]:
    client, keys = store.redis, store.keys
    owned = {keys.jobs, keys.closing, keys.sessions, keys.wake, keys.leader_term, keys.load, keys.policy}
    owned |= {keys.scale, keys.scale_wanted, keys.sharing, keys.waiting_changes}
    open_jobs = [job.decode() for job in client.zrange(keys.jobs, 0, -1)]
    if open_jobs:  # empty again when the last of them is closed
        owned |= {keys.waiting, keys.stopping}
    for job in open_jobs:
        owned.update(keys.job(job).all())
    for session in client.zrange(keys.sessions, 0, -1):
        names = keys.session(session.decode())
        worker = client.hget(names.record, "worker") or b""
        owned.update((names.record, names.batches, *names.transport(), queue_name(worker.decode())))
        for batch in client.smembers(names.batches):
            batch_names = keys.batch(batch.decode())
            owned.update((batch_names.record, batch_names.requests))
    return owned
