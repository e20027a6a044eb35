"""Requests about the rules of a subscription.

Owns: what each asks of the namespace, and what it answers. How a rule is written is in `model.atom.rule`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from starlette.responses import Response

from twinbus.model.atom import envelope
from twinbus.model.atom import rule as rule_form
from twinbus.server.http import entries
from twinbus.server.http.entity_requests import SUBSCRIPTION_PATTERN
from twinbus.server.http.entries import AtomEntry
from twinbus.server.http.routes import Route, route

if TYPE_CHECKING:
    from twinbus.model.rule import RuleDescription
    from twinbus.server.administration import Administration
    from twinbus.server.http.call import Call


class RuleEndpoints:
    """The rules of all subscriptions, over HTTP."""

    def __init__(self, administration: Administration) -> None:
        """They are part of a namespace."""
        self._administration = administration

    def routes(self) -> tuple[Route, ...]:
        """To be tried before those of entities, which have every name."""
        return (
            route(rf"{SUBSCRIPTION_PATTERN}/rules/(?P<rule>[^/]+)", PUT=self._put, GET=self._get, DELETE=self._delete),
            route(rf"{SUBSCRIPTION_PATTERN}/rules", GET=self._list),
        )

    async def _put(self, call: Call) -> Response:
        is_update = call.is_update
        rule = rule_form.read(envelope.read_description(await call.body(), rule_form.RULE_TAG), call.rule)
        if is_update:
            return self._entry_response(call, await self._administration.update_rule(call.subscription, rule))
        return self._entry_response(call, await self._administration.create_rule(call.subscription, rule), status=201)

    async def _get(self, call: Call) -> Response:
        return self._entry_response(call, await self._administration.get_rule(call.subscription, call.rule))

    async def _delete(self, call: Call) -> Response:
        await self._administration.delete_rule(call.subscription, call.rule)
        return Response()

    async def _list(self, call: Call) -> Response:
        list_some = partial(self._administration.list_rules, call.subscription)
        entry_of = partial(_rule_entry, subscription=call.subscription)
        return await entries.feed_response(
            call, f"{call.subscription}/Rules", list_some, entry_of, self._administration.namespace
        )

    def _entry_response(self, call: Call, rule: RuleDescription, status: int = 200) -> Response:
        return entries.entry_response(
            call, _rule_entry(rule, call.subscription), self._administration.namespace, status
        )


def _rule_entry(rule: RuleDescription, subscription: str) -> AtomEntry:
    return AtomEntry(
        path=f"{subscription}/Rules/{rule.name}",
        title=rule.name,
        content=rule_form.write(rule),
        created_ms=rule.created_ms,
        updated_ms=rule.created_ms,
    )
