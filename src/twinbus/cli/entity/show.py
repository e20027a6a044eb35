"""The commands `twinbus entity list`, `show` and `delete`.

Owns the arguments and the tables. The rows are in `view`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twinbus.cli import connection
from twinbus.cli.entity.app import (
    PathArgument,
    RuleArgument,
    SubscriptionArgument,
    app,
    kind_of,
    split_path,
    with_manager,
)
from twinbus.cli.output import JsonOption, Misuse, YesOption, confirm, examples, print_json, print_table, printable
from twinbus.cli.units import format_size

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from twinbus.client import NamespaceManager


@app.command("list", epilog=examples("twinbus entity list ord --kind queue"))
def list_entities(  # one per option
    prefix: Annotated[
        str, typer.Argument(metavar="PREFIX", help="Only queues and topics whose path starts so.", show_default=False)
    ] = "",
    *,
    kind: Annotated[
        str | None, typer.Option(metavar="KIND", help="Only entities of this kind: queue, topic or subscription.")
    ] = None,
    connection_string: connection.ConnectionStringOption = None,
    ready_file: connection.ReadyFileOption = None,
    profile: connection.ProfileOption = None,
    ca_file: connection.CaFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """List queues, topics and subscriptions with their messages."""

    async def use(manager: NamespaceManager) -> None:
        from twinbus.cli.entity.view import entity_json  # noqa: PLC0415

        if kind not in (None, "queue", "topic", "subscription"):
            raise Misuse(f"--kind {kind!r:.60}: use queue, topic or subscription")
        found = [item async for item in _entities(manager, prefix, kind)]
        if as_json:
            print_json([entity_json(name, info.path, info.description, info.runtime) for name, info in found])
        elif not found:
            typer.echo("There are no such entities: create one with twinbus entity create.")
        else:
            columns = ("kind", "path", "active", "dead", "size", "status")
            print_table(columns, [_row(name, info) for name, info in found])

    find = partial(connection.find_target, connection_string, ready_file, profile, ca_file)
    with_manager("list", find, use)


async def _entities(manager: NamespaceManager, prefix: str, kind: str | None) -> AsyncIterator[tuple[str, Any]]:
    if kind in (None, "queue"):
        async for queue in manager.get_queues(prefix):
            yield "queue", queue
    if kind == "queue":
        return
    async for topic in manager.get_topics(prefix):
        if kind in (None, "topic"):
            yield "topic", topic
        if kind != "topic":
            async for subscription in manager.get_subscriptions(topic.path):
                yield "subscription", subscription


def _row(kind: str, info: Any) -> tuple[object, ...]:  # noqa: ANN401  # any entity
    runtime = info.runtime
    active, dead = (getattr(runtime, name, None) for name in ("active_count", "dead_letter_count"))
    size = None if kind == "subscription" else format_size(runtime.size_bytes)  # part of the topic's size
    status = info.description.status if runtime.is_available else f"{info.description.status}, unavailable"
    return kind, info.path, active, dead, size, status


@app.command(epilog=examples("twinbus entity show orders", "twinbus entity show news urgent"))
def show(  # one per option
    path: PathArgument,
    subscription: SubscriptionArgument = None,
    rule: RuleArgument = None,
    *,
    connection_string: connection.ConnectionStringOption = None,
    ready_file: connection.ReadyFileOption = None,
    profile: connection.ProfileOption = None,
    ca_file: connection.CaFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show all properties and counts of an entity, and the rules of a subscription."""

    async def use(manager: NamespaceManager) -> None:
        topic, name = split_path(path, subscription)
        if rule is not None and name is not None:
            await _show_rule(manager, topic, name, rule, as_json)
        else:
            await _show_entity(manager, topic, name, as_json)

    find = partial(connection.find_target, connection_string, ready_file, profile, ca_file)
    with_manager("show", find, use)


