"""The catalogue service: validates and stores changes to a namespace's entities.

    service = CatalogueService(limits, clock, store_count=4, unavailable_reason=unavailable_reason, publish=publish)
    row = await service.create("orders", QueueDescription())

Owns: the catalogue, its contents, and the rules for allowed changes. Changes are made one at a time: the service checks
a change, writes it, publishes it to all replicas, and returns to the caller once every replica has applied the change.
Knows nothing of the broker: `unavailable_reason` says whether a store is available. The catalogue survives a power cut.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from twinbus.broker.filters.rule import compile_rule
from twinbus.model import path as paths
from twinbus.model.authorization import MIN_SECRET_CHARACTERS
from twinbus.model.description import FIXED_AT_CREATION, FRAGMENT_COUNT
from twinbus.model.errors import (
    EntityAlreadyExists,
    EntityNotFound,
    InvalidArgument,
    NotAllowed,
    QuotaExceeded,
    StoreUnavailable,
)
from twinbus.model.rule import DEFAULT_RULE, RuleDescription
from twinbus.model.topic import SubscriptionDescription
from twinbus.server.catalogue.changes import EntityCreated, EntityDeleted, EntityUpdated, RuleDeleted, RulePut
from twinbus.store.catalogue import KIND_OF_DESCRIPTION, SUBSCRIPTION, TOPIC

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from twinbus.broker.clock import Clock
    from twinbus.broker.ports.outage import Outage
    from twinbus.model.info import Description
    from twinbus.model.limits import NamespaceLimits
    from twinbus.server.catalogue.changes import Change
    from twinbus.store.catalogue import Catalogue, CleanupRow, EntityRow

T = TypeVar("T")
log: Final = logging.getLogger(__name__)


class CatalogueEntry:
    """An entity in the catalogue, with its rules or subscriptions."""

    def __init__(self, row: EntityRow) -> None:
        """Create an entry for `row`, without rules or subscriptions."""
        self.row = row
        self.rules: dict[str, RuleDescription] = {}
        """Rules of a subscription by canonical name, in order of creation."""
        self.subscriptions: dict[str, None] = {}
        """Canonical paths of a topic's subscriptions."""
        self.rule_costs: dict[str, tuple[RuleDescription, int]] = {}
        """Cached rule costs by canonical rule name, each with the rule that the cost was computed for."""

    @property
    def path(self) -> str:
        """The entity's path, as spelled at creation."""
        return self.row.path

    @property
    def description(self) -> Description:
        """The entity's description."""
        return self.row.description

    @property
    def is_partitioned(self) -> bool:
        """Whether the entity has more than one fragment."""
        return len(self.row.fragments) > 1

    def set_outage(self, outage: Outage | None) -> None:
        """Do nothing, because only the process that serves the entity applies an outage."""


