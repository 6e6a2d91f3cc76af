import random

import pytest
from hypothesis import given

from driver.placement import choose_worker
from tests.support import views
from tests.support.views import worker


def chosen(*workers, model="m"):
    worker = choose_worker(workers, model)
    return worker and worker.worker


def test_the_one_with_most_free_slots_is_chosen():
    assert chosen(worker("a", free_slots=3), worker("b", free_slots=5), worker("c", free_slots=4)) == "b"


def test_free_tokens_decide_between_equal_slots():
    assert chosen(worker("a", free_tokens=10), worker("b", free_tokens=20)) == "b"


def test_the_name_decides_between_equals():
    assert chosen(worker("b"), worker("a"), worker("c")) == "a"


@pytest.mark.parametrize("full", [{"free_slots": 0}, {"free_tokens": 0}, {"free_batches": 0}, {"isolated": True}])
def test_one_without_room_is_not_chosen(full):
    assert chosen(worker("a", **full)) is None
    assert chosen(worker("a", **full), worker("b", free_slots=1)) == "b"


def test_only_a_worker_of_the_model_is_chosen():
    assert chosen(worker("a", model="other")) is None
    assert chosen(worker("a", model="other"), worker("b"), model="m") == "b"


def test_no_model_means_any():
    assert chosen(worker("a", model="other"), model="") == "a"


def test_nobody_there_is_nobody_chosen():
    assert chosen() is None


@given(views.workers)
def test_the_order_of_the_workers_does_not_matter(workers):
    shuffled = list(workers)
    random.Random(0).shuffle(shuffled)
    assert choose_worker(shuffled, "m") == choose_worker(workers, "m")
