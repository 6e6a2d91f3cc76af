"""The page: one section is replaced, all else stays; tables and stamps with known figures."""

import pytest

from tests.bench.comparison import Comparison, Result, Round
from tests.bench.page import PAGE, PageError, markers, replace_section, write_section
from tests.bench.stamp import Stamp, take_stamp
from tests.bench.summary import Summary
from tests.bench.table import Column, comparison_table, number, spread

PLACE = "# Page\n\n<!-- bench: a -->\nold\n<!-- bench: end a -->\n\nBy hand.\n"
SPEED = Column(metric="speed", title="requests/s", ratio="Stoker / it")


def rounds(*values):
    return tuple(Round(figures={"speed": value}) if value else Round(failure="too slow") for value in values)


def comparison(*other):
    stoker = Result(name="Stoker", rounds=rounds(200, 100, 300))
    return Comparison(results=(stoker, Result(name="other", rounds=rounds(*other))))


def test_a_section_is_replaced_and_nothing_else():
    assert replace_section(PLACE, "a", "\nnew\n\ntable\n") == PLACE.replace("old", "new\n\ntable")


def test_writing_twice_changes_nothing(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PLACE)
    write_section("a", "new", page)
    once = page.read_text()
    write_section("a", "new", page)
    assert page.read_text() == once == PLACE.replace("old", "new")


@pytest.mark.parametrize(
    "text", ["", PLACE + PLACE, PLACE.replace("end a", "end b"), "\n".join(reversed(markers("a")))]
)
def test_a_page_without_the_place_is_refused(text):
    with pytest.raises(PageError, match="bench: a"):
        replace_section(text, "a", "new")


def test_every_section_of_the_real_page_has_its_end():
    text = PAGE.read_text("utf-8")
    begun = [line for line in text.splitlines() if line.startswith("<!-- bench: ") and "bench: end " not in line]
    for line in begun:
        name = line.removeprefix("<!-- bench: ").removesuffix(" -->")
        assert "\nnew\n<!-- bench: end" in replace_section(text, name, "new")


def test_a_table_shows_medians_ranges_ratios_and_notes():
    assert comparison_table(comparison(100, 100, 100), [SPEED], {"other": "why"}).splitlines() == [
        "|  | requests/s | Stoker / it |  |",
        "|---|---|---|---|",
        "| Stoker | 200 (100 to 300) | 1 |  |",
        "| other | 100 (100 to 100) | 2.00 (1.00 to 3.00) | why |",
    ]


def test_a_failure_stands_in_the_table():
    found = comparison_table(comparison(100, 0, 100), [SPEED]).splitlines()[-1]
    assert found == "| other | 100 (100 to 100) **failed in 1 of 3 rounds**: too slow | 2.50 (2.00 to 3.00) |"
    assert "| other | - **failed in 3 of 3 rounds**: too slow | - |" in comparison_table(comparison(0, 0, 0), [SPEED])


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (0.0123, "0.012"), (0.5, "0.50"), (7.126, "7.13"), (45.67, "45.7"), (517.4, "517"), (24_914, "24,900")],
)
def test_numbers_have_three_digits(value, shown):
    assert number(value) == shown


def test_a_single_measurement_has_no_range():
    assert spread(Summary(median=5.0, low=5.0, high=5.0, count=1)) == "5.00"


def test_a_stamp_says_where_when_and_how():
    stamp = Stamp(
        date="2026-01-02 03:04 UTC",
        cpus=2,
        cpu_model="Some CPU",
        memory_gib=23.6,
        load_before=0.25,
        python="3.11.7",
        stoker="0.1.0 (abc)",
        peers={"celery": "5.7.0"},
        rounds=5,
        command="scripts/bench overhead",
    )
    text = stamp.text()
    for part in ("2026-01-02", "2 CPUs (Some CPU)", "24 GiB", "before 0.2", "3.11.7", "0.1.0 (abc)", "celery 5.7.0"):
        assert part in text
    assert "`scripts/bench overhead`, in 5 rounds" in text


def test_this_machine_has_a_stamp():
    stamp = take_stamp("scripts/bench x", 1, 0.5)
    assert stamp.cpus > 0
    assert stamp.memory_gib > 0
    assert stamp.cpu_model
