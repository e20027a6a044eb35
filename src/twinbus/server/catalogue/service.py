"""The keeper of the catalogue: what may be done to the entities of a namespace, done there first.

    keeper = Keeper(limits, clock, stores=4, trouble=trouble, publish=publish)
    row = await keeper.create("orders", QueueDescription())

Owns: the catalogue, what stands in it, and which change is allowed. One change comes after the other: it is checked,
written, and published to whoever has the entities; whoever asked for it hears of it when all of them have it. Knows
nothing of the broker: whether a store works is told by `trouble`. After a power cut the catalogue is right.
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
from twinbus.model.description import FRAGMENT_COUNT
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
FIXED_AT_CREATION: Final = {
    "enable_partitioning": "EnablePartitioning",
    "requires_session": "RequiresSession",
    "requires_duplicate_detection": "RequiresDuplicateDetection",
}
"""What is set when an entity is created, and never after."""


class CatalogueEntry:
    """An entity, as it stands in the catalogue."""

    def __init__(self, row: EntityRow) -> None:
        """Without rules."""
        self.row = row
        self.rules: dict[str, RuleDescription] = {}
        """Of a subscription, by the keys of their names, in the order of their making."""
        self.subscriptions: dict[str, None] = {}
        """Of a topic: the keys of their paths."""
        self.rule_costs: dict[str, tuple[RuleDescription, int]] = {}
        """What rules cost, by their keys, as far as that was of interest."""

    @property
    def path(self) -> str:
        """As it was spelled."""
        return self.row.path

    @property
    def description(self) -> Description:
        """What it is told to be."""
        return self.row.description

    @property
    def is_partitioned(self) -> bool:
        """It has several fragments."""
        return len(self.row.fragments) > 1

    def set_outage(self, outage: Outage | None) -> None:
        """An outage of it shows where it is served."""


class CatalogueService:
    """The catalogue, and who may change what in it."""

    def __init__(
        self,
        limits: NamespaceLimits,
        clock: Clock,
        *,
        store_count: int,
        unavailable_reason: Callable[[int], str | None],
        publish: Callable[[Change], Awaitable[None]],
    ) -> None:
        """New entities are spread over the first `stores` stores; `trouble` says why one does not work now."""
        self.created_ms = 0
        self.entities: dict[str, CatalogueEntry] = {}
        """By the keys of their paths, in the order of their making."""
        self.deleted_entities: dict[int, CleanupRow] = {}
        """Those that were deleted, and of which something may still be in a store."""
        self._limits = limits
        self._clock = clock
        self._store_count = store_count
        self._unavailable_reason = unavailable_reason
        self._publish = publish
        self._catalogue: Catalogue
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="catalogue")
        """SQLite waits for the disk, so it does so here."""
        self._is_closed = False
        self._change_lock = asyncio.Lock()
        self._fragments_per_store: Counter[int] = Counter()
        """Fragments in each store."""
        self._partitioned_count = 0
        self._stores_to_clean: dict[int, set[int]] = {}
        """The stores that something of a deleted entity may still be in."""

    async def open(self, open_catalogue: Callable[[], Catalogue], store_count: int) -> None:
        """Read all of it; `stores` is how many there are. StoreUnavailable."""
        self._catalogue = await self._run_in_thread(open_catalogue)
        rows = await self._run_in_thread(self._catalogue.entities)
        _check_store_numbers(rows, store_count)
        self.created_ms = min((row.created_ms for row in rows), default=self._clock.wall_ms())
        by_id = {row.id: self._add_entry(row) for row in rows}  # in the order of their making: a topic comes first
        for rule in await self._run_in_thread(self._catalogue.rules):
            by_id[rule.entity_id].rules[paths.canonical_key(rule.description.name)] = rule.description
        self._add_deleted(await self._run_in_thread(self._catalogue.pending_cleanups))
        self._warn_of_weak_secrets()

    def _warn_of_weak_secrets(self) -> None:
        """Versions before there was a minimum took secrets of one character."""
        for known in self.entities.values():
            weak = [rule.name for rule in getattr(known.description, "authorization_rules", ()) if rule.is_weak]
            if weak:
                log.warning(
                    "keys of an entity have secrets of fewer than %d characters, which can be guessed: change them",
                    MIN_SECRET_CHARACTERS,
                    extra={"entity": known.path, "keys": ", ".join(weak)},
                )

    async def close(self) -> None:
        """Finish what is being changed, and let go of the file."""
        async with self._change_lock:
            await self._run_in_thread(self._catalogue.close)
            self._is_closed = True
        self._executor.shutdown()

    def find(self, path: str) -> CatalogueEntry:
        """The entity of that path, in any spelling. EntityNotFound."""
        known = self.entities.get(paths.canonical_key(path))
        if known is None:
            raise EntityNotFound(path)
        return known

    # --- entities -----------------------------------------------------------------------------------------------------

    async def create(self, path: str, description: Description) -> EntityRow:
        """Make a queue or a topic."""
        return await self._create(lambda: paths.check_entity_path(path), description)

    async def create_subscription(
        self, topic: str, name: str, description: SubscriptionDescription, rule: RuleDescription | None = None
    ) -> EntityRow:
        """Make a subscription with one rule, or one that is true for every message."""
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
            known = self._add_entry(row)
            known.rules = {paths.canonical_key(rule.name): rule for rule in rules}
            await self._publish(EntityCreated(row, rules))
        return row

    async def update(self, path: str, description: Description) -> EntityRow:
        """Describe an entity anew."""
        async with self._change_lock:
            known = self.find(path)
            self._check_stores_available(known)
            if type(known.description) is not type(description):
                raise InvalidArgument(f"'{known.path}' is a {known.row.kind}, and stays one")
            for field, name in FIXED_AT_CREATION.items():
                if getattr(known.description, field, None) != getattr(description, field, None):
                    raise InvalidArgument(f"{name} of '{known.path}' cannot be changed: it is set at creation")
            self._check_forward_targets(known.path, description)
            now_ms = self._clock.wall_ms()
            known.row = await self._run_in_thread(
                self._catalogue.update, paths.canonical_key(path), description, now_ms
            )
            await self._publish(EntityUpdated(known.row))
        return known.row

    async def delete(self, path: str) -> EntityRow:
        """Delete an entity, a topic with its subscriptions."""
        async with self._change_lock:
            known = self.find(path)
            self._check_stores_available(known)
            keys = [known.row.path_key, *known.subscriptions]
            is_subscription = known.row.kind == SUBSCRIPTION
            topic_id = self._find_topic(paths.split_subscription(known.path)[0]).row.id if is_subscription else None
            doomed = await self._run_in_thread(lambda: self._catalogue.delete(*keys, topic_id=topic_id))
            for key in keys:
                self._remove_entry(key)
            self._add_deleted(doomed)
            await self._publish(EntityDeleted(known.path, tuple(doomed)))
        return known.row

    async def cleanup_finished(self, entity_id: int, stores: Iterable[int]) -> None:
        """Nothing of a deleted entity is left in these stores."""
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
            found = self._find_subscription(subscription)
            if paths.canonical_key(rule.name) in found.rules:
                raise EntityAlreadyExists(f"The rule '{rule.name}' of '{found.path}' already exists.")
            most = self._limits.max_rules
            if len(found.rules) >= most:
                raise QuotaExceeded(f"'{found.path}' has {most} rules, its limit: delete one first")
            self._check_action_count(self._find_topic_of(found), rule)
            await self._check_topic_cost(self._find_topic_of(found), rule, cost)
            await self._run_in_thread(self._catalogue.add_rule, found.row.id, rule)
            await self._publish_rule(found, rule)
        return rule

    async def update_rule(self, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Another rule takes the place of the one of the same name."""
        cost = self._check_rule_cost(rule)
        async with self._change_lock:
            found = self._find_subscription(subscription)
            before = self._find_rule(found, rule.name)
            if before.action is None:
                self._check_action_count(self._find_topic_of(found), rule)
            await self._check_topic_cost(
                self._find_topic_of(found), rule, cost, replaced_cost=self._cached_cost(found, before)
            )
            rule = msgspec.structs.replace(rule, name=before.name, created_ms=before.created_ms)
            await self._run_in_thread(self._catalogue.update_rule, found.row.id, rule)
            await self._publish_rule(found, rule)
        return rule

    async def delete_rule(self, subscription: str, name: str) -> None:
        """Delete a rule."""
        async with self._change_lock:
            found = self._find_subscription(subscription)
            self._find_rule(found, name)
            await self._run_in_thread(self._catalogue.delete_rule, found.row.id, name)
            del found.rules[paths.canonical_key(name)]
            found.rule_costs.pop(paths.canonical_key(name), None)
            await self._publish(RuleDeleted(found.path, name))

    async def _publish_rule(self, subscription: CatalogueEntry, rule: RuleDescription) -> None:
        subscription.rules[paths.canonical_key(rule.name)] = rule
        await self._publish(RulePut(subscription.path, rule))

    def _find_rule(self, subscription: CatalogueEntry, name: str) -> RuleDescription:
        rule = subscription.rules.get(paths.canonical_key(name))
        if rule is None:
            raise EntityNotFound(f"{subscription.path}/Rules/{name}")
        return rule

    # --- what is allowed ----------------------------------------------------------------------------------------------

    def _check_quotas(self, path: str, description: Description) -> None:
        if paths.canonical_key(path) in self.entities:
            raise EntityAlreadyExists(f"The messaging entity '{path}' already exists.")
        most = self._limits.max_entities
        if len(self.entities) >= most:
            raise QuotaExceeded(f"the namespace has {most} entities, its limit: delete one first")
        most = self._limits.max_partitioned
        if getattr(description, "enable_partitioning", False) and self._partitioned_count >= most:
            raise QuotaExceeded(f"the namespace has {most} partitioned entities, its limit: delete one first")

    def _check_rule_cost(self, rule: RuleDescription) -> int:
        """What a rule costs. InvalidArgument if it is none; QuotaExceeded if that is more than a rule may cost."""
        cost, most = compile_rule(rule).total_cost, self._limits.max_rule_cost
        if cost > most:
            raise QuotaExceeded(
                f"the rule {rule.name!r:.60} takes up to {cost:,} units of work for a message, and a rule may take "
                f"{most:,}: use fewer patterns with wildcards between their characters, or several rules"
            )
        return cost

    async def _check_topic_cost(
        self, topic: CatalogueEntry, rule: RuleDescription, cost: int, replaced_cost: int = 0
    ) -> None:
        """QuotaExceeded if the rules of a topic would cost too much with one more, or with one instead of another.

        What they cost together may be more already: then they may only come to cost less.
        """
        total = 0
        for key in topic.subscriptions:
            subscription = self.entities[key]
            for one in subscription.rules.values():
                if not _has_cached_cost(subscription, one):
                    await asyncio.sleep(0)  # after a start each rule is read once more: others are served meanwhile
                total += self._cached_cost(subscription, one)
        most = self._limits.max_topic_rule_cost
        if cost > replaced_cost and total - replaced_cost + cost > most:
            raise QuotaExceeded(
                f"the rules of '{topic.path}' take up to {total:,} units of work for a message, the rule "
                f"{rule.name!r:.60} takes {cost:,}, and together they may take {most:,}: delete or simplify rules first"
            )

    def _check_action_count(self, topic: CatalogueEntry, rule: RuleDescription) -> None:
        """QuotaExceeded if a topic would have too many rules with an action with one more."""
        if rule.action is None:
            return
        subscriptions = [self.entities[key] for key in topic.subscriptions]
        count = sum(one.action is not None for found in subscriptions for one in found.rules.values())
        most = self._limits.max_topic_actions
        if count >= most:
            raise QuotaExceeded(
                f"'{topic.path}' has {count:,} rules with an action, and a topic may have {most:,} "
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
        """What messages are forwarded to has to be there, and to be something that they can be sent to."""
        for name, field in (("ForwardTo", "forward_to"), ("ForwardDeadLetteredMessagesTo", "forward_dead_lettered_to")):
            target = getattr(description, field, None)
            if target is None:
                continue
            try:
                found = self.find(target)
            except EntityNotFound as error:
                raise InvalidArgument(f"{name} of '{path}' is '{target}': {error}") from None
            if found.row.kind == SUBSCRIPTION:
                raise NotAllowed(f"nothing can be sent to '{found.path}': a subscription is filled by its topic")

    def _check_stores_available(self, entry: CatalogueEntry) -> None:
        """StoreUnavailable while a store of a partitioned entity does not work: nothing is done to a part of it."""
        for store in entry.row.fragments if entry.is_partitioned else ():
            if self._unavailable_reason(store) is not None:
                raise StoreUnavailable(
                    f"store {store} does not work now, and a fragment of '{entry.path}' lies in it: try again later"
                )

    def _choose_stores(self, path: str, description: Description) -> Sequence[int]:
        """Where the fragments of a new entity are to lie: those of a subscription where its topic's do."""
        if isinstance(description, SubscriptionDescription):
            topic = self._find_topic(paths.split_subscription(path)[0])
            self._check_stores_available(topic)
            return topic.row.fragments
        if not description.enable_partitioning:
            return [self._choose_store()]
        for number in range(self._store_count):
            if self._unavailable_reason(number) is not None:
                raise StoreUnavailable(
                    f"store {number} does not work now, and a fragment of '{path}' would lie in it: try again later"
                )
        return [number % self._store_count for number in range(FRAGMENT_COUNT)]

    def _choose_store(self) -> int:
        """Of the stores that work the one with the fewest entities; of those that are equal, the first."""
        working = [number for number in range(self._store_count) if self._unavailable_reason(number) is None]
        if not working:
            raise StoreUnavailable("no store works now: nothing can be created")
        return min(working, key=lambda number: (self._fragments_per_store[number], number))

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
        known = self.entities[row.path_key] = CatalogueEntry(row)
        if row.kind == SUBSCRIPTION:
            self._find_topic(paths.split_subscription(row.path)[0]).subscriptions[row.path_key] = None
        elif known.is_partitioned:
            self._partitioned_count += 1
        self._fragments_per_store.update(row.fragments)
        return known

    def _remove_entry(self, key: str) -> None:
        known = self.entities.pop(key)
        if known.row.kind == SUBSCRIPTION:
            topic = self.entities.get(paths.split_subscription(key)[0])
            if topic is not None:  # else it goes with its topic
                del topic.subscriptions[key]
        elif known.is_partitioned:
            self._partitioned_count -= 1
        self._fragments_per_store.subtract(known.row.fragments)

    def _add_deleted(self, rows: Iterable[CleanupRow]) -> None:
        for row in rows:
            self.deleted_entities[row.id] = row
            self._stores_to_clean[row.id] = set(row.fragments)

    async def _run_in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        if self._is_closed:
            raise StoreUnavailable("the server stops: nothing was changed")
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)


def _check_store_numbers(rows: Sequence[EntityRow], store_count: int) -> None:
    for row in rows:
        if max(row.fragments) >= store_count:
            raise StoreUnavailable(
                f"'{row.path}' lies in store {max(row.fragments)}, and there are {store_count}: was stores.json lost?"
            )


def _has_cached_cost(subscription: CatalogueEntry, rule: RuleDescription) -> bool:
    """What a rule costs was of interest before, and the rule is still the same."""
    known = subscription.rule_costs.get(paths.canonical_key(rule.name))
    return known is not None and known[0] is rule
