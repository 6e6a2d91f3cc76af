import pytest

from gpu_worker.engine.text import GrowingText, StopSearch, whole_text

BYTES = "naïve 🙂 日本語 end".encode()


def decode_bytes(token_ids):
    """A tokenizer whose tokens are bytes: every character beyond ASCII is several tokens."""
    return bytes(token_ids).decode("utf-8", "replace")


PIECES = ("Hello", " wor", "ld", ", ST", "OP", " more", "")


def decode_pieces(token_ids):
    return "".join(PIECES[token_id] for token_id in token_ids)


def test_text_grows_by_whole_characters_and_becomes_the_whole_text():
    growing = GrowingText(decode_bytes)
    parts = [growing.push(token_id) for token_id in BYTES]
    assert "\ufffd" not in "".join(parts)
    assert growing.text == "".join(parts) == BYTES.decode()


def test_half_a_character_is_held_back():
    growing = GrowingText(decode_bytes)
    for token_id in "a🙂".encode()[:-1]:
        growing.push(token_id)
    assert growing.text == "a"


def test_tokens_without_text_do_not_disturb():
    growing = GrowingText(decode_pieces)
    assert [growing.push(token_id) for token_id in (0, 6, 6, 1)] == ["Hello", "", "", " wor"]


@pytest.mark.parametrize(
    ("stop", "tokens", "kept", "text"),
    [
        (("STOP",), [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4], "Hello world, "),  # across a border
        (("wor",), [0, 1, 2], [0, 1], "Hello "),
        (("Hello",), [0, 1], [0], ""),
        (("ld, S", "world"), [0, 1, 2, 3], [0, 1, 2], "Hello "),
        (("absent",), [0, 1, 2], [0, 1, 2], "Hello world"),
    ],
)
def test_stop_string_cuts_text_and_tokens(stop, tokens, kept, text):
    search = StopSearch(stop, decode_pieces)
    search.push(tokens)
    assert (search.kept, search.text()) == (kept, text)
    assert search.found == (kept != tokens or text != decode_pieces(tokens))


@pytest.mark.parametrize("step", [1, 2, 3, 100])
def test_the_cut_does_not_depend_on_how_many_tokens_come_at_once(step):
    tokens = list(b"one two STOP three")
    search = StopSearch(("STOP",), decode_bytes)
    for end in range(step, len(tokens) + step, step):
        search.push(tokens[:end])
    assert search.text() == "one two "
    assert bytes(search.kept) == b"one two STOP"


def test_stop_string_of_several_bytes_a_character():
    search = StopSearch(("本",), decode_bytes)
    assert search.push("日本語".encode())
    assert search.text() == "日"


def test_nothing_is_taken_after_a_stop():
    search = StopSearch(("b",), decode_bytes)
    search.push(b"ab")
    assert search.push(b"abcdb")
    assert bytes(search.kept) == b"ab"


@pytest.mark.parametrize(
    ("text", "stop", "cut", "with_stop"),
    [("xxab.", ("b.", "ab"), "xx", "xxab"), ("abc", ("bc", "b"), "a", "ab"), ("a cd", (" cd", "d"), "a", "a cd")],
)
def test_of_several_stop_strings_the_first_counts_and_of_those_the_shortest(text, stop, cut, with_stop):
    search = StopSearch(stop, lambda tokens: "".join(text for _ in tokens))  # all in one token
    assert search.push([0])
    assert (search.text(), search.text(with_stop=True)) == (cut, with_stop)


def test_a_short_stop_string_before_the_least_tokens_is_not_found_later_by_a_long_one():
    search = StopSearch((".", "never to be found"), decode_bytes, min_tokens=5)
    assert not search.push(b"a.b.cdef")
    assert search.push(b"a.b.cdefg.h")
    assert search.text() == "a.b.cdefg"


def test_the_beginning_of_a_character_is_no_text():
    whole = "a🙂".encode()
    assert [whole_text(decode_bytes, whole[:count]) for count in (1, 3, 5)] == ["a", "a", "a🙂"]
