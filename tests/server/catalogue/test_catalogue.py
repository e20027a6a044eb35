"""The catalogue keeps entities through restarts and failures, and never reuses an id."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from typing import TYPE_CHECKING

import msgspec
import pytest

from twinbus.model.errors import DiskFull, EntityAlreadyExists, EntityNotFound, StoreUnavailable
from twinbus.model.queue import QueueDescription
from twinbus.model.rule import CorrelationFilter, FalseFilter, RuleDescription, SqlAction, SqlFilter, TrueFilter, Value
from twinbus.model.topic import SubscriptionDescription, TopicDescription
from twinbus.store.catalogue import QUEUE, SUBSCRIPTION, TOPIC, Catalogue, CleanupRow, EntityRow

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from twinbus.model.rule import Filter

PLAIN = QueueDescription()
PARKING = QueueDescription(max_size_mb=5120, forward_to="elsewhere", user_metadata="\u00e9\u4e2d\n")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "catalogue.db"


@pytest.fixture
def catalogue(file: Path) -> Iterator[Catalogue]:
    opened = Catalogue(file)
    yield opened
    opened.close()


def entities_after_restart(catalogue: Catalogue, file: Path) -> list[EntityRow]:
    """Return the entities that the next start would load."""
    catalogue.close()
    reopened_catalogue = Catalogue(file)
    rows = reopened_catalogue.entities()
    reopened_catalogue.close()
    return rows


def execute_sql(file: Path, statement: str) -> None:
    database = sqlite3.connect(file)
    database.execute(statement)
    database.commit()
    database.close()


def test_an_entity_is_the_same_after_a_restart(catalogue: Catalogue, file: Path) -> None:
    backlog = catalogue.create(QUEUE, "Contoso/x-servicebus-transfer/0", PARKING, [2], 1000)
    orders = catalogue.create(QUEUE, "orders", QueueDescription(enable_partitioning=True), range(4), 2000)
    assert backlog == EntityRow(
        id=1,
        kind="queue",
        path="Contoso/x-servicebus-transfer/0",
        description=PARKING,
        created_ms=1000,
        updated_ms=1000,
        fragments=(2,),
    )
    assert backlog.path_key == "contoso/x-servicebus-transfer/0"
    assert orders.fragments == (0, 1, 2, 3)
    assert catalogue.entities() == [backlog, orders]
    assert entities_after_restart(catalogue, file) == [backlog, orders]


def test_entity_names_are_case_insensitive(catalogue: Catalogue) -> None:
    orders = catalogue.create(QUEUE, "orders", PLAIN, [0], 1000)
    with pytest.raises(EntityAlreadyExists, match=r"^The messaging entity 'ORDERS' already exists\.$"):
        catalogue.create(QUEUE, "ORDERS", PARKING, [1], 2000)
    assert catalogue.entities() == [orders]


def test_an_update_changes_the_description_and_its_time_only(catalogue: Catalogue, file: Path) -> None:
    before = catalogue.create(QUEUE, "Orders", PLAIN, [3], 1000)
    after = catalogue.update("orders", PARKING, 5000)
    assert (after.description, after.updated_ms) == (PARKING, 5000)
    assert (after.id, after.path, after.created_ms, after.fragments) == (before.id, "Orders", 1000, (3,))
    assert entities_after_restart(catalogue, file) == [after]


def test_an_unknown_entity_cannot_be_updated_or_deleted(catalogue: Catalogue) -> None:
    with pytest.raises(EntityNotFound):
        catalogue.update("orders", PLAIN, 1)
    with pytest.raises(EntityNotFound):
        catalogue.delete("orders")
    assert catalogue.pending_cleanups() == []


def test_a_deleted_entity_has_a_pending_cleanup_until_the_cleanup_is_finished(catalogue: Catalogue) -> None:
    first = catalogue.create(QUEUE, "one", PLAIN, [0, 1], 1000)
    second = catalogue.create(QUEUE, "two", PLAIN, [2], 1000)
    assert catalogue.delete("one") == [CleanupRow(id=first.id, fragments=(0, 1))]
    assert catalogue.entities() == [second]
    assert catalogue.pending_cleanups() == [CleanupRow(id=first.id, fragments=(0, 1))]
    catalogue.finish_cleanup(first.id)
    catalogue.finish_cleanup(first.id)
    assert catalogue.pending_cleanups() == []


def test_a_topic_is_deleted_with_its_subscriptions_and_their_rules(catalogue: Catalogue) -> None:
    topic = catalogue.create(TOPIC, "news", TopicDescription(), [3], 1000)
    rule = RuleDescription(name="$Default")
    subscription = catalogue.create(
        SUBSCRIPTION, "news/Subscriptions/one", SubscriptionDescription(), [3], 1000, [rule]
    )
    cleanups = catalogue.delete("news", "news/subscriptions/one")
    assert [row.id for row in cleanups] == [topic.id, subscription.id]
    assert (catalogue.entities(), catalogue.rules()) == ([], [])


def test_deleting_two_entities_fails_as_a_whole_if_one_is_unknown(catalogue: Catalogue) -> None:
    existing = catalogue.create(QUEUE, "one", PLAIN, [0], 1000)
    with pytest.raises(EntityNotFound):
        catalogue.delete("one", "two")
    assert (catalogue.entities(), catalogue.pending_cleanups()) == ([existing], [])


def test_the_cleanup_of_a_subscription_names_its_topic(catalogue: Catalogue) -> None:
    topic = catalogue.create(TOPIC, "news", TopicDescription(), [3], 1000)
    subscription = catalogue.create(SUBSCRIPTION, "news/Subscriptions/one", SubscriptionDescription(), [3], 1000)
    catalogue.delete("news/subscriptions/one", topic_id=topic.id)
    assert catalogue.pending_cleanups() == [CleanupRow(id=subscription.id, fragments=(3,), topic_id=topic.id)]


def test_rules_are_kept_in_creation_order_with_the_types_of_their_values(catalogue: Catalogue) -> None:
    filters: tuple[Filter, ...] = (
        SqlFilter(expression="a = @b", parameters={"@b": Value("long", "7")}),
        CorrelationFilter(label="x", properties={"n": Value("double", "1.5")}),
        FalseFilter(),
        TrueFilter(),
    )
    rules = [RuleDescription(name=f"Rule{number}", filter=rule_filter) for number, rule_filter in enumerate(filters)]
    rules[0] = msgspec.structs.replace(rules[0], action=SqlAction(expression="SET a = 1"))
    subscription = catalogue.create(
        SUBSCRIPTION, "news/Subscriptions/one", SubscriptionDescription(), [3], 1000, rules[:1]
    )
    for rule in rules[1:]:
        catalogue.add_rule(subscription.id, rule)
    assert [row.description for row in catalogue.rules()] == rules
    with pytest.raises(EntityAlreadyExists, match="RULE1"):
        catalogue.add_rule(subscription.id, RuleDescription(name="RULE1"))
    changed = RuleDescription(name="rule0", filter=FalseFilter())
    catalogue.update_rule(subscription.id, changed)
    catalogue.delete_rule(subscription.id, "RULE2")
    assert [row.description for row in catalogue.rules()] == [changed, rules[1], rules[3]]


def test_an_id_is_never_reused(catalogue: Catalogue, file: Path) -> None:
    first = catalogue.create(QUEUE, "orders", PLAIN, [0], 1000)
    catalogue.delete("orders")
    catalogue.finish_cleanup(first.id)
    catalogue.close()
    reopened_catalogue = Catalogue(file)
    assert reopened_catalogue.create(QUEUE, "orders", PLAIN, [0], 2000).id > first.id
    reopened_catalogue.close()


def test_a_delete_that_fails_half_way_is_rolled_back(catalogue: Catalogue, file: Path) -> None:
    orders = catalogue.create(QUEUE, "orders", PLAIN, [0], 1000)
    execute_sql(file, "CREATE TRIGGER t BEFORE DELETE ON entities BEGIN SELECT RAISE(FAIL, 'disk I/O error'); END")
    with pytest.raises(StoreUnavailable, match=r"cannot be written: disk I/O error; nothing was changed"):
        catalogue.delete("orders")
    assert catalogue.entities() == [orders]
    assert catalogue.pending_cleanups() == []
    execute_sql(file, "DROP TRIGGER t")
    assert catalogue.delete("orders") == [CleanupRow(id=orders.id, fragments=(0,))], (
        "the delete works again once the disk does"
    )


def test_a_full_disk_refuses_a_change_and_keeps_the_rest(catalogue: Catalogue, file: Path) -> None:
    orders = catalogue.create(QUEUE, "orders", PLAIN, [0], 1000)
    catalogue._database.execute("PRAGMA max_page_count = 1")  # noqa: SLF001  # SQLite reports this as a full disk
    large = [QueueDescription(user_metadata="x" * 1000)] * 1000

    def fill() -> None:
        for number, description in enumerate(large):
            catalogue.create(QUEUE, f"queue-{number}", description, [0], 1000)

    with pytest.raises(DiskFull, match=r"database or disk is full; nothing was changed\. Free space on that disk"):
        fill()
    kept = catalogue.entities()
    assert kept[0] == orders
    assert entities_after_restart(catalogue, file) == kept


def test_a_change_fails_instead_of_hanging_if_the_database_is_locked(catalogue: Catalogue, file: Path) -> None:
    catalogue._database.execute("PRAGMA busy_timeout = 1")  # noqa: SLF001  # fail at once
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="database is locked; nothing was changed"):
        catalogue.create(QUEUE, "orders", PLAIN, [0], 1000)
    other.close()
    catalogue.create(QUEUE, "orders", PLAIN, [0], 1000)


def test_every_change_is_synced_with_its_journal_directory(catalogue: Catalogue) -> None:
    database = catalogue._database  # noqa: SLF001  # the settings of SQLite are what is tested
    assert database.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert database.execute("PRAGMA synchronous").fetchone() == (3,), "EXTRA"


def test_the_catalogue_is_one_file_that_only_its_owner_can_read(catalogue: Catalogue, file: Path) -> None:
    catalogue.create(QUEUE, "orders", PLAIN, [0], 1000)
    assert os.listdir(file.parent) == ["catalogue.db"]  # noqa: PTH208
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_unknown_fields_of_a_description_are_ignored_and_missing_ones_have_their_default(
    catalogue: Catalogue, file: Path
) -> None:
    catalogue.create(QUEUE, "orders", PLAIN, [0], 1000)
    execute_sql(file, """UPDATE entities SET description = '{"max_size_mb": 2048, "colour": "blue"}'""")
    assert catalogue.entities()[0].description == QueueDescription(max_size_mb=2048)


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("UPDATE entities SET description = '{'", "has an invalid description of 'orders' as a queue"),
        ("""UPDATE entities SET description = '{"max_size_mb": 7}'""", "max_size_mb is 7; it can be"),
        ("UPDATE entities SET kind = 'relay'", "has an invalid description of 'orders' as a relay"),
        ("UPDATE entities SET fragments = '7'", "has an invalid list of stores: '7'"),
    ],
)
def test_an_invalid_row_is_reported_as_an_error(catalogue: Catalogue, file: Path, statement: str, reason: str) -> None:
    catalogue.create(QUEUE, "orders", PLAIN, [0], 1000)
    execute_sql(file, statement)
    with pytest.raises(StoreUnavailable, match=reason):
        catalogue.entities()


def test_a_file_that_is_not_a_catalogue_is_refused(file: Path, tmp_path: Path) -> None:
    file.write_text("not a database, though long enough to be taken for one " * 20)
    with pytest.raises(StoreUnavailable, match=r"catalogue\.db cannot be opened: file is not a database"):
        Catalogue(file)
    with pytest.raises(StoreUnavailable, match=r"cannot be opened: .*No such file"):
        Catalogue(tmp_path / "missing" / "catalogue.db")


def test_the_catalogue_can_be_used_from_another_thread(catalogue: Catalogue) -> None:
    created: list[EntityRow] = []
    thread = threading.Thread(target=lambda: created.append(catalogue.create(QUEUE, "orders", PLAIN, [0], 1000)))
    thread.start()
    thread.join()
    assert catalogue.entities() == created
