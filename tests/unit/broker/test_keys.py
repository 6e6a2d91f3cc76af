from itertools import chain

from broker.keys import Keys


def every_key(namespace):
    keys = Keys(namespace)
    tables = [value for name, value in vars(keys).items() if not name.startswith("_")]
    groups = (keys.job("x"), keys.job("y"), keys.batch("x"), keys.batch("y"), keys.session("x"), keys.session("y"))
    fields = chain.from_iterable([getattr(group, name) for name in group.__struct_fields__] for group in groups)
    return [*tables, *fields, keys.worker("x"), keys.worker("y")]


def test_no_two_keys_are_the_same():
    keys = every_key("a")
    assert len(set(keys)) == len(keys)


def test_every_key_is_in_its_namespace():
    assert all(key.startswith("a:") for key in every_key("a"))
    assert not set(every_key("a")) & set(every_key("b"))


def test_all_keys_of_a_job_expire_together():
    job = Keys("a").job("x")
    assert sorted(job.all()) == sorted(getattr(job, name) for name in job.__struct_fields__)


def test_what_kombu_keeps_is_the_sessions_own():
    session = Keys("a").session("x")
    assert session.transport() == [session.unacked, session.unacked_index, session.unacked_mutex]
    assert not set(session.transport()) & set(Keys("a").session("y").transport())
