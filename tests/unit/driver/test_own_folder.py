import os
import subprocess
import sys
import tempfile

import pytest

from driver.own_folder import LOCK, OwnFolder

PREFIX = "stoker-own-"
OWNER = f"""
import sys
from driver.own_folder import OwnFolder
print(OwnFolder({PREFIX!r}).path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def owner():
    """Another process that has a folder, and the folder's name."""
    with subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process, os.fsdecode(process.stdout.readline().strip())
        process.kill()


def names(place):
    return sorted(str(path) for path in place.iterdir())


def test_it_goes_with_all_that_is_in_it(place):
    folder = OwnFolder(PREFIX)
    (folder.path / "log").write_text("words")
    folder.remove()
    folder.remove()
    assert names(place) == []


def test_what_a_killed_process_left_goes_at_the_next_start_and_what_a_living_one_has_does_not(place, owner):
    process, left = owner
    first = OwnFolder(PREFIX)
    assert names(place) == sorted([left, str(first.path)])
    process.kill()
    process.wait()
    second = OwnFolder(PREFIX)
    assert names(place) == sorted([str(first.path), str(second.path)])


def test_a_folder_of_the_same_name_that_has_no_lock_is_somebody_else_s(place):
    (place / f"{PREFIX}theirs").mkdir()
    (place / f"{PREFIX}file").write_text("")
    (place / "elsewhere").mkdir()
    (place / "elsewhere" / LOCK).write_text("")
    (place / f"{PREFIX}link").symlink_to(place / "elsewhere")
    before = names(place)
    OwnFolder(PREFIX).remove()
    assert names(place) == before
    assert (place / "elsewhere" / LOCK).exists()


def test_the_lock_has_its_name_only_once_it_is_held(place, monkeypatch):
    seen = []
    monkeypatch.setattr("driver.own_folder.fcntl.flock", lambda *_: seen.append([*place.rglob(LOCK)]))
    OwnFolder(PREFIX)
    assert seen == [[]]
