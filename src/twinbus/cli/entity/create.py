"""The commands `twinbus entity create ...` and `twinbus entity update ...`.

Owns the arguments and the output. The options for properties are in `property_options`; rules have options of their own
in `rule_options`.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from twinbus.cli import connection
from twinbus.cli.entity.app import app, with_manager
from twinbus.cli.entity.property_options import DESCRIPTIONS, options_of, values_of
from twinbus.cli.entity.rule_options import ActionOption, CorrelationOption, FilterOption, make_rule
from twinbus.cli.output import CommandFailed, CommandGroup, JsonOption, Misuse, examples, print_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.client import NamespaceManager

create_app = typer.Typer(cls=CommandGroup, no_args_is_help=True)
update_app = typer.Typer(cls=CommandGroup, no_args_is_help=True)
app.add_typer(create_app, name="create")
app.add_typer(update_app, name="update")

TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="Path of the topic.")]
SubscriptionArgument = Annotated[str, typer.Argument(metavar="SUBSCRIPTION", help="Name of the subscription.")]
RuleArgument = Annotated[str, typer.Argument(metavar="RULE", help="Name of the rule.")]
_CONNECTION: Final[dict[str, object]] = {
    "connection_string": connection.ConnectionStringOption,
    "ready_file": connection.ReadyFileOption,
    "profile": connection.ProfileOption,
    "ca_file": connection.CaFileOption,
}
_EXAMPLES: Final = {
    "create queue": "twinbus entity create queue orders --partitioned --lock-duration 30s",
    "create topic": "twinbus entity create topic news --time-to-live 14d",
    "create subscription": "twinbus entity create subscription news urgent --filter 'priority > 5'",
    "update queue": "twinbus entity update queue orders --status SendDisabled",
    "update topic": "twinbus entity update topic news --auto-delete-after never",
    "update subscription": "twinbus entity update subscription news urgent --max-delivery-count 3",
}


@create_app.callback()
def create() -> None:
    """Create a queue, topic, subscription or rule."""


@update_app.callback()
def update() -> None:
    """Change properties of a queue, topic or subscription, or replace a rule; other properties keep their values."""


def _register(kind: str, *, is_update: bool) -> None:
    """Add the command for one kind of entity, with an option for each property of the kind."""
    verb = "update" if is_update else "create"
    arguments: dict[str, object] = {"path": Annotated[str, typer.Argument(metavar="PATH", help=f"Path of the {kind}.")]}
    if kind == "subscription":
        arguments = {"path": TopicArgument, "name": SubscriptionArgument}
    extra: dict[str, object] = {}
    if kind == "subscription" and not is_update:
        extra = {"where": FilterOption, "correlation": CorrelationOption, "action": ActionOption}
    if not is_update:
        extra["exists_ok"] = Annotated[bool, typer.Option("--exists-ok", help="Do nothing if there is one already.")]

    def command(path: str, **options: Any) -> None:  # noqa: ANN401  # one per option
        _run(kind, verb, path, options)

    positional, keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(name, positional, annotation=kind_) for name, kind_ in arguments.items()]
    parameters += options_of(kind, is_update=is_update)
    for name, annotation in {**extra, **_CONNECTION}.items():
        default = False if name == "exists_ok" else None
        parameters.append(inspect.Parameter(name, keyword, default=default, annotation=annotation))
    parameters.append(inspect.Parameter("as_json", keyword, default=False, annotation=JsonOption))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = {
        "create": f"Create a {kind}; properties without an option have the defaults of Service Bus.",
        "update": f"Change properties of a {kind}; the others keep their values.",
    }[verb]
    register = (update_app if is_update else create_app).command
    register(kind, epilog=examples(_EXAMPLES[f"{verb} {kind}"]))(command)


def _run(kind: str, verb: str, path: str, options: dict[str, Any]) -> None:
    from twinbus.cli.entity.view import entity_json  # noqa: PLC0415  # imports the client: `--help` starts faster
    from twinbus.model.errors import EntityAlreadyExists  # noqa: PLC0415

    name: str | None = options.get("name")

    async def use(manager: NamespaceManager) -> None:
        values = values_of(options)
        shown = f"{path}/Subscriptions/{name}" if name else path
        outcome = f"{verb}d"
        try:
            if verb == "create":
                description = await _create(manager, kind, path, name, values, options)
            elif not values:
                raise Misuse("give at least one property to change, such as --lock-duration 30s")
            else:
                before = await _method(manager, "get", kind)(path, *([name] if name else []))
                after = replace(before, **values)
                description = await _method(manager, "update", kind)(path, *([name] if name else []), after)
        except EntityAlreadyExists:
            if not options.get("exists_ok"):
                raise CommandFailed(
                    f"{shown!r:.300} exists already: see twinbus entity show, or add --exists-ok"
                ) from None
            description, outcome = (
                await _method(manager, "get", kind)(path, *([name] if name else [])),
                "exists already",
            )
        if options["as_json"]:
            print_json(entity_json(kind, shown, description))
        else:
            typer.echo(f"{kind.capitalize()} {shown} {outcome}.")

    with_manager(f"{verb} {kind}", lambda: find_connection(options), use)


async def _create(
    manager: NamespaceManager, kind: str, path: str, name: str | None, values: dict[str, Any], options: dict[str, Any]
) -> object:
    description = DESCRIPTIONS[kind](**values)
    if name is None:
        return await _method(manager, "create", kind)(path, description)
    rule = None
    if any(options[part] for part in ("where", "correlation", "action")):
        rule = make_rule("$Default", options["where"], options["correlation"] or [], options["action"])
    return await manager.create_subscription(path, name, description, rule)


def _method(manager: NamespaceManager, verb: str, kind: str) -> Callable[..., Any]:
    method: Callable[..., Any] = getattr(manager, f"{verb}_{kind}")
    return method


def find_connection(options: dict[str, Any]) -> connection.Target:
    """Return the namespace of a command whose options are in a dict."""
    return connection.find_target(*(options[name] for name in _CONNECTION))


for _kind in DESCRIPTIONS:
    _register(_kind, is_update=False)
    _register(_kind, is_update=True)


@create_app.command(
    "rule",
    epilog=examples("twinbus entity create rule news urgent high --filter 'priority > 5'"),
)
def create_rule(  # noqa: PLR0913  # one per option
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    name: RuleArgument,
    *,
    where: FilterOption = None,
    correlation: CorrelationOption = None,
    action: ActionOption = None,
    connection_string: connection.ConnectionStringOption = None,
    ready_file: connection.ReadyFileOption = None,
    profile: connection.ProfileOption = None,
    ca_file: connection.CaFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add a rule to a subscription; without a filter, the rule matches every message."""

    async def use(manager: NamespaceManager) -> None:
        rule = make_rule(name, where, correlation or [], action)
        _print_rule("created", topic, subscription, await manager.create_rule(topic, subscription, rule), as_json)

    find = partial(connection.find_target, connection_string, ready_file, profile, ca_file)
    with_manager("create rule", find, use)


