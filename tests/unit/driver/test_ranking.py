from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from driver.ranking import SPARE, Ranking


def names(ranking):
    return [name for _, name in ranking.in_order()]


@given(st.lists(st.tuples(st.integers(0, 9), st.one_of(st.none(), st.integers(0, 5))), max_size=60))
def test_names_come_by_their_latest_keys(happens):
    ranking, keys = Ranking(), {}
    for number, key in happens:
        name = f"n{number}"
        if key is None:
            ranking.drop(name)
            keys.pop(name, None)
        else:
            ranking.put(name, key)
            keys[name] = key
        assert list(ranking.in_order()) == sorted(ranking.in_order(), key=lambda item: item[0])
        assert {name: key for key, name in ranking.in_order()} == keys
        assert len(ranking) == len(keys) == len(names(ranking))


def test_of_equals_the_one_that_came_first_is_first():
    ranking = Ranking()
    for name in "cab":
        ranking.put(name, 1)
    assert names(ranking) == ["c", "a", "b"]


def test_the_first_can_be_taken_without_the_others():
    ranking = Ranking()
    for number in range(1000):
        ranking.put(str(number), -number)
    assert [name for _, name in islice(ranking.in_order(), 3)] == ["999", "998", "997"]
    assert len(names(ranking)) == 1000


def test_what_is_outdated_is_not_kept_for_ever():
    ranking = Ranking()
    for number in range(1000):
        ranking.put("a", number)
        ranking.put("b", 5000 - number)
    assert len(ranking._heap) <= 4 + SPARE