async def _show_entity(manager: NamespaceManager, path: str, name: str | None, as_json: bool) -> None:  # noqa: FBT001
    from twinbus.cli.entity.view import describe_filter, entity_json, property_rows  # noqa: PLC0415

    rules = None
    if name is not None:
        kind, shown = "subscription", f"{path}/Subscriptions/{name}"
        description: Any = await manager.get_subscription(path, name)
        runtime: Any = await manager.get_subscription_runtime(path, name)
        rules = [rule async for rule in manager.get_rules(path, name)]
    elif await kind_of(manager, path) == "queue":
        kind, shown = "queue", path
        description, runtime = await manager.get_queue(path), await manager.get_queue_runtime(path)
    else:
        kind, shown = "topic", path
        description, runtime = await manager.get_topic(path), await manager.get_topic_runtime(path)
    if as_json:
        print_json(entity_json(kind, shown, description, runtime, rules))
        return
    typer.echo(f"{kind.capitalize()} {printable(shown)}")
    typer.echo("")
    print_table(("property", "value"), property_rows(description, runtime))
    if rules:
        typer.echo("")
        cells = [(rule.name, describe_filter(rule), rule.action and rule.action.expression) for rule in rules]
        print_table(("rule", "filter", "action"), cells)


async def _show_rule(manager: NamespaceManager, topic: str, name: str, rule_name: str, as_json: bool) -> None:  # noqa: FBT001
    from twinbus.cli.entity.view import describe_filter, rule_json  # noqa: PLC0415

    rule = await manager.get_rule(topic, name, rule_name)
    if as_json:
        print_json(rule_json(rule))
    else:
        action = rule.action and rule.action.expression
        cells = [("name", rule.name), ("filter", describe_filter(rule)), ("action", action)]
        print_table(("property", "value"), cells)


@app.command(epilog=examples("twinbus entity delete orders --yes", "twinbus entity delete news urgent high"))
def delete(  # noqa: PLR0913  # one per option
    path: PathArgument,
    subscription: SubscriptionArgument = None,
    rule: RuleArgument = None,
    *,
    yes: YesOption = False,
    connection_string: connection.ConnectionStringOption = None,
    ready_file: connection.ReadyFileOption = None,
    profile: connection.ProfileOption = None,
    ca_file: connection.CaFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a queue, topic, subscription or rule. All messages in it are lost."""

    async def use(manager: NamespaceManager) -> None:
        topic, name = split_path(path, subscription)
        if rule is not None and name is not None:
            kind, shown = "rule", f"{rule} of {topic}/Subscriptions/{name}"
            await manager.get_rule(topic, name, rule)
            lost = ""
        else:
            kind, shown, lost = await _describe_loss(manager, topic, name)
        confirm(f"Delete {kind} {shown}{lost}?", is_confirmed=yes)
        if rule is not None and name is not None:
            await manager.delete_rule(topic, name, rule)
        elif name is not None:
            await manager.delete_subscription(topic, name)
        else:
            await manager.delete_queue(topic)
        if as_json:
            print_json({"kind": kind, "path": shown, "deleted": True})
        else:
            typer.echo(f"{kind.capitalize()} {shown} deleted{lost}.")

    find = partial(connection.find_target, connection_string, ready_file, profile, ca_file)
    with_manager("delete", find, use)


async def _describe_loss(manager: NamespaceManager, path: str, name: str | None) -> tuple[str, str, str]:
    if name is not None:
        runtime = await manager.get_subscription_runtime(path, name)
        kind, shown = "subscription", f"{path}/Subscriptions/{name}"
    elif await kind_of(manager, path) == "topic":
        topic = await manager.get_topic_runtime(path)
        count = topic.subscription_count
        return "topic", path, f" with {count} subscription{'' if count == 1 else 's'}"
    else:
        runtime = await manager.get_queue_runtime(path)
        kind, shown = "queue", path
    count = sum((
        runtime.active_count, runtime.dead_letter_count, runtime.scheduled_count, runtime.deferred_count,
        runtime.transfer_count, runtime.transfer_dead_letter_count,
    ))  # fmt: skip
    return kind, shown, f" with {count:,} message{'' if count == 1 else 's'}"
