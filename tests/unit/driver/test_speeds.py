import pytest

from broker.records import Session
from driver.speeds import Speeds


def row(at_s, tokens=0, *, name="s", running=8, **fields):
    values = {"state": "ready", "slots": 8, **fields}
    return Session(
        id=name,
        worker=name,
        epoch=1,
        beat_ms=int(at_s * 1000),
        generated_tokens=tokens,
        running=running,
        **values,
    )


def noted(*tables):
    speeds = Speeds()
    for table in tables:
        speeds.note(table)
    return speeds


def test_nobody_knows_at_first():
    assert noted([row(0)]).tokens_per_s == 0


def test_a_speed_is_tokens_over_the_time_between_beats():
    assert noted([row(10, 500)], [row(12, 900)]).tokens_per_s == 200


def test_beats_close_together_are_measured_together():
    assert noted([row(0)], [row(0.2, 100)], [row(0.4, 100)], [row(2, 400)]).tokens_per_s == 200


def test_a_worker_with_little_to_do_is_not_slow():
    full = [[row(0)], [row(1, 800)]]
    assert noted(*full, [row(2, 810, running=1)], [row(3, 900, running=1)]).tokens_per_s == 800
    assert noted([row(0, running=1)], [row(1, 100, running=1)]).tokens_per_s == 100


def test_a_full_worker_that_gets_slower_is_believed_bit_by_bit():
    assert noted([row(0)], [row(1, 800)], [row(2, 1_200)]).tokens_per_s == pytest.approx(800 - 0.3 * 400)


def test_until_there_is_a_measurement_the_workers_own_counts():
    start = row(0, running=0, decode_tokens_per_s=500.0)
    assert noted([start]).tokens_per_s == 500
    assert noted([row(0, state="loading")], [row(1, running=0, decode_tokens_per_s=500.0)]).tokens_per_s == 500
    full = [row(1, 0, decode_tokens_per_s=500.0)], [row(2, 400, decode_tokens_per_s=500.0)]
    assert noted([start], *full).tokens_per_s == pytest.approx(470)


def test_an_idle_worker_says_nothing():
    assert noted([row(0, running=0)], [row(5, 50, running=0)]).tokens_per_s == 0


def test_what_is_in_use_is_what_all_generate_now():
    tables = [row(0, name="a"), row(0, name="b", running=1)], [row(1, 100, name="a"), row(1, 10, name="b", running=1)]
    assert noted(*tables).used_tokens_per_s == 110
    assert noted(*tables, [row(2, 100, name="a", running=0)]).used_tokens_per_s == 0


def test_the_mean_of_workers_counts_and_outlives_them():
    speeds = noted([row(0, name="a"), row(0, name="b")], [row(1, 100, name="a"), row(1, 300, name="b")])
    assert speeds.tokens_per_s == 200
    speeds.note([])
    assert speeds.tokens_per_s == 200
    speeds.note([row(5, name="c")])
    assert speeds.tokens_per_s == 200


def test_a_start_lasts_from_the_opening_until_ready():
    assert noted([row(1, state="loading", opened_ms=500)], [row(4, opened_ms=500)]).startup_s == 3.5
    assert noted([row(4, opened_ms=500)], [row(5, opened_ms=500)]).startup_s == 0


def test_a_model_that_is_loaded_again_is_no_start():
    looks = [row(1, state="loading", opened_ms=500)], [row(4, opened_ms=500)]
    again = [row(100, state="loading", opened_ms=500)], [row(110, opened_ms=500)]
    assert noted(*looks, *again).startup_s == 3.5
