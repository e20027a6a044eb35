"""A program that exits without closing its pair exits soon and prints no errors."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Final

from tests.support.server_process import run_server

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM: Final = """
import sys
from twinbus.client.sync import *

primary, secondary, admin, ca_file, queue, folder = sys.argv[1:]
factory = MessagingFactory.from_connection_string(primary)
options = SendAvailabilityPairedNamespaceOptions(
    secondary_factory=MessagingFactory.from_connection_string(secondary),
    secondary_namespace_manager=NamespaceManager.from_connection_string(admin, ca_file=ca_file),
    primary_namespace_name="contoso",
    backlog_queue_count=2,
    enable_syphon=True,
    spool_dir=f"{folder}/spool",
    journal_dir=f"{folder}/journal",
)
pairing = factory.pair_namespace(options)
factory.create_queue_client(queue).send(BrokeredMessage("the last"))
print(options.backlog_queue_count)
"""


def test_a_program_that_does_not_close_its_pair_exits_without_output_or_errors(tmp_path: Path) -> None:
    for name in ("primary", "secondary"):
        (tmp_path / name).mkdir()
    with run_server(tmp_path / "primary") as primary, run_server(tmp_path / "secondary") as secondary:
        queue = primary.create_queue()
        strings = (primary.connection_string, secondary.connection_string, secondary.admin_connection_string)
        arguments = (*strings, secondary.ca_file, queue, str(tmp_path))
        result = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=60, check=False
        )
        assert (result.returncode, result.stdout, result.stderr) == (0, "2\n", "")
        assert primary.message_counts(queue) == (1, 0)
