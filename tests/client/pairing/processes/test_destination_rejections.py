"""Q19 on real servers: parked messages wait while their destination refuses them, and come back afterwards.

One primary and one secondary serve all tests of this file; each test has its own queue.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime as dt
import itertools
import os
import re
import time
from typing import TYPE_CHECKING, Any, Final

import pytest
from typer.testing import CliRunner

from tests.client.connection.test_skewed_clocks import SkewedClock
from tests.support.cli import pair_status
from tests.support.in_process_server import run_server_in_process
from tests.support.server_pair import (
    OPERATION_TIMEOUT_S,
    connect_manager,
    connection_string,
    create_queue,
    paired_application,
    receive_all,
)
from tests.support.server_process import AUTHORIZATION_RULE, QUEUE_ENTRY, ServerProcess
from twinbus.cli.main import app as command
from twinbus.client import BrokeredMessage, MessagingFactory
from twinbus.client.pairing import AlarmKind, EventKind, SendAvailabilityPairedNamespaceOptions
from twinbus.client.pairing.syphon import dead_letter_resend
from twinbus.model.authorization import new_secret
from twinbus.server.auth.keys import ROOT_KEY_NAME, Key, Right
from twinbus.server.runtime import single_process
from twinbus.server.runtime.system_clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from typer.testing import Result

    from tests.support.server_pair import Application

TWO_HOURS_S: Final = 7200.0
TEXTS: Final = [f"order {number}" for number in range(30)]
SESSIONS: Final = "<RequiresSession>true</RequiresSession>"
LISTENER: Final = new_secret()
"""The secret of a key of the secondary that can only listen."""
_numbers: Final = itertools.count()


class MovableClock(SystemClock):
    """The machine's clock, off by a number of seconds that tests set."""

    off_s = 0.0

    def wall_ms(self) -> int:  # type: ignore[override]  # depends on the instance
        return round(1000 * (time.time() + self.off_s))


@pytest.fixture(scope="module")
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture(scope="module")
def servers(
    tmp_path_factory: pytest.TempPathFactory, clock: MovableClock
) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setattr(single_process, "SystemClock", lambda: clock)
        primary = stack.enter_context(run_server_in_process(tmp_path_factory.mktemp("primary")))
        patch.setattr(single_process, "SystemClock", SystemClock)
        keys = [Key(ROOT_KEY_NAME, new_secret()), Key("listener", LISTENER, rights=frozenset({Right.LISTEN}))]
        yield primary, stack.enter_context(run_server_in_process(tmp_path_factory.mktemp("secondary"), keys=keys))


@contextlib.asynccontextmanager
async def parked(
    servers: tuple[ServerProcess, ServerProcess],
    *texts: str,
    path: str = "orders",
    **message_options: Any,  # noqa: ANN401
) -> AsyncIterator[str]:
    """Park messages of an application that cannot reach its primary; yield the name of the pair."""
    primary, secondary = servers
    name = f"pair{next(_numbers)}"
    unreachable = MessagingFactory.from_connection_string(
        connection_string(primary, port=1), operation_timeout=OPERATION_TIMEOUT_S
    )
    async with paired_application(primary, secondary, factory=unreachable, primary_namespace_name=name) as app:
        queue = app.factory.create_queue_client(path)
        for text in texts:
            await queue.send(BrokeredMessage(text, message_id=text, **message_options))
    yield name


@contextlib.asynccontextmanager
async def draining(
    servers: tuple[ServerProcess, ServerProcess], name: str, factory: MessagingFactory | None = None
) -> AsyncIterator[Application]:
    """An application that runs a syphon."""
    application = paired_application(*servers, factory=factory, primary_namespace_name=name, enable_syphon=True)
    async with application as app:
        yield app


async def check_messages_come_back(
    app: Application, remove_cause: Callable[[], object], path: str, seconds: float
) -> None:
    """Check that no message is dead-lettered while the cause lasts, and that all come back when it is removed."""
    await app.wait_for_event(EventKind.DESTINATION_REFUSES)
    await asyncio.sleep(seconds)
    assert app.events_of(EventKind.DEAD_LETTERED, EventKind.MOVED) == []
    assert AlarmKind.DESTINATION_REFUSES in {alarm.kind for alarm in app.pairing.observers.alarms.raised}
    await asyncio.to_thread(remove_cause)
    await app.wait_for_event(EventKind.MOVED, len(TEXTS))
    assert {message.text for message in await receive_all(app.primary, len(TEXTS), path)} == set(TEXTS)
    assert app.events_of(EventKind.DEAD_LETTERED) == []
    assert app.pairing.observers.alarms.raised == ()
    assert await app.parked_messages() == []


