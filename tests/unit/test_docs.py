"""The tables in the documentation say what the code says."""

import re
from pathlib import Path

import pytest

from broker.environment import PREFIX, VARIABLES
from broker.keys import Keys
from broker.parameters import SamplingParams
from broker.scripts import COMMANDS
from broker.settings import BrokerSettings
from driver.settings import DriverSettings
from gpu_worker.settings import WorkerSettings

ROOT = Path(__file__).parents[2]
LUA_FILES = sorted((ROOT / "broker/lua").glob("*.lua"))
PAGES = [path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))]


def table_rows(page: str) -> list[list[str]]:
    """The cells of every table row of a page, without the lines between head and body."""
    lines = (ROOT / page).read_text("utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")]
    return [row for row in rows if not set("".join(row)) <= {"-", "|"}]


def documented(page: str, pattern: str) -> list[str]:
    """The names in the first column of a page's tables that match a pattern."""
    names = (re.fullmatch(f"`({pattern})`", row[0]) for row in table_rows(page))
    return [match[1] for match in names if match]


def default_of(variable: str) -> object:
    """The default in the settings of the package that the variable belongs to."""
    name = variable.removeprefix(PREFIX).lower()
    owner = next(kind for kind in (BrokerSettings, WorkerSettings, DriverSettings) if name in kind.__struct_fields__)
    return getattr(owner(), name)


def as_text(value: object) -> str:
    """A default as the table writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def test_every_variable_is_documented_once():
    assert sorted(documented("docs/settings.md", r"STOKER_\w+")) == sorted(VARIABLES)


@pytest.mark.parametrize("row", [row for row in table_rows("docs/settings.md") if len(row) == 3 and "STOKER" in row[0]])
def test_a_documented_default_is_the_codes(row):
    default = default_of(row[0].strip("`"))
    if default in ("", 0) and not row[1].startswith("`"):
        return  # the words say what an empty value stands for
    assert row[1].strip("`") == as_text(default) or (default == "" and row[1] == "`~/.cache/stoker`")


def test_every_parameter_is_documented_once():
    names = [row[0].strip("`") for row in table_rows("docs/parameters.md") if len(row) == 6]
    assert sorted(names[1:]) == sorted(SamplingParams.__struct_fields__)


def test_every_key_is_documented_once():
    keys = Keys("<ns>")
    named = [value for name, value in vars(keys).items() if not name.startswith("_")]
    for part in (keys.job("<job>"), keys.batch("<batch>"), keys.session("<session>")):
        named += [getattr(part, name) for name in part.__struct_fields__]
    named.append(keys.worker("<worker>"))
    assert sorted(documented("docs/protocol.md", r"<ns>:[^`]+")) == sorted(named)


def test_every_lua_command_is_loaded_and_documented():
    files = [path.stem for path in LUA_FILES]
    assert sorted(COMMANDS) == files
    assert sorted(documented("docs/protocol.md", r"[a-z_]+")) == files


@pytest.mark.parametrize("path", LUA_FILES, ids=lambda path: path.stem)
def test_a_lua_file_opens_with_its_contract(path):
    header = path.read_text("utf-8").split("\n\n", 1)[0]
    assert header.startswith(f"-- {path.stem}: ")
    assert all(f"-- {word}" in header for word in ("KEYS", "ARGV", "Returns"))


@pytest.mark.parametrize("package", ["broker", "driver", "gpu_worker"])
def test_every_module_is_in_the_architecture(package):
    page = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    section = page.split(f"## {package}: ", 1)[1].split("\n## ", 1)[0]
    first_column = "".join(line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `"))
    listed = {name.rsplit("/", 1)[-1] for name in re.findall(r"`([^`]+)`", first_column)} - {"*.lua"}
    assert listed == {path.stem for path in (ROOT / package).rglob("*.py")} - {"__init__"}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text("utf-8")):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), target


def test_the_readme_shows_the_example_as_it_is():
    code = (ROOT / "examples/quickstart.py").read_text("utf-8").split('"""\n\n', 1)[1]
    assert code in (ROOT / "README.md").read_text("utf-8")
