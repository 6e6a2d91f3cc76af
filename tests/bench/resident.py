"""A peer's script whose model stays loaded: it is started once, and then measured once a round."""

import select
import subprocess
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from broker.embedded import EmbeddedServer
from tests.bench.cpu import server_pids
from tests.bench.model_work import Generated, Prompt, read_outputs, write_work
from tests.bench.peer import (
    FSYNC,
    PEERS,
    PeerError,
    end_group,
    last_line,
    marked,
    peer_environment,
    peers_python,
)

START_TIMEOUT_S = 120.0


class ResidentPeer:
    """Runs a script of `peers/` that uses `peers/resident.py`, with a Redis and a folder of its own."""

    def __init__(self, script: str, arguments: Mapping[str, object], environment: Mapping[str, str]) -> None:
        self._script = script
        self._arguments = arguments
        self._environment = environment
        self._mark = uuid.uuid4().hex
        self._folder = tempfile.TemporaryDirectory(prefix="bench-peer-")
        self._server = EmbeddedServer(fsync=FSYNC)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return when the model is loaded and warm.

        Raises:
            PeerError: it is not within `START_TIMEOUT_S`.
        """
        self._server.start()
        told = {"broker_url": self._server.url, "folder": self._folder.name, **self._arguments}
        with self._log.open("wb") as sink:
            self._process = subprocess.Popen(
                [str(peers_python()), str(PEERS / self._script), msgspec.json.encode(told).decode()],
                cwd=PEERS,
                env=peer_environment(self._mark) | dict(self._environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                start_new_session=True,
            )
        self._answer(self._process, START_TIMEOUT_S)

    def generate(self, work: Sequence[Prompt], timeout_s: float) -> tuple[float, list[Generated]]:
        """Generate for this work: seconds, and the outputs in its order.

        Raises:
            PeerError: it failed or took too long.
        """
        process = self._process
        if process is None or process.stdin is None:
            raise PeerError(f"{self._script} was not started")
        files = [Path(self._folder.name) / name for name in ("work.json", "outputs.json")]
        write_work(files[0], work)
        process.stdin.write(msgspec.json.encode({"work": str(files[0]), "outputs": str(files[1])}) + b"\n")
        process.stdin.flush()
        return self._answer(process, timeout_s)["seconds"], read_outputs(files[1])

    @property
    def pids(self) -> list[int]:
        """Of all processes that work for it."""
        return [*marked(self._mark), *server_pids(self._server)]

    def close(self) -> None:
        """End everything."""
        if self._process is not None:
            if self._process.stdin is not None:
                self._process.stdin.close()
            end_group(self._process, self._mark)
        self._server.stop()
        self._folder.cleanup()

    @property
    def _log(self) -> Path:
        return Path(self._folder.name) / "stderr.log"

    def _answer(self, process: "subprocess.Popen[bytes]", timeout_s: float) -> dict[str, float]:
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], timeout_s)[0]:
            raise PeerError(f"took longer than {timeout_s:g} s")
        line = process.stdout.readline()
        if not line:
            raise PeerError(f"{self._script} ended: {last_line(self._log.read_text('utf-8', 'replace'))}")
        return msgspec.json.decode(line, type=dict[str, float])
