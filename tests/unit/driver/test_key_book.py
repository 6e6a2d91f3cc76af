from contextlib import closing

import pytest

from driver.batch_file.key_book import KeyBook


@pytest.fixture
def book():
    with closing(KeyBook()) as book:
        yield book


def test_a_key_keeps_its_first_number(book):
    assert [book.first(key, number) for number, key in enumerate([b"a", b"b", b"a", b"a\0", b""])] == [0, 1, 0, 3, 4]
    assert len(book) == 4


def test_what_is_in_it_is_found(book):
    book.first(b"a", 7)
    assert b"a" in book
    assert b"b" not in book