class CatalogueService:
    """The catalogue of a namespace: checks, stores and publishes changes one at a time."""

    def __init__(
        self,
        limits: NamespaceLimits,
        clock: Clock,
        *,
        store_count: int,
        unavailable_reason: Callable[[int], str | None],
        publish: Callable[[Change], Awaitable[None]],
    ) -> None:
        """Create a service that places new entities in the first `store_count` stores.

        `unavailable_reason` returns why a store is unavailable, or None. `publish` sends a change to all replicas.
        """
        self.created_ms = 0
        self.entities: dict[str, CatalogueEntry] = {}
        """Entries by canonical path, in order of creation."""
        self.deleted_entities: dict[int, CleanupRow] = {}
        """Deleted entities that may still have records in a store, by entity id."""
        self._limits = limits
        self._clock = clock
        self._store_count = store_count
        self._unavailable_reason = unavailable_reason
        self._publish = publish
        self._catalogue: Catalogue
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="catalogue")
        """The thread for SQLite calls, which block on the disk."""
        self._is_closed = False
        self._change_lock = asyncio.Lock()
        self._fragments_per_store: Counter[int] = Counter()
        """The number of fragments in each store."""
        self._partitioned_count = 0
        self._stores_to_clean: dict[int, set[int]] = {}
        """Stores that may still hold records of a deleted entity, by entity id."""

    async def open(self, open_catalogue: Callable[[], Catalogue], store_count: int) -> None:
        """Open and read the catalogue.

        `store_count` is the number of existing stores. Raise StoreUnavailable if an entity has a fragment in another
        store.
        """
        self._catalogue = await self._run_in_thread(open_catalogue)
        rows = await self._run_in_thread(self._catalogue.entities)
        _check_store_numbers(rows, store_count)
        self.created_ms = min((row.created_ms for row in rows), default=self._clock.wall_ms())
        by_id = {row.id: self._add_entry(row) for row in rows}  # in order of creation: topics before subscriptions
        for rule in await self._run_in_thread(self._catalogue.rules):
            by_id[rule.entity_id].rules[paths.canonical_key(rule.description.name)] = rule.description
        self._add_deleted(await self._run_in_thread(self._catalogue.pending_cleanups))
        self._warn_of_weak_secrets()

    def _warn_of_weak_secrets(self) -> None:
        """Log entities whose keys have short secrets, because early versions accepted secrets of any length."""
        for entry in self.entities.values():
            weak = [rule.name for rule in getattr(entry.description, "authorization_rules", ()) if rule.is_weak]
            if weak:
                log.warning(
                    "keys of an entity have secrets of fewer than %d characters, which can be guessed: change them",
                    MIN_SECRET_CHARACTERS,
                    extra={"entity": entry.path, "keys": ", ".join(weak)},
                )

    async def close(self) -> None:
        """Wait for the change in progress, then close the catalogue file."""
        async with self._change_lock:
            await self._run_in_thread(self._catalogue.close)
            self._is_closed = True
        self._executor.shutdown()

    def find(self, path: str) -> CatalogueEntry:
        """Return the entity at `path`, which is case-insensitive. Raise EntityNotFound if there is none."""
        entry = self.entities.get(paths.canonical_key(path))
        if entry is None:
            raise EntityNotFound(path)
        return entry

    # --- entities -----------------------------------------------------------------------------------------------------

    async def create(self, path: str, description: Description) -> EntityRow:
        """Create a queue or a topic, and return its row."""
        return await self._create(lambda: paths.check_entity_path(path), description)

    async def create_subscription(
        self, topic: str, name: str, description: SubscriptionDescription, rule: RuleDescription | None = None
    ) -> EntityRow:
        """Create a subscription with `rule` (default: a rule that matches every message), and return its row."""
        rule = rule or RuleDescription(name=DEFAULT_RULE)
        rule = msgspec.structs.replace(rule, created_ms=self._clock.wall_ms())
        self._check_rule_cost(rule)

        def path() -> str:
            return paths.subscription_path(self._find_topic(topic).path, paths.check_subscription_name(name))

        return await self._create(path, description, rule)

    async def _create(
        self, make_path: Callable[[], str], description: Description, *rules: RuleDescription
    ) -> EntityRow:
        async with self._change_lock:
            path = make_path()
            self._check_quotas(path, description)
            stores = self._choose_stores(path, description)
            self._check_forward_targets(path, description)
            for rule in rules:
                topic = self._find_topic(paths.split_subscription(path)[0])
                self._check_action_count(topic, rule)
                await self._check_topic_cost(topic, rule, self._check_rule_cost(rule))
            kind, now_ms = KIND_OF_DESCRIPTION[type(description)], self._clock.wall_ms()
            row = await self._run_in_thread(self._catalogue.create, kind, path, description, stores, now_ms, rules)
            entry = self._add_entry(row)
            entry.rules = {paths.canonical_key(rule.name): rule for rule in rules}
            await self._publish(EntityCreated(row, rules))
        return row

    async def update(self, path: str, description: Description) -> EntityRow:
        """Replace the description of an entity, and return its row."""
        async with self._change_lock:
            entry = self.find(path)
            self._check_stores_available(entry)
            if type(entry.description) is not type(description):
                raise InvalidArgument(f"'{entry.path}' is a {entry.row.kind}: its kind cannot be changed")
            for field, name in FIXED_AT_CREATION.items():
                if getattr(entry.description, field, None) != getattr(description, field, None):
                    raise InvalidArgument(f"{name} of '{entry.path}' cannot be changed: it is set at creation")
            self._check_forward_targets(entry.path, description)
            now_ms = self._clock.wall_ms()
            entry.row = await self._run_in_thread(
                self._catalogue.update, paths.canonical_key(path), description, now_ms
            )
            await self._publish(EntityUpdated(entry.row))
        return entry.row

    async def delete(self, path: str) -> EntityRow:
        """Delete an entity, and return its row. A topic's subscriptions are deleted with it."""
        async with self._change_lock:
            entry = self.find(path)
            self._check_stores_available(entry)
            keys = [entry.row.path_key, *entry.subscriptions]
            is_subscription = entry.row.kind == SUBSCRIPTION
            topic_id = self._find_topic(paths.split_subscription(entry.path)[0]).row.id if is_subscription else None
            deleted = await self._run_in_thread(lambda: self._catalogue.delete(*keys, topic_id=topic_id))
            for key in keys:
                self._remove_entry(key)
            self._add_deleted(deleted)
            await self._publish(EntityDeleted(entry.path, tuple(deleted)))
        return entry.row

    async def cleanup_finished(self, entity_id: int, stores: Iterable[int]) -> None:
        """Record that a deleted entity's records are removed from `stores`; after the last store, forget the entity."""
        left = self._stores_to_clean.get(entity_id)
        if left is None:
            return
        left.difference_update(stores)
        if not left:
            del self._stores_to_clean[entity_id], self.deleted_entities[entity_id]
            await self._run_in_thread(self._catalogue.finish_cleanup, entity_id)

    # --- rules --------------------------------------------------------------------------------------------------------

    async def create_rule(self, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Add a rule to a subscription."""
        rule = msgspec.structs.replace(rule, created_ms=self._clock.wall_ms())
        cost = self._check_rule_cost(rule)
        async with self._change_lock:
            entry = self._find_subscription(subscription)
            if paths.canonical_key(rule.name) in entry.rules:
                raise EntityAlreadyExists(f"The rule '{rule.name}' of '{entry.path}' already exists.")
            limit = self._limits.max_rules
            if len(entry.rules) >= limit:
                raise QuotaExceeded(f"'{entry.path}' has {limit} rules, its limit: delete one first")
            self._check_action_count(self._find_topic_of(entry), rule)
            await self._check_topic_cost(self._find_topic_of(entry), rule, cost)
            await self._run_in_thread(self._catalogue.add_rule, entry.row.id, rule)
            await self._publish_rule(entry, rule)
        return rule

    async def update_rule(self, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Replace the rule with the same name. The spelling of the name and the creation time do not change."""
        cost = self._check_rule_cost(rule)
        async with self._change_lock:
            entry = self._find_subscription(subscription)
            before = self._find_rule(entry, rule.name)
            if before.action is None:
                self._check_action_count(self._find_topic_of(entry), rule)
            await self._check_topic_cost(
                self._find_topic_of(entry), rule, cost, replaced_cost=self._cached_cost(entry, before)
            )
            rule = msgspec.structs.replace(rule, name=before.name, created_ms=before.created_ms)
            await self._run_in_thread(self._catalogue.update_rule, entry.row.id, rule)
            await self._publish_rule(entry, rule)
        return rule

    async def delete_rule(self, subscription: str, name: str) -> None:
        """Delete a rule of a subscription."""
        async with self._change_lock:
            entry = self._find_subscription(subscription)
            self._find_rule(entry, name)
            await self._run_in_thread(self._catalogue.delete_rule, entry.row.id, name)
            del entry.rules[paths.canonical_key(name)]
            entry.rule_costs.pop(paths.canonical_key(name), None)
            await self._publish(RuleDeleted(entry.path, name))

    async def _publish_rule(self, subscription: CatalogueEntry, rule: RuleDescription) -> None:
        subscription.rules[paths.canonical_key(rule.name)] = rule
        await self._publish(RulePut(subscription.path, rule))

    def _find_rule(self, subscription: CatalogueEntry, name: str) -> RuleDescription:
        rule = subscription.rules.get(paths.canonical_key(name))
        if rule is None:
            raise EntityNotFound(f"{subscription.path}/Rules/{name}")
        return rule

    # --- checks -------------------------------------------------------------------------------------------------------

    def _check_quotas(self, path: str, description: Description) -> None:
        if paths.canonical_key(path) in self.entities:
            raise EntityAlreadyExists(f"The messaging entity '{path}' already exists.")
        limit = self._limits.max_entities
        if len(self.entities) >= limit:
            raise QuotaExceeded(f"the namespace has {limit} entities, its limit: delete one first")
        limit = self._limits.max_partitioned
        if getattr(description, "enable_partitioning", False) and self._partitioned_count >= limit:
            raise QuotaExceeded(f"the namespace has {limit} partitioned entities, its limit: delete one first")

    def _check_rule_cost(self, rule: RuleDescription) -> int:
        """Return the cost of a rule.

        Raise InvalidArgument if the rule is not valid, QuotaExceeded if it costs more than the limit for one rule.
        """
        cost, limit = compile_rule(rule).total_cost, self._limits.max_rule_cost
        if cost > limit:
            raise QuotaExceeded(
                f"the rule {rule.name!r:.60} takes up to {cost:,} units of work for a message, and a rule may take "
                f"{limit:,}: use fewer patterns with wildcards between their characters, or several rules"
            )
        return cost

    async def _check_topic_cost(
        self, topic: CatalogueEntry, rule: RuleDescription, cost: int, replaced_cost: int = 0
    ) -> None:
        """Raise QuotaExceeded if a topic's rules would cost too much once `rule` is added or replaces another rule.

        If a topic already exceeds the limit, because the limit was lowered, a rule may only be replaced by a cheaper
        rule.
        """
        total = 0
        for key in topic.subscriptions:
            subscription = self.entities[key]
            for existing in subscription.rules.values():
                if not _has_cached_cost(subscription, existing):
                    await asyncio.sleep(0)  # compiling many rules after startup must not block the event loop
                total += self._cached_cost(subscription, existing)
        limit = self._limits.max_topic_rule_cost
        if cost > replaced_cost and total - replaced_cost + cost > limit:
            raise QuotaExceeded(
                f"the rules of '{topic.path}' take up to {total:,} units of work for a message, the rule "
                f"{rule.name!r:.60} takes {cost:,}, and the limit is {limit:,}: delete or simplify rules first"
            )

    def _check_action_count(self, topic: CatalogueEntry, rule: RuleDescription) -> None:
        """Raise QuotaExceeded if `rule` would give a topic too many rules with an action."""
        if rule.action is None:
            return
        subscriptions = [self.entities[key] for key in topic.subscriptions]
        count = sum(existing.action is not None for entry in subscriptions for existing in entry.rules.values())
        limit = self._limits.max_topic_actions
        if count >= limit:
            raise QuotaExceeded(
                f"'{topic.path}' has {count:,} rules with an action, and a topic may have {limit:,} "
                f"(max_topic_actions): delete one before the rule {rule.name!r:.60} gets an action"
            )

    def _cached_cost(self, subscription: CatalogueEntry, rule: RuleDescription) -> int:
        key = paths.canonical_key(rule.name)
        if not _has_cached_cost(subscription, rule):
            subscription.rule_costs[key] = (rule, compile_rule(rule).total_cost)
        return subscription.rule_costs[key][1]

    def _find_topic_of(self, subscription: CatalogueEntry) -> CatalogueEntry:
        return self._find_topic(paths.split_subscription(subscription.path)[0])

    def _check_forward_targets(self, path: str, description: Description) -> None:
        """Raise an error if a forwarding target does not exist or is a subscription."""
        for name, field in (("ForwardTo", "forward_to"), ("ForwardDeadLetteredMessagesTo", "forward_dead_lettered_to")):
            target = getattr(description, field, None)
            if target is None:
                continue
            try:
                destination = self.find(target)
            except EntityNotFound as error:
                raise InvalidArgument(f"{name} of '{path}' is '{target}': {error}") from None
            if destination.row.kind == SUBSCRIPTION:
                raise NotAllowed(f"cannot forward to the subscription '{destination.path}': forward to its topic")

    def _check_stores_available(self, entry: CatalogueEntry) -> None:
        """Raise StoreUnavailable if a store of a partitioned entity is down, because its fragments change together."""
        for store in entry.row.fragments if entry.is_partitioned else ():
            if self._unavailable_reason(store) is not None:
                raise StoreUnavailable(
                    f"store {store} is unavailable and holds a fragment of '{entry.path}': try again later"
                )

    def _choose_stores(self, path: str, description: Description) -> Sequence[int]:
        """Return the store of each fragment of a new entity; a subscription uses the stores of its topic."""
        if isinstance(description, SubscriptionDescription):
            topic = self._find_topic(paths.split_subscription(path)[0])
            self._check_stores_available(topic)
            return topic.row.fragments
        if not description.enable_partitioning:
            return [self._choose_store()]
        for number in range(self._store_count):
            if self._unavailable_reason(number) is not None:
                raise StoreUnavailable(
                    f"store {number} is unavailable and would hold a fragment of '{path}': try again later"
                )
        return [number % self._store_count for number in range(FRAGMENT_COUNT)]

    def _choose_store(self) -> int:
        """Return the available store with the fewest fragments; among equals, the store with the lowest number."""
        available = [number for number in range(self._store_count) if self._unavailable_reason(number) is None]
        if not available:
            raise StoreUnavailable("no store is available: try again later")
        return min(available, key=lambda number: (self._fragments_per_store[number], number))

    # --- inside -------------------------------------------------------------------------------------------------------

    def _find_topic(self, path: str) -> CatalogueEntry:
        topic = self.find(path)
        if topic.row.kind != TOPIC:
            raise EntityNotFound(path)
        return topic

    def _find_subscription(self, path: str) -> CatalogueEntry:
        subscription = self.find(path)
        if subscription.row.kind != SUBSCRIPTION:
            raise EntityNotFound(path)
        return subscription

    def _add_entry(self, row: EntityRow) -> CatalogueEntry:
        entry = self.entities[row.path_key] = CatalogueEntry(row)
        if row.kind == SUBSCRIPTION:
            self._find_topic(paths.split_subscription(row.path)[0]).subscriptions[row.path_key] = None
        elif entry.is_partitioned:
            self._partitioned_count += 1
        self._fragments_per_store.update(row.fragments)
        return entry

    def _remove_entry(self, key: str) -> None:
        entry = self.entities.pop(key)
        if entry.row.kind == SUBSCRIPTION:
            topic = self.entities.get(paths.split_subscription(key)[0])
            if topic is not None:  # the topic's entry is removed first when a whole topic is deleted
                del topic.subscriptions[key]
        elif entry.is_partitioned:
            self._partitioned_count -= 1
        self._fragments_per_store.subtract(entry.row.fragments)

    def _add_deleted(self, rows: Iterable[CleanupRow]) -> None:
        for row in rows:
            self.deleted_entities[row.id] = row
            self._stores_to_clean[row.id] = set(row.fragments)

    async def _run_in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        if self._is_closed:
            raise StoreUnavailable("the server is stopping: nothing was changed")
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)


def _check_store_numbers(rows: Sequence[EntityRow], store_count: int) -> None:
    for row in rows:
        if max(row.fragments) >= store_count:
            raise StoreUnavailable(
                f"'{row.path}' is in store {max(row.fragments)}, but only {store_count} exist: was stores.json lost?"
            )


def _has_cached_cost(subscription: CatalogueEntry, rule: RuleDescription) -> bool:
    """Return whether the cost of this very rule is cached, not the cost of an earlier rule with the same name."""
    cached = subscription.rule_costs.get(paths.canonical_key(rule.name))
    return cached is not None and cached[0] is rule
