import pytest

from broker import codec
from broker.deltas import TextDelta
from broker.errors import MessageError


def test_what_follows_is_joined():
    first = TextDelta(index=3, offset=5, text="ab")
    assert first.end == 7
    assert first.followed_by(TextDelta(index=3, offset=7, text="🙂")) == TextDelta(index=3, offset=5, text="ab🙂")


@pytest.mark.parametrize(("index", "offset"), [(3, 6), (3, 8), (4, 7)])
def test_what_does_not_follow_is_not_joined(index, offset):
    with pytest.raises(AssertionError, match="not the piece behind"):
        TextDelta(index=3, offset=5, text="ab").followed_by(TextDelta(index=index, offset=offset, text="c"))


@pytest.mark.parametrize("data", [b"\x93\xff\x00\xa1a", b"\x93\x00\xff\xa1a", b"\x92\x00\x00", b"\xa1a"])
def test_a_piece_without_a_place_is_refused(data):
    with pytest.raises(MessageError, match="TextDelta"):
        codec.decode(TextDelta, data)


def test_later_fields_are_ignored():
    assert codec.decode(TextDelta, b"\x94\x01\x02\xa1a\x05") == TextDelta(index=1, offset=2, text="a")
