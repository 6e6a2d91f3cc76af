import os
import signal

import pytest
import redis

from broker import embedded
from broker.embedded import EmbeddedServer
from broker.errors import EmbeddedServerError
from tests.support.waiting import wait_until


def client(server):
    return redis.Redis.from_url(server.url, protocol=2)


@pytest.fixture
def running():
    with EmbeddedServer(fsync="no") as server:
        yield server


def test_it_answers_on_loopback_once_it_is_started(running):
    with client(running) as connection:
        assert connection.ping()
        assert connection.config_get("bind")["bind"] == "127.0.0.1"


def test_it_evicts_nothing_and_writes_everything_down(running):
    with client(running) as connection:
        assert connection.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"
        assert connection.config_get("appendonly")["appendonly"] == "yes"


def test_after_a_stop_it_is_gone_with_its_data(running):
    folder = running._folder
    running.stop()
    running.stop()
    assert not folder.exists()
    with client(running) as connection, pytest.raises(redis.ConnectionError):
        connection.ping()


def test_data_in_a_folder_of_ones_own_is_kept(tmp_path):
    with EmbeddedServer(folder=tmp_path / "data") as server, client(server) as connection:
        connection.set("key", "value")
    with EmbeddedServer(folder=tmp_path / "data") as server, client(server) as connection:
        assert connection.get("key") == b"value"


def test_a_port_that_is_in_use_is_refused(running):
    with pytest.raises(EmbeddedServerError, match=f"port {running.port} on 127.0.0.1 is in use"):
        EmbeddedServer(port=running.port).start()


def test_another_server_that_took_the_port_meanwhile_is_not_taken_for_ours(running, monkeypatch):
    monkeypatch.setattr(embedded, "free_port", lambda: running.port)
    monkeypatch.setattr(embedded, "_refuse_taken", lambda port: None)
    with pytest.raises(EmbeddedServerError, match=f"did not start on port {running.port}"):
        EmbeddedServer().start()
    with client(running) as connection:
        assert connection.ping()


def test_a_server_that_ended_by_itself_is_revived_with_its_data(tmp_path):
    with EmbeddedServer(folder=tmp_path, fsync="always") as server:
        with client(server) as connection:
            connection.set("key", "value")
            process = connection.info("server")["process_id"]
        guard = server._guard.process
        os.kill(process, signal.SIGKILL)
        wait_until(lambda: guard.poll() is not None)
        assert server.revive()
        assert not server.revive()
        with client(server) as connection:
            assert connection.get("key") == b"value"


def test_a_temporary_folder_may_have_any_name(tmp_path, monkeypatch):
    folder = tmp_path / 'with a space, a "quote" and a \\'
    folder.mkdir()
    monkeypatch.setattr(embedded.tempfile, "tempdir", str(folder))
    with EmbeddedServer(fsync="no") as server, client(server) as connection:
        assert connection.ping()
    assert list(folder.iterdir()) == []


def test_an_interrupted_start_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(self, process, folder):
        raise KeyboardInterrupt

    monkeypatch.setattr(embedded.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(EmbeddedServer, "_becomes_ready", interrupt)
    server = EmbeddedServer(fsync="no")
    with pytest.raises(KeyboardInterrupt):
        server.start()
    assert list(tmp_path.iterdir()) == []
    assert server.pid == 0


def test_of_two_that_want_one_port_at_once_the_loser_says_that_it_is_taken(running, monkeypatch):
    """Both found it free, as they looked before either of them had it."""
    looks = []
    refuse = embedded._refuse_taken
    monkeypatch.setattr(embedded, "_refuse_taken", lambda port: refuse(port) if looks else looks.append(port))
    with pytest.raises(EmbeddedServerError, match=f"port {running.port} on 127.0.0.1 is in use"):
        EmbeddedServer(port=running.port).start()
