"""Puts what a run has measured into its place in `docs/benchmarks.md`, between two comments that name it."""

from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/benchmarks.md"


class PageError(Exception):
    """The page has no place for a section, or more than one."""


def write_section(name: str, body: str, page: Path = PAGE) -> None:
    """Replace a section in the file.

    Raises:
        PageError: see `replace_section`.
    """
    page.write_text(replace_section(page.read_text("utf-8"), name, body), "utf-8")


def replace_section(text: str, name: str, body: str) -> str:
    """The page with another body between the comments `<!-- bench: NAME -->` and `<!-- bench: end NAME -->`.

    Raises:
        PageError: there is not one such pair, in this order.
    """
    begin, end = markers(name)
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise PageError(f"the page needs {begin} and {end}, once each and in this order")
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{body.strip()}\n{end}{after}"


def markers(name: str) -> tuple[str, str]:
    """The comments around a section."""
    return f"<!-- bench: {name} -->", f"<!-- bench: end {name} -->"
