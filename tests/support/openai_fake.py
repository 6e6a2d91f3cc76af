"""A small OpenAI server that does wrong on demand: for what a real one does rarely. It generates nothing."""

import json
import socket
import subprocess
import sys
import threading
from collections import deque
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODEL = "fake"
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def event(**fields):
    return f"data: {json.dumps(fields)}\n\n"


def piece(text, reason=None, **fields):
    return event(choices=[{"index": 0, "text": text, "finish_reason": reason}], **fields)


DONE = "data: [DONE]\n\n"
GOOD = (piece(" one"), piece(" two"), piece("", "length"), event(choices=[], usage=USAGE), DONE)
RESET = object()  # breaks the connection
WAIT = object()  # sends no more until the client or the server goes


class Fake:
    """Answers each request with the next of `answers`, or well when there is none: parts of a stream, or a status."""

    def __init__(self, owned_by="vllm", entry=None, port=0):
        self.answers = deque()
        self.bodies = []
        self.keys = []
        self.open = 0  # streams that are being answered
        self.health = 200
        self.models = [{"id": MODEL, "owned_by": owned_by, "max_model_len": 100} | (entry or {})]
        self._ending = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), type("Handler", (_Handler,), {"fake": self}))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def stop(self):
        self._ending.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def wait_for_the_end_of(self, connection):
        """Until the client closes its end, or this server stops."""
        connection.settimeout(0.02)
        while not self._ending.is_set():
            try:
                if not connection.recv(1):
                    return
            except TimeoutError:
                continue
            except OSError:
                return


@contextmanager
def fake_server(**about):
    fake = Fake(**about)
    try:
        yield fake
    finally:
        fake.stop()


class _Handler(BaseHTTPRequestHandler):
    fake: Fake  # HTTP/1.0: each connection ends with its answer

    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path == "/v1/models":
            self.fake.keys.append(self.headers.get("Authorization"))
            self._send(200, {"data": self.fake.models})
        else:
            self._send(self.fake.health if self.path == "/health" else 404, {"error": {"message": "loading"}})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.fake.bodies.append((self.path, body))
        answer = self.fake.answers.popleft() if self.fake.answers else GOOD
        if isinstance(answer[0], int):
            self._send(*answer)
            return
        self.fake.open += 1
        try:
            self._stream(answer)
        finally:
            self.fake.open -= 1

    def _stream(self, parts):
        self.close_connection = True
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        for part in parts:
            if part is RESET:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                self.connection.close()
                return
            if part is WAIT:
                self.fake.wait_for_the_end_of(self.connection)
                return
            self.wfile.write(part.encode() if isinstance(part, str) else part)

    def _send(self, status, fields):
        data = json.dumps(fields).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


if __name__ == "__main__":  # PORT: as a program, with a child of its own as large servers have them
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Fake(port=int(sys.argv[1]))
    print("serving", flush=True)
    threading.Event().wait()
