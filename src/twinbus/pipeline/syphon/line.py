"""The line between a task and the driver: the task tells what it moves, the driver when to end.

Spark hears of a task only when that has ended, and can end it only by force. So each task has a connection of its own
to the driver, on which both speak in lines of JSON. A driver that is gone is a reason to end, too: nobody is left who
would look after the task. Owns: both ends of it. What is told holds no key and nothing of a message.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
import socket
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.syphon.assignment import Address
from twinbus.pipeline.syphon.tally import Moved

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from twinbus.pipeline.syphon.tally import Tally

CONNECT_S: Final = 20.0
EVERY_S: Final = 0.5
"""How often a task tells what is new, if anything is."""
ROWS: Final = 200
"""In one line."""
LONGEST_LINE: Final = 1_048_576
DRIVER_GONE: Final = "the driver is gone"


class Caller(NamedTuple):
    """Which task of which round it is, and its how many-eth attempt."""

    round: int
    group: int
    attempt: int


# --- the driver's end -------------------------------------------------------------------------------------------------


class Exchange:
    """Where the tasks of a driver call."""

    def __init__(self, heard: Callable[[Caller, list[Moved], dict[str, str]], None]) -> None:
        """`heard` is told of each call, first with nothing, then with what is new."""
        self._heard = heard
        self._token = secrets.token_hex(32)
        self._server: asyncio.Server | None = None
        self._over: dict[int, str] = {}
        """Rounds that have ended, and why: a task of one that calls late ends at once."""
        self._on_line: dict[Caller, asyncio.StreamWriter] = {}

    async def open(self, bind: str, host: str) -> Address:
        """Listen at `bind`; where tasks find it under the name `host`."""
        self._server = await asyncio.start_server(self._serve, bind, 0, limit=LONGEST_LINE)
        port = self._server.sockets[0].getsockname()[1]
        return Address(host=host, port=port, token=self._token)

    async def close(self) -> None:
        """No more calls; tasks that are still on the line take it for the driver's end."""
        if self._server is not None:
            self._server.close()
        for writer in self._on_line.values():
            writer.close()

    def callers(self, number: int) -> list[Caller]:
        """Who of a round is on the line now."""
        return [caller for caller in self._on_line if caller.round == number]

    def end(self, number: int, why: str) -> None:
        """Have all tasks of a round end, those that call later as well."""
        self._over[number] = why
        for caller, writer in self._on_line.items():
            if caller.round == number:
                _write(writer, {"end": why})

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller: Caller | None = None
        try:
            async with asyncio.timeout(CONNECT_S):
                caller = self._admit(await _read(reader))
            if caller is None:
                return
            why = self._over.get(caller.round)
            _write(writer, {"go": True} if why is None else {"end": why})
            self._on_line[caller] = writer
            self._heard(caller, [], {})
            while said := await _read(reader):
                self._heard(caller, [Moved(*row) for row in said["moved"]], said["troubles"])
        except (OSError, TimeoutError, ValueError, KeyError, TypeError):
            pass  # whoever it was, it is no task of ours, or it is lost: Spark will see
        finally:
            if caller is not None and self._on_line.get(caller) is writer:
                del self._on_line[caller]
            writer.close()

    def _admit(self, said: dict[str, Any]) -> Caller | None:
        is_ours = hmac.compare_digest(str(said.get("token")).encode(), self._token.encode())
        return Caller(*(int(said[name]) for name in Caller._fields)) if is_ours else None


# --- the task's end ---------------------------------------------------------------------------------------------------


class Call:
    """A task's connection to its driver."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """`calling` makes one."""
        self._reader = reader
        self._writer = writer
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why the task is to end, as soon as it is."""

    def end(self, why: str) -> None:
        """The first reason counts."""
        if not self.ended.done():
            self.ended.set_result(why)

    async def listen(self) -> None:
        """Until the driver says that it is time to end, or nothing any more."""
        try:
            while said := await _read(self._reader):
                if "end" in said:
                    self.end(str(said["end"]))
                    return
        except (OSError, ValueError):
            pass  # the same as its end
        self.end(DRIVER_GONE)

    async def tell(self, tally: Tally) -> None:
        """What is new, again and again."""
        while True:
            await asyncio.sleep(EVERY_S)
            rows, troubles = tally.news()
            while rows or troubles:
                _write(self._writer, {"moved": rows[:ROWS], "troubles": troubles})
                rows, troubles = rows[ROWS:], {}
                with contextlib.suppress(OSError):  # `listen` hears of it
                    await self._writer.drain()


@contextlib.asynccontextmanager
async def calling(driver: Address, caller: Caller) -> AsyncIterator[Call]:
    """A call to the driver that was answered. PipelineError where it is not reached."""
    try:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(driver.host, driver.port, limit=LONGEST_LINE)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            _write(writer, {"token": driver.token, **caller._asdict()})
            said = await _read(reader)
    except (OSError, TimeoutError, ValueError) as error:
        raise PipelineError(
            f"a task does not reach its driver at {driver.host}:{driver.port} ({error!r}): that name is Spark's"
            " setting spark.driver.host, and any port may be used"
        ) from error
    call = Call(reader, writer)
    if "go" not in said:
        call.end(str(said.get("end", DRIVER_GONE)))
    listening = asyncio.ensure_future(call.listen())
    try:
        yield call
    finally:
        listening.cancel()
        writer.close()


# --- both -------------------------------------------------------------------------------------------------------------


async def _read(reader: asyncio.StreamReader) -> dict[str, Any]:
    """The next line; nothing at the end."""
    line = await reader.readline()
    if not line.endswith(b"\n"):
        return {}
    said = json.loads(line)
    if not isinstance(said, dict):
        raise ValueError("a line is no object")  # noqa: TRY004  # like any other that cannot be read
    return said


def _write(writer: asyncio.StreamWriter, said: dict[str, Any]) -> None:
    writer.write(json.dumps(said, separators=(",", ":")).encode() + b"\n")
