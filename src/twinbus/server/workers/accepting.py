"""Accepting from a socket that all workers share, so that each gets its share.

    tally = Tally(descriptor, workers)                             # of memory that the supervisor made
    server = await Acceptor(sock, tally.row(0), number).serve(make_protocol, tls, 20.0)

Owns: who takes the next connection. All workers wake up for it, and who is awake first would take it, so that of a few
connections all may come to one process while the others idle. Each therefore says in memory that all share how many it
has. Who has no more than the others takes it at once; who has more leaves it to them for some milliseconds, and takes
it then: one of the others may be stopped.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable

log: Final = logging.getLogger(__name__)

LEAVE_S: Final = 0.02
"""How long a connection is left to each of those that have fewer."""
LEAVE_TO: Final = 3
"""... and to how many of them at most."""
COUNT_S: Final = 0.1
"""How often those that have gone are counted out."""
NO_ROOM_S: Final = 1.0
"""How long nothing is accepted after that has failed: there are too many open files."""
AT_ONCE: Final = 64
"""Connections that are accepted in one turn."""
ABSENT: Final = 2**32 - 1
"""The number of connections of a process that is not there: nobody leaves anything to it."""
_WIDTH: Final = 4


class Tally:
    """How many connections each worker has, on each of some ways."""

    def __init__(self, descriptor: int, workers: int) -> None:
        """Map what `make` has made."""
        self._workers = workers
        self._counts = memoryview(mmap.mmap(descriptor, 0)).cast("I")

    @staticmethod
    def make(workers: int, ways: int) -> int:
        """Nobody is there yet. A descriptor, to be inherited: a file may be removed by who tidies up old ones."""
        descriptor = os.memfd_create("twinbus-tally")
        os.write(descriptor, ABSENT.to_bytes(_WIDTH, "little") * workers * ways)
        return descriptor

    def row(self, way: int) -> memoryview:
        """The numbers of all workers on one way."""
        return self._counts[way * self._workers : (way + 1) * self._workers]

    def drop(self, number: int) -> None:
        """A worker has gone."""
        for place in range(number, len(self._counts), self._workers):
            self._counts[place] = ABSENT


class Acceptor:
    """One listening socket, in one worker. As asyncio's servers, as far as listeners need that."""

    def __init__(self, sock: socket.socket, row: memoryview, number: int) -> None:
        """Nothing is accepted yet. `row` has the numbers of all workers' connections, `number` is this one's place."""
        self.sockets = (sock,)
        self._sock = sock
        self._row = row
        self._number = number
        self._loop = asyncio.get_running_loop()
        self._open: set[asyncio.BaseTransport] = set()
        self._coming: set[asyncio.Task[None]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._is_closed = False

    async def serve(
        self,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
        tls_handshake_timeout_s: float,
    ) -> Acceptor:
        """From now on."""
        self._make_protocol = make_protocol
        self._tls = tls
        self._tls_handshake_timeout_s = tls_handshake_timeout_s
        self._sock.settimeout(0.0)
        self._count()
        self._loop.add_reader(self._sock, self._look)
        return self

    def close(self) -> None:
        """Accept no more."""
        if not self._is_closed:
            self._is_closed = True
            for timer in self._timers.values():
                timer.cancel()
            self._loop.remove_reader(self._sock)
            self._row[self._number] = ABSENT
            self._sock.close()

    async def wait_closed(self) -> None:
        """Connections are the listener's affair."""

    # --- inside -------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Somebody is there: for this worker, or for another."""
        own = self._row[self._number]
        better = sum(count < own for count in self._row)
        if better:
            self._pause(min(better, LEAVE_TO) * LEAVE_S, self._accept)
        else:
            self._accept()

    def _accept(self) -> None:
        """Take what is there, for as long as it is this one's turn."""
        try:
            for _ in range(AT_ONCE):
                connection, _address = self._sock.accept()
                task = self._loop.create_task(self._connect(connection))
                self._coming.add(task)
                task.add_done_callback(self._coming.discard)
                self._row[self._number] += 1
                if self._row[self._number] > min(self._row):
                    return
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another has it, or it has gone
        except OSError as error:
            log.error(  # noqa: TRY400  # it says all there is
                "no connection can be accepted for %g s: %s", NO_ROOM_S, error.strerror
            )
            self._pause(NO_ROOM_S, lambda: None)

    def _pause(self, seconds: float, then: Callable[[], None]) -> None:
        self._loop.remove_reader(self._sock)

        def go_on() -> None:
            self._loop.add_reader(self._sock, self._look)
            then()

        self._timers["pause"] = self._loop.call_later(seconds, go_on)

    async def _connect(self, connection: socket.socket) -> None:
        with suppress(OSError):  # TLS that cannot be agreed on, or a client that has gone
            transport, _ = await self._loop.connect_accepted_socket(
                self._make_protocol,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=self._tls_handshake_timeout_s if self._tls is not None else None,
            )
            self._open.add(transport)

    def _count(self) -> None:
        self._open = {transport for transport in self._open if not transport.is_closing()}
        self._row[self._number] = len(self._open) + len(self._coming)
        self._timers["count"] = self._loop.call_later(COUNT_S, self._count)
