"""The way to the namespace that the options name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.client.factory import MessagingFactory

if TYPE_CHECKING:
    from twinbus.pipeline.source.options import SourceOptions


def connect(options: SourceOptions) -> MessagingFactory:
    """A factory, to be closed by whoever asked for it."""
    return MessagingFactory.from_connection_string(
        options.connection_string, ca_file=options.ca_file, operation_timeout=options.operation_timeout_s
    )
