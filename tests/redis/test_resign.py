def test_the_leader_gives_up_the_lead(store):
    first, second = store.leadership("a", 600), store.leadership("b", 600)
    first.acquire_or_renew()
    first.resign()
    assert not store.has_leader()
    assert second.acquire_or_renew() == 2


def test_another_cannot_take_the_lead_away(store):
    first, second = store.leadership("a", 600), store.leadership("b", 600)
    first.acquire_or_renew()
    second.resign()
    assert first.acquire_or_renew() == 1


def test_resigning_twice_leaves_the_next_leader_alone(store):
    first, second = store.leadership("a", 600), store.leadership("b", 600)
    first.acquire_or_renew()
    first.resign()
    second.acquire_or_renew()
    first.resign()
    assert second.acquire_or_renew() == 2
