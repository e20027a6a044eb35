"""Write the fixtures; run this program with the version of twinbus whose files later versions must read.

    git worktree add ../before COMMIT && make -C ../before compile
    ../before/.venv/bin/python -m tests.compatibility.write_fixtures COMMIT [--only NAME] [--to FOLDER]

It starts servers and programs as their users do, and packs what they leave behind: data directories, the checkpoint of
a stream, captures, journals and spools of paired programs, usage. What a reader must find goes into the manifest. Takes
about four minutes: usage is made a Parquet file when a minute is over. No message expires.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus import ServiceBusMessage

import twinbus
from tests.compatibility.archives import FOLDER, MANIFEST, pack
from tests.compatibility.contents import (
    DELETED,
    FORWARDING,
    QUEUES,
    SESSION_QUEUES,
    connect_client,
    peek_messages,
    read_contents,
)
from tests.compatibility.usage_totals import totals
from tests.support.multi_process_server import MultiProcessServer
from tests.support.server_pair import connect_manager, connection_string, paired_application, run_server_pair
from tests.support.server_process import ServerProcess, wait_until
from twinbus.client import BrokeredMessage, MessagingFactory
from twinbus.client.management import (
    CorrelationFilter,
    QueueDescription,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from azure.servicebus.aio import ServiceBusClient

ROOT: Final = Path(__file__).parents[2]
FAR: Final = dt.datetime(2126, 1, 1, tzinfo=dt.UTC)
"""Due time of scheduled messages."""
SOON: Final = dt.timedelta(seconds=30)
MINUTE_S: Final = 90.0
"""Longer than the rest of a minute."""
LONG: Final = "a long body, " * 2_000
DEFAULT_RULE: Final = "$Default"


# --- a namespace ------------------------------------------------------------------------------------------------------


async def make_entities(server: ServerProcess) -> None:
    """Create all entities, including those that are deleted later."""
    week_ms = 7 * 24 * 3_600_000
    kinds: dict[str, dict[str, Any]] = {
        "orders-partitioned": {"enable_partitioning": True},
        "unique": {"requires_duplicate_detection": True, "duplicate_window_ms": week_ms},
        "sessions": {"requires_session": True},
        "sessions-partitioned": {"requires_session": True, "enable_partitioning": True},
        FORWARDING: {"forward_to": "sessions"},
        "orders": {"max_delivery_count": 7, "user_metadata": "written by an earlier version"},
    }
    async with connect_manager(server) as manager:
        for path in (*QUEUES, *SESSION_QUEUES, DELETED, FORWARDING):
            await manager.create_queue(path, QueueDescription(**kinds.get(path, {})))
        for topic in ("news", "news-partitioned"):
            await manager.create_topic(topic, TopicDescription(enable_partitioning=topic != "news"))
            await manager.create_subscription(topic, "all", SubscriptionDescription())
        large = RuleDescription(
            name="large",
            filter=SqlFilter(expression="number > 5 AND sys.Label = 'order'"),
            action=SqlAction(expression="SET kind = 'large'"),
        )
        urgent = RuleDescription(name="urgent", filter=CorrelationFilter(correlation_id="urgent"))
        for rule in (large, urgent):
            await manager.create_subscription("news", rule.name, SubscriptionDescription())
            await manager.create_rule("news", rule.name, rule)
            await manager.delete_rule("news", rule.name, DEFAULT_RULE)


def order(number: int, **more: Any) -> ServiceBusMessage:  # noqa: ANN401
    return ServiceBusMessage(
        LONG if number == 3 else f"order {number}",
        message_id=f"order-{number}",
        subject="order",
        content_type="text/plain",
        correlation_id="urgent" if number % 4 == 0 else None,
        application_properties={"number": number, "price": number + 0.5, "is_paid": number % 2 == 0, "customer": "ä"},
        **more,
    )


async def fill_queue(client: ServiceBusClient, queue: str, *, keys: int = 0) -> None:
    """Create messages in all states: active, abandoned, deferred, dead-lettered, scheduled; and completed ones."""
    async with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        for number in range(40):
            await sender.send_messages(order(number, **({"partition_key": f"key-{number % keys}"} if keys else {})))
        received = await _receive(receiver, 12)
        for message in received[:2]:
            await receiver.complete_message(message)
        for message in received[2:6]:
            await receiver.defer_message(message)
        for message in received[6:9]:
            await receiver.dead_letter_message(message, reason="Spoilt", error_description="it smells")
        for message in received[9:]:
            await receiver.abandon_message(message)
        await sender.schedule_messages([order(number) for number in range(100, 104)], FAR)


async def fill_sessions(client: ServiceBusClient, queue: str) -> None:
    """Create two sessions with messages, and two with a state."""
    async with client.get_queue_sender(queue) as sender:
        for number in range(20):
            await sender.send_messages(order(number, session_id=("apples", "pears")[number % 2]))
    for session in ("apples", "plums"):
        async with client.get_queue_receiver(queue, session_id=session) as receiver:
            await receiver.session.set_state(f"the state of {session}")
            if session == "apples":
                first, second, third = await _receive(receiver, 3)
                await receiver.complete_message(first)
                await receiver.defer_message(second)
                await receiver.dead_letter_message(third, reason="Spoilt")


async def _receive(receiver: Any, count: int) -> list[Any]:  # noqa: ANN401
    messages: list[Any] = []
    while len(messages) < count:
        messages += await receiver.receive_messages(count - len(messages), max_wait_time=10)
    return messages


async def fill(server: ServerProcess) -> None:
    """Fill the whole namespace."""
    await make_entities(server)
    async with connect_client(server) as client:
        await fill_queue(client, "orders")
        await fill_queue(client, "orders-partitioned", keys=16)
        for queue in SESSION_QUEUES:
            await fill_sessions(client, queue)
        for path, count in (
            ("unique", 10),
            ("unique", 10),
            ("purged", 10),
            ("exclusive", 5),
            (DELETED, 5),
            ("recreated", 3),
        ):
            async with client.get_queue_sender(path) as sender:
                await sender.send_messages([order(number) for number in range(count)])
        for topic in ("news", "news-partitioned"):
            async with client.get_topic_sender(topic) as sender:
                for number in range(10):
                    await sender.send_messages(order(number))
        async with client.get_queue_sender(FORWARDING) as sender:
            await sender.send_messages(order(200))
            await sender.send_messages(order(201, session_id="apples"))
        async with client.get_subscription_receiver("news", "all") as receiver:
            (message,) = await _receive(receiver, 1)
            await receiver.dead_letter_message(message, reason="Spoilt")
        async with connect_manager(server) as manager:
            await manager.delete_queue(DELETED)
            await manager.delete_queue("recreated")
            await manager.create_queue("recreated")
        async with client.get_queue_sender("recreated") as sender:
            await sender.send_messages([order(number) for number in range(10, 12)])
    async with MessagingFactory.from_connection_string(connection_string(server)) as factory:
        assert await factory.create_message_receiver("purged").delete_batch(6) == 6


async def leave_unfinished_work(server: ServerProcess) -> None:
    """Kill the server with a message locked by an exclusive receiver, and with messages that become due later."""
    async with connect_client(server) as client, client.get_queue_sender("due") as sender:
        when = dt.datetime.now(dt.UTC) + SOON
        await sender.schedule_messages([order(number) for number in range(3)], when)
    factory = MessagingFactory.from_connection_string(connection_string(server))
    receiver = factory.create_message_receiver("exclusive", epoch=1)
    message = await receiver.receive(10)
    assert message is not None
    await asyncio.sleep(1.5)  # until the second's usage is written
    server.kill()
    await factory.close()


def write_namespace(folder: Path, server: ServerProcess) -> dict[str, Any]:
    """Run the server twice: stop it cleanly, then kill it."""
    try:
        server.start()
        asyncio.run(fill(server))
        server.stop()
        server.start()
        usage = folder / "data" / "usage"
        wait_until(lambda: any(usage.rglob("*.parquet")), timeout_s=MINUTE_S)
        contents = asyncio.run(read_contents(server))
        asyncio.run(leave_unfinished_work(server))
    finally:
        server.kill()
    return {"contents": contents, "usage": totals(usage)}


def write_data_directory(folder: Path) -> dict[str, Any]:
    return write_namespace(folder, ServerProcess(folder))


def write_workers_data_directory(folder: Path) -> dict[str, Any]:
    return write_namespace(folder, MultiProcessServer(folder, "--workers=2"))


# --- jobs on Spark ----------------------------------------------------------------------------------------------------


def write_jobs(folder: Path) -> dict[str, Any]:
    """Write a capture of the first 20 and a stream of the first 30 of 40 messages, for each of two queues.

    The stream completes the messages that it reads, so the second capture reads only the last 10.
    """
    server = ServerProcess(folder)
    expected: dict[str, Any] = {}
    try:
        server.start()
        for queue, partitioned in (("orders", False), ("orders-partitioned", True)):
            asyncio.run(_create(server, queue, partitioned))
            asyncio.run(_send(server, queue, 0, 20))
            _run("twinbus", "pipeline", "capture", server.connection_string, str(folder / "captured"), queue,
                 "--available-now", "--namespace", "contoso")  # fmt: skip
            asyncio.run(_send(server, queue, 20, 30))
            _run(
                "tests.pipeline.source.stream_job",
                "local[2]",
                queue,
                str(folder / queue),
                "12",
                TWINBUS=server.connection_string,
            )
            asyncio.run(_send(server, queue, 30, 40))
            shutil.rmtree(folder / queue / "output")  # Spark notes the whole paths of its files in it
            left = [message["message_id"] for message in asyncio.run(_peeked(server, queue))]
            expected[queue] = {"captured": _ids(0, 20), "read": _ids(0, 30), "sent": _ids(0, 40), "left": left}
        server.stop()
    finally:
        server.kill()
    return expected


async def _create(server: ServerProcess, queue: str, partitioned: bool) -> None:  # noqa: FBT001
    async with connect_manager(server) as manager:
        await manager.create_queue(queue, QueueDescription(enable_partitioning=partitioned))


async def _send(server: ServerProcess, queue: str, first: int, end: int) -> None:
    async with connect_client(server) as client, client.get_queue_sender(queue) as sender:
        for number in range(first, end):
            key = {"partition_key": f"key-{number % 16}"} if "partitioned" in queue else {}
            await sender.send_messages(order(number, **key))


async def _peeked(server: ServerProcess, queue: str) -> list[dict[str, Any]]:
    async with connect_client(server) as client:
        return (await peek_messages(client, queue))[0]


def _ids(first: int, end: int) -> list[str]:
    return [f"order-{number}" for number in range(first, end)]


def _run(module: str, *words: str, **environment: str) -> None:
    subprocess.run([sys.executable, "-m", module, *words], cwd=ROOT, env=os.environ | environment, check=True)


# --- paired programs --------------------------------------------------------------------------------------------------


def write_pair(folder: Path) -> dict[str, Any]:
    """Write journals of a program that ended and of one that was killed, and the spool of the first one."""
    return asyncio.run(_write_pair(folder))


async def _write_pair(folder: Path) -> dict[str, Any]:
    names = {kind: [f"{kind}-{number}" for number in range(10)] for kind in ("sent", "parked", "spooled")}
    with tempfile.TemporaryDirectory() as elsewhere:
        async with run_server_pair(Path(elsewhere)) as (primary, secondary):
            async with paired_application(
                primary, secondary, journal_dir=folder / "journals" / "ended", spool_dir=folder / "spool"
            ) as program:
                await program.send(*names["sent"])
                primary.kill()
                await program.send(*names["parked"])
                secondary.kill()
                await program.send(*names["spooled"][:5])
                for name in names["spooled"][5:]:
                    await program.factory.create_queue_client("orders").send(
                        BrokeredMessage(name, message_id=name, session_id="apples", properties={"number": 7})
                    )
            await asyncio.gather(*[asyncio.to_thread(server.start) for server in (primary, secondary)])
            killed = await asyncio.to_thread(_killed_program, primary, folder / "journals" / "killed")
    return names | {"killed": killed}


PROGRAM: Final = """
import asyncio, sys
from twinbus.client import BrokeredMessage, MessagingFactory
from twinbus.client.journal import Journal