@update_app.command("rule", epilog=examples("twinbus entity update rule news urgent high --filter 'priority > 7'"))
def update_rule(  # noqa: PLR0913  # one per option
    topic: TopicArgument,
    subscription: SubscriptionArgument,
    name: RuleArgument,
    *,
    where: FilterOption = None,
    correlation: CorrelationOption = None,
    action: ActionOption = None,
    connection_string: connection.ConnectionStringOption = None,
    ready_file: connection.ReadyFileOption = None,
    profile: connection.ProfileOption = None,
    ca_file: connection.CaFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replace the filter and the action of a rule."""

    async def use(manager: NamespaceManager) -> None:
        rule = make_rule(name, where, correlation or [], action)
        _print_rule("updated", topic, subscription, await manager.update_rule(topic, subscription, rule), as_json)

    find = partial(connection.find_target, connection_string, ready_file, profile, ca_file)
    with_manager("update rule", find, use)


def _print_rule(outcome: str, topic: str, subscription: str, rule: Any, as_json: bool) -> None:  # noqa: ANN401, FBT001
    from twinbus.cli.entity.view import rule_json  # noqa: PLC0415

    if as_json:
        print_json(rule_json(rule))
    else:
        typer.echo(f"Rule {rule.name} of {topic}/Subscriptions/{subscription} {outcome}.")
