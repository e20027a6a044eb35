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
from twinbus.pipeline.syphon.assignment import DriverAddress
from twinbus.pipeline.syphon.progress import MovedCount

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from twinbus.pipeline.syphon.progress import TaskProgress

CONNECT_TIMEOUT_S: Final = 20.0
REPORT_INTERVAL_S: Final = 0.5
"""How often a task tells what is new, if anything is."""
MAX_ROWS_PER_LINE: Final = 200
"""In one line."""
MAX_LINE_BYTES: Final = 1_048_576
DRIVER_LOST: Final = "the driver is gone"


class TaskId(NamedTuple):
    """Which task of which round it is, and its how many-eth attempt."""

    round: int
    group: int
    attempt: int


# --- the driver's end -------------------------------------------------------------------------------------------------


class TaskServer:
    """Where the tasks of a driver call."""

    def __init__(self, on_report: Callable[[TaskId, list[MovedCount], dict[str, str]], None]) -> None:
        """`heard` is told of each call, first with nothing, then with what is new."""
        self._on_report = on_report
        self._token = secrets.token_hex(32)
        self._server: asyncio.Server | None = None
        self._ended_rounds: dict[int, str] = {}
        """Rounds that have ended, and why: a task of one that calls late ends at once."""
        self._connected_tasks: dict[TaskId, asyncio.StreamWriter] = {}

    async def open(self, bind_address: str, host: str) -> DriverAddress:
        """Listen at `bind`; where tasks find it under the name `host`."""
        self._server = await asyncio.start_server(self._serve_task, bind_address, 0, limit=MAX_LINE_BYTES)
        port = self._server.sockets[0].getsockname()[1]
        return DriverAddress(host=host, port=port, token=self._token)

    async def close(self) -> None:
        """No more calls; tasks that are still on the line take it for the driver's end."""
        if self._server is not None:
            self._server.close()
        for writer in self._connected_tasks.values():
            writer.close()

    def connected_tasks(self, round_number: int) -> list[TaskId]:
        """Who of a round is on the line now."""
        return [caller for caller in self._connected_tasks if caller.round == round_number]

    def end_round(self, round_number: int, reason: str) -> None:
        """Have all tasks of a round end, those that call later as well."""
        self._ended_rounds[round_number] = reason
        for caller, writer in self._connected_tasks.items():
            if caller.round == round_number:
                _write_message(writer, {"end": reason})

    async def _serve_task(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller: TaskId | None = None
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                caller = self._authenticate(await _read_message(reader))
            if caller is None:
                return
            why = self._ended_rounds.get(caller.round)
            _write_message(writer, {"go": True} if why is None else {"end": why})
            self._connected_tasks[caller] = writer
            self._on_report(caller, [], {})
            while said := await _read_message(reader):
                self._on_report(caller, [MovedCount(*row) for row in said["moved"]], said["troubles"])
        except (OSError, TimeoutError, ValueError, KeyError, TypeError):
            pass  # whoever it was, it is no task of ours, or it is lost: Spark will see
        finally:
            if caller is not None and self._connected_tasks.get(caller) is writer:
                del self._connected_tasks[caller]
            writer.close()

    def _authenticate(self, message: dict[str, Any]) -> TaskId | None:
        is_ours = hmac.compare_digest(str(message.get("token")).encode(), self._token.encode())
        return TaskId(*(int(message[name]) for name in TaskId._fields)) if is_ours else None


# --- the task's end ---------------------------------------------------------------------------------------------------


class DriverConnection:
    """A task's connection to its driver."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """`calling` makes one."""
        self._reader = reader
        self._writer = writer
        self.end_reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why the task is to end, as soon as it is."""

    def end(self, reason: str) -> None:
        """The first reason counts."""
        if not self.end_reason.done():
            self.end_reason.set_result(reason)

    async def wait_for_end(self) -> None:
        """Until the driver says that it is time to end, or nothing any more."""
        try:
            while said := await _read_message(self._reader):
                if "end" in said:
                    self.end(str(said["end"]))
                    return
        except (OSError, ValueError):
            pass  # the same as its end
        self.end(DRIVER_LOST)

    async def send_reports(self, progress: TaskProgress) -> None:
        """What is new, again and again."""
        while True:
            await asyncio.sleep(REPORT_INTERVAL_S)
            rows, troubles = progress.take_changes()
            while rows or troubles:
                _write_message(self._writer, {"moved": rows[:MAX_ROWS_PER_LINE], "troubles": troubles})
                rows, troubles = rows[MAX_ROWS_PER_LINE:], {}
                with contextlib.suppress(OSError):  # `listen` hears of it
                    await self._writer.drain()


@contextlib.asynccontextmanager
async def connect_to_driver(driver: DriverAddress, task_id: TaskId) -> AsyncIterator[DriverConnection]:
    """A call to the driver that was answered. PipelineError where it is not reached."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(driver.host, driver.port, limit=MAX_LINE_BYTES)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            _write_message(writer, {"token": driver.token, **task_id._asdict()})
            said = await _read_message(reader)
    except (OSError, TimeoutError, ValueError) as error:
        raise PipelineError(
            f"a task does not reach its driver at {driver.host}:{driver.port} ({error!r}): that name is Spark's"
            " setting spark.driver.host, and any port may be used"
        ) from error
    call = DriverConnection(reader, writer)
    if "go" not in said:
        call.end(str(said.get("end", DRIVER_LOST)))
    listening = asyncio.ensure_future(call.wait_for_end())
    try:
        yield call
    finally:
        listening.cancel()
        writer.close()


# --- both -------------------------------------------------------------------------------------------------------------


async def _read_message(reader: asyncio.StreamReader) -> dict[str, Any]:
    """The next line; nothing at the end."""
    line = await reader.readline()
    if not line.endswith(b"\n"):
        return {}
    said = json.loads(line)
    if not isinstance(said, dict):
        raise ValueError("a line is no object")  # noqa: TRY004  # like any other that cannot be read
    return said


def _write_message(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