async def main():
    journal = Journal(sys.argv[2])
    factory = MessagingFactory.from_connection_string(sys.argv[1])
    journal.attach(factory)
    for number in range(10):
        await factory.create_queue_client("orders").send(BrokeredMessage("x", message_id=f"killed-{number}"))
    await asyncio.sleep(2.5)  # rows are written after a second
    print("done", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def _killed_program(primary: ServerProcess, folder: Path) -> list[str]:
    command = [sys.executable, "-c", PROGRAM, connection_string(primary), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        process.send_signal(signal.SIGKILL)
    return [f"killed-{number}" for number in range(10)]


# --- all of them ------------------------------------------------------------------------------------------------------

WRITERS: Final[dict[str, Callable[[Path], dict[str, Any]]]] = {
    "data-directory": write_data_directory,
    "workers-data-directory": write_workers_data_directory,
    "jobs": write_jobs,
    "pair": write_pair,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.compatibility.write_fixtures", description=__doc__.splitlines()[0]
    )
    parser.add_argument("commit", help="commit of the twinbus that writes, for the manifest")
    parser.add_argument("--only", choices=WRITERS)
    parser.add_argument("--to", type=Path, default=FOLDER)
    options = parser.parse_args()
    options.to.mkdir(parents=True, exist_ok=True)
    manifest_path = options.to / MANIFEST.name
    manifest: dict[str, Any] = json.loads(manifest_path.read_text()) if manifest_path.exists() else {"archives": {}}
    for name in [options.only] if options.only else WRITERS:
        with tempfile.TemporaryDirectory(prefix="twinbus-fixtures-") as folder:
            manifest["archives"][name] = WRITERS[name](Path(folder))
            for left in ("server.log", "ready.json"):
                (Path(folder) / left).unlink(missing_ok=True)
            pack(options.to, name, Path(folder))
    manifest |= {
        "commit": options.commit,
        "version": twinbus.__version__,
        "date": f"{dt.datetime.now(dt.UTC):%Y-%m-%d}",
    }
    manifest_path.write_text(json.dumps(manifest, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