async def test_q19_nothing_is_dead_lettered_while_the_queue_is_disabled(
    servers: tuple[ServerProcess, ServerProcess],
) -> None:
    primary, _ = servers
    await create_queue(primary, "disabled")
    await asyncio.to_thread(primary.update_queue, "disabled", Status="SendDisabled")
    async with parked(servers, *TEXTS, path="disabled") as name, draining(servers, name) as app:
        await check_messages_come_back(app, lambda: primary.update_queue("disabled", Status="Active"), "disabled", 0.5)


async def test_q19_nothing_is_dead_lettered_while_the_key_of_the_primary_is_rotated(
    servers: tuple[ServerProcess, ServerProcess],
) -> None:
    primary, _ = servers
    ours, other = (base64.b64encode(os.urandom(32)).decode() for _ in range(2))

    def put(key: str, expected: int = 200) -> None:
        headers = {} if expected == 201 else {"If-Match": "*"}
        content = QUEUE_ENTRY.format(AUTHORIZATION_RULE.format(name="shop", key=key))
        primary.request("PUT", "keyed", content, expected=expected, headers=headers)

    put(ours, 201)
    string = re.sub("Name=[^;]*;SharedAccessKey=[^;]*", f"Name=shop;SharedAccessKey={ours}", connection_string(primary))
    factory = MessagingFactory.from_connection_string(string, operation_timeout=OPERATION_TIMEOUT_S)
    put(other)
    async with parked(servers, *TEXTS, path="keyed") as name, draining(servers, name, factory) as app:
        await check_messages_come_back(app, lambda: put(ours), "keyed", 0.5)


async def test_q19_nothing_is_dead_lettered_while_tokens_seem_to_have_expired(
    servers: tuple[ServerProcess, ServerProcess], clock: MovableClock
) -> None:
    primary, _ = servers
    await create_queue(primary, "timely")
    async with parked(servers, *TEXTS, path="timely") as name:
        clock.off_s = TWO_HOURS_S
        try:
            async with draining(servers, name) as app:
                await check_messages_come_back(app, lambda: setattr(clock, "off_s", 0.0), "timely", 0.5)
        finally:
            clock.off_s = 0.0


async def test_q09_the_parked_time_is_measured_by_the_secondarys_clock_despite_a_wrong_local_clock(
    servers: tuple[ServerProcess, ServerProcess],
) -> None:
    primary, _ = servers
    await create_queue(primary, "mortal")
    async with parked(servers, *TEXTS[:10], path="mortal", time_to_live=dt.timedelta(seconds=300)) as name:
        factory = MessagingFactory.from_connection_string(
            connection_string(primary), operation_timeout=OPERATION_TIMEOUT_S, clock=SkewedClock(SystemClock(), 600_000)
        )
        options: dict[str, Any] = {"primary_namespace_name": name, "enable_syphon": True, "deduct_parked_time": True}
        async with paired_application(*servers, factory=factory, **options) as app:
            await app.wait_until(lambda: len(app.events_of(EventKind.MOVED, EventKind.DEAD_LETTERED)) == 10)
            assert app.events_of(EventKind.DEAD_LETTERED) == []
        for message in await receive_all(primary, 10, "mortal"):
            parked_ms = message.properties["x-ms-parked-for-ms"]
            assert isinstance(parked_ms, int)
            assert 0 < parked_ms < 60_000
            assert message.time_to_live == dt.timedelta(milliseconds=300_000 - parked_ms)


# --- the commands -----------------------------------------------------------------------------------------------------


async def drain(servers: tuple[ServerProcess, ServerProcess], name: str, *options: str, columns: int = 80) -> Result:
    primary, secondary = servers
    listener = connection_string(secondary).replace(secondary.key_name, "listener").replace(secondary.key, LISTENER)
    strings = [
        *("--connection-string", connection_string(primary)),
        *("--secondary-connection-string", listener),
        *("--secondary-admin-connection-string", secondary.admin_connection_string),
    ]
    trusted = ["--ca-file", primary.ca_file, "--ca-file", secondary.ca_file, "--primary-name", name]
    runner = CliRunner(env={"COLUMNS": str(columns)})
    arguments = ["pair", "drain", *strings, *trusted, *options]
    return await asyncio.to_thread(runner.invoke, command, arguments, prog_name="twinbus")


def normalise_whitespace(text: str) -> str:
    return " ".join(text.split())


