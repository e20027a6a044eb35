"""`twinbus pair drain`: parked messages are brought back without the application."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.pairing.application import application
from tests.served import Served, started
from twinbus.client import BrokeredMessage
from twinbus.client.pairing import rewriting
from twinbus.client.pairing.draining_by_hand import DrainingByHand
from twinbus.client.sync import MessagingFactory
from twinbus.testing import InMemoryPair, in_virtual_time

if TYPE_CHECKING:
    from pathlib import Path

EXTRA = "contoso/x-servicebus-transfer/7"


@in_virtual_time
async def test_q20_messages_in_an_extra_queue_are_moved() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders")
        await namespaces.secondary.create_queue(EXTRA)
        async with application(namespaces) as app:
            parked = rewriting.park(BrokeredMessage("apples").encode(0), 0, "orders", is_possible_duplicate=False)
            await app.pairing.secondary.create_message_sender(EXTRA).deliver(parked)
            draining = DrainingByHand(app.primary, app.pairing.secondary, app.manager, [EXTRA])
            assert await draining.left() == 1
            draining.start()
            while await draining.left():
                pass
            await draining.close()
            assert draining.moved == 1
            assert await app.arrived() == ["apples"]


def drain(primary: Served, secondary: Served, *options: str) -> subprocess.CompletedProcess[str]:
    strings = (primary.tls_connection_string, secondary.tls_connection_string, secondary.admin_connection_string)
    trusted = ["--ca-file", primary.ca_file, "--ca-file", secondary.ca_file]
    command = [sys.executable, "-m", "twinbus", "pair", "drain", *strings, *trusted, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_command_drains_what_is_asked_for_and_says_what_is_left(tmp_path: Path) -> None:
    for name in ("primary", "secondary"):
        (tmp_path / name).mkdir()
    with started(tmp_path / "primary") as primary, started(tmp_path / "secondary") as secondary:
        queue = primary.make_queue()
        with MessagingFactory.from_connection_string(secondary.connection_string) as factory:
            for index, text in ((0, "usual"), (7, "extra")):
                path = f"contoso/x-servicebus-transfer/{index}"
                secondary.put(path, "QueueDescription")
                payload = BrokeredMessage(text).encode(0)
                parked = BrokeredMessage.decode(rewriting.park(payload, 0, queue, is_possible_duplicate=False))
                factory.create_queue_client(path).send(parked.clone())
        assert drain(primary, secondary).returncode == 1, "the host does not tell the name"
        done = drain(primary, secondary, "--primary-name", "contoso", "--extra", "--count", "1")
        assert done.returncode == 0, done.stderr
        assert primary.counts(queue) == (1, 0)
        primary.kill()
        done = drain(primary, secondary, "--primary-name", "contoso", "--wait", "1")
        assert done.returncode == 2
        assert "1 messages are left: their destinations do not take them now" in done.stderr
        primary.start()
        assert drain(primary, secondary, "--primary-name", "contoso").returncode == 0
        assert primary.counts(queue) == (2, 0)
