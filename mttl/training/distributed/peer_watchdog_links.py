"""Connections between the first process of a training and each of the others, watched by a thread.

The system closes a connection when the process at its end dies, whatever that was doing; where a
machine is gone, probes on idle connections find out.
"""

import contextlib
import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mttl.runtime.processes import gathered

MEETING = 60.0  # seconds that the processes have to connect
GRACE = 30.0  # seconds to notice by oneself that another process has failed
# Probes of an idle connection, until a machine counts as gone: 10 + 4 × 5 seconds.
PROBES = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
ENDED, FAILED, LOST = "ended", "failed", "lost"
MOST_BYTES = 4096  # of what one process tells another
GONE = "is gone: it was killed, or its machine is"
WENT_WRONG = "ended with an error; its message is above, or in the log of its machine"


@dataclass(frozen=True)
class Link:
    """A connection, and the process at its end."""

    name: str
    socket: socket.socket


def meet(rank: int, n_processes: int, host: str) -> tuple[list[Link], str]:
    """Connect the first process with each of the others, which all call it together.

    Returns:
        The first process's links to all others, or another one's link to it; and why there are
        none, where they do not reach each other.
    """
    links: list[Link] = []
    problem, offer, server = "", None, None
    try:
        if rank == 0:
            # Other machines come from anywhere, and have to know the word.
            server = socket.create_server(("127.0.0.1" if host == "127.0.0.1" else "", 0))
            offer = (server.getsockname()[1], secrets.token_hex(16), name_of(0, n_processes))
    except OSError as error:
        problem = str(error)
    found = gathered(offer)[0]
    try:
        if server is not None and found is not None:
            links = _accept(server, found[1], n_processes - 1)
        elif found is not None:
            port, word, name = found
            connection = socket.create_connection((host, port), MEETING)
            connection.sendall(f"{word} {name_of(rank, n_processes)}\n".encode())
            links = [Link(name, connection)]
    except OSError as error:
        problem = str(error)
    finally:
        if server is not None:
            server.close()
    problem = next((text for text in gathered(problem) if text), "")
    if problem:
        for link in links:
            link.socket.close()
        return [], problem
    for link in links:
        link.socket.settimeout(None)
        link.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in PROBES.items():
            if hasattr(socket, option):  # not all systems have all
                link.socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return links, ""


def name_of(rank: int, n_processes: int) -> str:
    """Return what a process is called in messages."""
    return f"process {rank} of {n_processes} ({os.getpid()} on {socket.gethostname()})"


class Watch(threading.Thread):
    """Waits for what other processes say, or for their end.

    Args:
        links: To them.
        stop: Called with what happened, once a process is lost; ends this one.
    """

    def __init__(self, links: Sequence[Link], stop: Callable[[str], object]) -> None:
        super().__init__(name="peer-watchdog", daemon=True)
        self.links, self.stop = list(links), stop
        self._left = threading.Event()
        # A copy of this process would keep the connections open after its death.
        os.register_at_fork(after_in_child=self._close)

    def leave(self, word: str) -> None:
        """Tell the others, the first time, how this process ends."""
        if not self._left.is_set():
            self._left.set()
            self._tell(word)

    def run(self) -> None:
        """Watch until all others have ended."""
        selector = selectors.DefaultSelector()
        for link in self.links:
            selector.register(link.socket, selectors.EVENT_READ, link)
        failed, deadline = "", float("inf")
        while selector.get_map():
            wait = None if deadline == float("inf") else max(0.0, deadline - time.monotonic())
            ready = selector.select(wait)
            if not ready:
                self._stop(f"{failed} {WENT_WRONG}")
                return
            for key, _ in ready:
                link: Link = key.data
                selector.unregister(link.socket)
                word, _, text = _heard(link).partition(" ")
                if word == FAILED and not failed:
                    failed, deadline = link.name, time.monotonic() + GRACE
                elif word not in (ENDED, FAILED):
                    self._stop(text if word == LOST else f"{link.name} {GONE}")
                    return

    def _stop(self, what: str) -> None:
        if not self._left.is_set():  # or this process is about to end anyway
            self._tell(f"{LOST} {what}")
            self.stop(what)

    def _tell(self, text: str) -> None:
        for link in self.links:
            with contextlib.suppress(OSError):
                link.socket.sendall(f"{text}\n".encode())

    def _close(self) -> None:
        for link in self.links:
            link.socket.close()


def _accept(server: socket.socket, word: str, n_others: int) -> list[Link]:
    links: list[Link] = []
    deadline = time.monotonic() + MEETING
    while len(links) < n_others:
        server.settimeout(max(0.01, deadline - time.monotonic()))
        connection, _ = server.accept()
        connection.settimeout(5.0)
        said, _, name = _heard(Link("", connection)).partition(" ")
        if secrets.compare_digest(said, word):
            links.append(Link(name, connection))
        else:
            connection.close()
    return links


def _heard(link: Link) -> str:
    """Return the next line from a connection; nothing where it is closed."""
    data = b""
    with contextlib.suppress(OSError):
        while not data.endswith(b"\n") and len(data) < MOST_BYTES:
            part = link.socket.recv(MOST_BYTES)
            if not part:
                break
            data += part
    return data.decode(errors="replace").partition("\n")[0]