async def test_q19_drain_reports_which_messages_wait_and_why_and_sends_dead_letters_again(
    servers: tuple[ServerProcess, ServerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letter_resend, "EMPTY_AFTER_S", 0.2)
    primary, secondary = servers
    async with parked(servers, *TEXTS[:3], path="missing") as name:
        waiting = await drain(servers, name, "--wait", "0.5")
        assert waiting.exit_code == 2
        assert "3 messages are left: nothing has moved for 0.5 s (--wait)." in normalise_whitespace(waiting.stderr)
        assert "3 for 'missing': The messaging entity 'missing' could not be found." in normalise_whitespace(
            waiting.stderr
        )
        assert sum(secondary.message_counts(f"{name}/x-servicebus-transfer/{index}")[1] for index in range(2)) == 0

        dead_lettered = await drain(servers, name, "--wait", "5", "--not-found-grace", "0")
        assert dead_lettered.exit_code == 0
        assert (
            "3 messages dead-lettered: remove the cause, then run `twinbus pair drain --dead-letters`"
            in normalise_whitespace(dead_lettered.stdout)
        )
        shown = await pair_status(secondary, "--primary", name)
        assert "3 messages are dead-lettered, each with a reason." in normalise_whitespace(shown)
        assert "run `twinbus pair drain --dead-letters` to resend them." in normalise_whitespace(shown)
        assert max(len(line.rstrip()) for line in shown.splitlines()) <= 80

        waiting = await drain(servers, name, "--dead-letters", "--wait", "0.5")
        assert waiting.exit_code == 2
        assert "3 messages are left: nothing has moved for 0.5 s (--wait)." in normalise_whitespace(waiting.stderr)
        assert "3 for 'missing': The messaging entity 'missing' could not be found." in normalise_whitespace(
            waiting.stderr
        )

        await create_queue(primary, "missing")
        resent = await drain(servers, name, "--dead-letters")
        assert (resent.exit_code, resent.stderr) == (0, "")
        assert {message.text for message in await receive_all(primary, 3, "missing")} == set(TEXTS[:3])
        assert "dead-lettered, each" not in await pair_status(secondary, "--primary", name)
        assert (
            "The backlog queues have no dead-lettered messages" in (await drain(servers, name, "--dead-letters")).stdout
        )


async def spooled(servers: tuple[ServerProcess, ServerProcess], folder: Path, *texts: str, path: str) -> str:
    """Leave messages in the spool of an application that reaches neither namespace; return the name of the pair."""
    primary, secondary = servers
    name = f"pair{next(_numbers)}"
    unreachable = connection_string(primary, port=1), connection_string(secondary, port=2)
    primary_factory, secondary_factory = (
        MessagingFactory.from_connection_string(text, operation_timeout=OPERATION_TIMEOUT_S) for text in unreachable
    )
    async with connect_manager(secondary) as manager:
        options = SendAvailabilityPairedNamespaceOptions(
            secondary_factory=secondary_factory,
            secondary_namespace_manager=manager,
            primary_namespace_name=name,
            backlog_queue_count=1,
            failover_interval=0,
            spool_dir=folder,
        )
        async with await primary_factory.pair_namespace(options) as pairing:
            queue = primary_factory.create_queue_client(path)
            for text in texts:
                await queue.send(BrokeredMessage(text, message_id=text))
            assert pairing.spool_status is not None
            assert pairing.spool_status.count == len(texts)
    return name


async def test_x08_drain_spool_sends_messages_that_an_application_left_and_refused_messages(
    servers: tuple[ServerProcess, ServerProcess], tmp_path: Path
) -> None:
    primary, secondary = servers
    await asyncio.to_thread(primary.request, "PUT", "baskets", QUEUE_ENTRY.format(SESSIONS), expected=201)
    name = await spooled(servers, tmp_path, *TEXTS[:4], path="baskets")
    options = ("--spool", str(tmp_path), "--count", "1", "--wait", "3")
    refused = await drain(servers, name, *options)
    assert refused.exit_code == 2
    assert "4 messages are left. Remove the cause and run again" in refused.stderr
    folder = tmp_path / name / "refused"
    unbroken = "".join(refused.stderr.split("\n  "))
    assert f"4 refused: each with its reason in {folder}" in unbroken.replace("in/", "in /")
    assert len(list(folder.glob("*.txt"))) == 4
    async with paired_application(primary, secondary, primary_namespace_name=name, spool_dir=tmp_path):
        async with asyncio.timeout(10):
            while "spool: " not in (shown := await pair_status(secondary, "--primary", name)):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert re.search(r"^    spool: 4 messages refused \(\d\.\d KB\)$", shown, re.MULTILINE), shown
        assert "alarm: messages were refused from the spool: 4 messages in" in normalise_whitespace(shown)
    await asyncio.to_thread(primary.delete_queue, "baskets")
    await create_queue(primary, "baskets")
    completed = await drain(servers, name, *options)
    assert (completed.exit_code, completed.stderr) == (0, "")
    assert {message.text for message in await receive_all(primary, 4, "baskets")} == set(TEXTS[:4])
    assert (await drain(servers, name, "--spool", str(tmp_path / "none"))).exit_code == 1
    assert secondary.message_counts(f"{name}/x-servicebus-transfer/0") == (0, 0)
