"""Clusters of real processes. `cluster` is one that tests share as long as they leave it healthy."""

import os
import signal
import subprocess
import sys
import tempfile
import uuid
from contextlib import contextmanager

import pytest

from driver.cli import main
from tests.support.cluster import Cluster
from tests.support.process import MARK, marked_processes
from tests.support.waiting import wait_until

WORKERS = ("a", "b")


@pytest.fixture(scope="session")
def temporary(tmp_path_factory):
    """The folder for temporary files of these tests, and the mark of the processes that they start."""
    return tmp_path_factory.mktemp("tmp"), uuid.uuid4().hex


@contextmanager
def _marked(temporary):
    folder, mark = temporary
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("STOKER_") and name != "STOKER_CACHE_DIR"]:
            patch.delenv(name)
        patch.setenv(MARK, mark)
        patch.setenv("STOKER_WARM_UP_S", "0.3")  # not every real worker need measure for its full time
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", str(folder))
        yield


@pytest.fixture(autouse=True)
def marked(nothing_left, temporary):
    """Marks every process that a test starts. Only during the test: servers of other tests may live beside these."""
    with _marked(temporary):
        yield


@pytest.fixture(scope="session")
def nothing_left(temporary):
    """At the end no process of these tests and no temporary folder is left."""
    yield
    with _marked(temporary):
        wait_until(lambda: not marked_processes(), what=lambda: f"the end of {marked_processes()}")
    folder, _ = temporary
    assert [path.name for path in folder.iterdir() if path.name.startswith("stoker")] == []


@pytest.fixture(scope="session")
def standing(nothing_left, temporary, tmp_path_factory):
    """Holds the shared cluster, and replaces it when a test has broken it."""
    holder = _Standing(tmp_path_factory)
    yield holder
    with _marked(temporary):
        holder.stop()


@pytest.fixture
def cluster(standing, marked):
    """One driver and two workers, `a` and `b`, ready and with nothing to do. The test must leave no work behind."""
    found = standing.healthy()
    yield found
    found.assert_clean()


@pytest.fixture
def make_cluster(nothing_left, marked, tmp_path_factory):
    """Makes a cluster of the test's own, with only a server in it and other settings."""
    made = []

    def make(settings=None):
        made.append(Cluster(tmp_path_factory.mktemp("cluster"), settings))
        return made[-1]

    yield make
    for item in made:
        item.stop()


@pytest.fixture
def stoker_here(cluster, monkeypatch, capsys):
    """The `stoker` command against the shared cluster in this process: one of its own needs a second to start."""
    monkeypatch.setenv("STOKER_BROKER_URL", cluster.url)
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # the command has one of its own

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["stoker", *map(os.fsdecode, arguments)])
        capsys.readouterr()
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
        try:
            with pytest.raises(SystemExit) as end:
                main()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, end.value.code, out, err)

    return run


class _Standing:
    def __init__(self, folders) -> None:
        self._folders = folders
        self._cluster = None

    def healthy(self) -> Cluster:
        if self._cluster is not None:
            try:
                return self._mended(self._cluster)
            except AssertionError:
                broken, self._cluster = self._cluster, None
                broken.stop()
        self._cluster = Cluster(self._folders.mktemp("standing"))
        return self._mended(self._cluster)

    def stop(self) -> None:
        if self._cluster is not None:
            stopped, self._cluster = self._cluster, None
            stopped.stop()

    @staticmethod
    def _mended(cluster: Cluster) -> Cluster:
        for name in [name for name, worker in cluster.workers.items() if not worker.is_running]:
            cluster.end_worker(name)
        for name in [name for name in cluster.workers if name not in WORKERS]:
            cluster.end_worker(name)
        if not any(driver.is_running for driver in cluster.drivers):
            cluster.start_driver()
        for name in WORKERS:
            if name not in cluster.workers:
                cluster.start_worker(name)
        cluster.assert_clean()
        cluster.ready()
        return cluster
