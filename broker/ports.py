"""Ports of this machine's loopback interface."""

import socket


def free_port() -> int:
    """A port that is free now; another may take it at any moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
