"""The connection between a task and the driver: tasks report progress, and the driver tells tasks to stop.

Spark gets a task's results only when the task has finished, and can stop a task only by force. So each task opens a
connection to the driver, over which the task and the driver exchange lines of JSON. A task also stops when the driver
is gone. Owns both ends of the connection. Reports contain no keys and no message contents.
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
"""Interval at which a task reports changes."""
MAX_ROWS_PER_LINE: Final = 200
"""Maximum number of counts in one report."""
MAX_LINE_BYTES: Final = 1_048_576
DRIVER_LOST: Final = "the driver is gone"


class TaskId(NamedTuple):
    """Id of a task: its round, its index in the round, and its attempt."""

    round: int
    group: int
    attempt: int


# --- the driver's side ------------------------------------------------------------------------------------------------


class TaskServer:
    """The driver's server, to which its tasks connect."""

    def __init__(self, on_report: Callable[[TaskId, list[MovedCount], dict[str, str]], None]) -> None:
        """Create a server, which calls `on_report` without data when a task connects, then for each report."""
        self._on_report = on_report
        self._token = secrets.token_hex(32)
        self._server: asyncio.Server | None = None
        self._ended_rounds: dict[int, str] = {}
        """Finished rounds with their reasons: a task that connects late must stop at once."""
        self._connected_tasks: dict[TaskId, asyncio.StreamWriter] = {}

    async def open(self, bind_address: str, host: str) -> DriverAddress:
        """Listen on `bind_address`. Return the address for tasks, with `host` as the host name."""
        self._server = await asyncio.start_server(self._serve_task, bind_address, 0, limit=MAX_LINE_BYTES)
        port = self._server.sockets[0].getsockname()[1]
        return DriverAddress(host=host, port=port, token=self._token)

    async def close(self) -> None:
        """Stop listening and close all connections. Connected tasks then stop."""
        if self._server is not None:
            self._server.close()
        for writer in self._connected_tasks.values():
            writer.close()

    def connected_tasks(self, round_number: int) -> list[TaskId]:
        """Return the connected tasks in a round."""
        return [task_id for task_id in self._connected_tasks if task_id.round == round_number]

    def end_round(self, round_number: int, reason: str) -> None:
        """Tell all tasks in a round to stop, including tasks that connect later."""
        self._ended_rounds[round_number] = reason
        for task_id, writer in self._connected_tasks.items():
            if task_id.round == round_number:
                _write_message(writer, {"end": reason})

    async def _serve_task(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task_id: TaskId | None = None
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                task_id = self._authenticate(await _read_message(reader))
            if task_id is None:
                return
            end_reason = self._ended_rounds.get(task_id.round)
            _write_message(writer, {"go": True} if end_reason is None else {"end": end_reason})
            self._connected_tasks[task_id] = writer
            self._on_report(task_id, [], {})
            while report := await _read_message(reader):
                self._on_report(task_id, [MovedCount(*row) for row in report["moved"]], report["troubles"])
        except (OSError, TimeoutError, ValueError, KeyError, TypeError):
            pass  # not a task of this driver, or a lost task, which Spark notices
        finally:
            if task_id is not None and self._connected_tasks.get(task_id) is writer:
                del self._connected_tasks[task_id]
            writer.close()

    def _authenticate(self, message: dict[str, Any]) -> TaskId | None:
        is_ours = hmac.compare_digest(str(message.get("token")).encode(), self._token.encode())
        return TaskId(*(int(message[name]) for name in TaskId._fields)) if is_ours else None


# --- the task's side --------------------------------------------------------------------------------------------------


class DriverConnection:
    """A task's connection to its driver."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Create a connection; see `connect_to_driver`."""
        self._reader = reader
        self._writer = writer
        self.end_reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Reason why the task has to stop, set when the reason is known."""

    def end(self, reason: str) -> None:
        """Stop the task. Only the first reason counts."""
        if not self.end_reason.done():
            self.end_reason.set_result(reason)

    async def wait_for_end(self) -> None:
        """Wait until the driver tells the task to stop, or until the connection is lost."""
        try:
            while message := await _read_message(self._reader):
                if "end" in message:
                    self.end(str(message["end"]))
                    return
        except (OSError, ValueError):
            pass  # treated like a closed connection
        self.end(DRIVER_LOST)

    async def send_reports(self, progress: TaskProgress) -> None:
        """Report changes at regular intervals."""
        while True:
            await asyncio.sleep(REPORT_INTERVAL_S)
            rows, problems = progress.take_changes()
            while rows or problems:
                _write_message(self._writer, {"moved": rows[:MAX_ROWS_PER_LINE], "troubles": problems})
                rows, problems = rows[MAX_ROWS_PER_LINE:], {}
                with contextlib.suppress(OSError):  # `wait_for_end` notices the lost connection
                    await self._writer.drain()


@contextlib.asynccontextmanager
async def connect_to_driver(driver: DriverAddress, task_id: TaskId) -> AsyncIterator[DriverConnection]:
    """Connect a task to the driver. Raise PipelineError if the driver cannot be reached."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(driver.host, driver.port, limit=MAX_LINE_BYTES)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            _write_message(writer, {"token": driver.token, **task_id._asdict()})
            answer = await _read_message(reader)
    except (OSError, TimeoutError, ValueError) as error:
        raise PipelineError(
            f"a task cannot reach its driver at {driver.host}:{driver.port} ({error!r}): check Spark's setting"
            " spark.driver.host, and allow connections to any port"
        ) from error
    connection = DriverConnection(reader, writer)
    if "go" not in answer:
        connection.end(str(answer.get("end", DRIVER_LOST)))
    listening = asyncio.ensure_future(connection.wait_for_end())
    try:
        yield connection
    finally:
        listening.cancel()
        writer.close()


# --- both sides -------------------------------------------------------------------------------------------------------


async def _read_message(reader: asyncio.StreamReader) -> dict[str, Any]:
    """Read the next message, or {} at the end of the connection."""
    line = await reader.readline()
    if not line.endswith(b"\n"):
        return {}
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError("the line is not a JSON object")  # noqa: TRY004  # handled like invalid JSON
    return message


def _write_message(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
