"""The command group `twinbus entity`, and what its commands share: the connection and the kinds of entities.

Owns how a command opens the administration of a namespace, and how arguments name an entity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from twinbus.cli.output import CommandFailed, CommandGroup, Misuse, run_command

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from twinbus.cli.connection import Target
    from twinbus.client import NamespaceManager

T = TypeVar("T")

app = typer.Typer(cls=CommandGroup, no_args_is_help=True)

PathArgument = Annotated[
    str, typer.Argument(metavar="PATH", help="Queue or topic, or topic/Subscriptions/name.", show_default=False)
]
SubscriptionArgument = Annotated[
    str | None, typer.Argument(metavar="SUBSCRIPTION", help="Subscription of the topic.", show_default=False)
]
RuleArgument = Annotated[
    str | None, typer.Argument(metavar="RULE", help="Rule of the subscription.", show_default=False)
]


@app.callback()
def entity() -> None:
    """Manage queues, topics, subscriptions and rules of a namespace."""


def with_manager(command: str, find: Callable[[], Target], use: Callable[[NamespaceManager], Awaitable[T]]) -> T:
    """Connect to the administration of a namespace, call `use`, and report failures."""

    async def run() -> T:
        async with open_manager(find()) as manager:
            return await use(manager)

    return run_command(f"entity {command}", run)


def open_manager(target: Target) -> NamespaceManager:
    """Return a manager of the namespace, which the caller closes. Raise OSError for an unreadable CA file."""
    from twinbus.client import NamespaceManager  # noqa: PLC0415  # `--help` starts faster
    from twinbus.client.retry import RECONNECT_ONCE  # noqa: PLC0415  # the user sees a failure soon, and may repeat

    options: dict[str, Any] = {"operation_timeout": 20.0, "retry_policy": RECONNECT_ONCE}
    tls = target.tls_context()
    if tls is not None:
        options["tls"] = tls
    return NamespaceManager.from_connection_string(target.admin_connection_string, **options)


def split_path(path: str, subscription: str | None) -> tuple[str, str | None]:
    """Return the path of the queue or topic, and the name of the subscription, if any."""
    from twinbus.model.path import split_subscription  # noqa: PLC0415

    topic, name = split_subscription(path)
    if name and subscription:
        raise Misuse(f"{path!r:.80} names a subscription already: leave out {subscription!r:.80}")
    return topic, name or subscription


async def kind_of(manager: NamespaceManager, path: str) -> str:
    """Return "queue" or "topic". Raise CommandFailed if there is neither."""
    if await manager.queue_exists(path):
        return "queue"
    if await manager.topic_exists(path):
        return "topic"
    raise CommandFailed(f"there is no queue or topic {path!r:.300}: see twinbus entity list")
