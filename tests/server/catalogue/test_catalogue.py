"""The catalogue keeps entities through restarts and failures, and never gives an id twice."""

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


def reopened(catalogue: Catalogue, file: Path) -> list[EntityRow]:
    """What another start would find."""
    catalogue.close()
    again = Catalogue(file)
    rows = again.entities()
    again.close()
    return rows


def tamper(file: Path, statement: str) -> None:
    database = sqlite3.connect(file)
    database.execute(statement)
    database.commit()
    database.close()


def test_an_entity_is_found_after_a_restart_as_it_was_created(catalogue: Catalogue, file: Path) -> None:
    one = catalogue.create(QUEUE, "Contoso/x-servicebus-transfer/0", PARKING, [2], 1000)
    two = catalogue.create(QUEUE, "orders", QueueDescription(enable_partitioning=True), range(4), 2000)
    assert one == EntityRow(
        id=1,
        kind="queue",
        path="Contoso/x-servicebus-transfer/0",
        description=PARKING,
        created_ms=1000,
        updated_ms=1000,
        fragments=(2,),
    )
    assert one.path_key == "contoso/x-servicebus-transfer/0"
    assert two.fragments == (0, 1, 2, 3)
    assert catalogue.entities() == [one, two]
    assert reopened(catalogue, file) == [one, two]


def test_a_name_is_taken_in_every_spelling(catalogue: Catalogue) -> None:
    orders = catalogue.create(QUEUE, "orders", PLAIN, [0], 1000)
    with pytest.raises(EntityAlreadyExists, match=r"^The messaging entity 'ORDERS' already exists\.$"):
        catalogue.create(QUEUE, "ORDERS", PARKING, [1], 2000)
    assert catalogue.entities() == [orders]


def test_an_update_changes_the_description_and_its_time_only(catalogue: Catalogue, file: Path) -> None:
    before = catalogue.create(QUEUE, "Orders", PLAIN, [3], 1000)
    after = catalogue.update("orders", PARKING, 5000)
    assert (after.description, after.updated_ms) == (PARKING, 5000)
    assert (after.id, after.path, after.created_ms, after.fragments) == (before.id, "Orders", 1000, (3,))
    assert reopened(catalogue, file) == [after]


def test_what_is_not_there_cannot_be_updated_or_deleted(catalogue: Catalogue) -> None:
    with pytest.raises(EntityNotFound):
        catalogue.update("orders", PLAIN, 1)
    with pytest.raises(EntityNotFound):
        catalogue.delete("orders")
    assert catalogue.pending_cleanups() == []


def test_a_deleted_entity_is_doomed_until_it_is_buried(catalogue: Catalogue) -> None:
    one = catalogue.create(QUEUE, "one", PLAIN, [0, 1], 1000)
    two = catalogue.create(QUEUE, "two", PLAIN, [2], 1000)
    assert catalogue.delete("one") == [CleanupRow(id=one.id, fragments=(0, 1))]
    assert catalogue.entities() == [two]
    assert catalogue.pending_cleanups() == [CleanupRow(id=one.id, fragments=(0, 1))]
    catalogue.finish_cleanup(one.id)
    catalogue.finish_cleanup(one.id)
    assert catalogue.pending_cleanups() == []


def test_a_topic_goes_with_its_subscriptions_and_their_rules(catalogue: Catalogue) -> None:
    topic = catalogue.create(TOPIC, "news", TopicDescription(), [3], 1000)
    rule = RuleDescription(name="$Default")
    one = catalogue.create(SUBSCRIPTION, "news/Subscriptions/one", SubscriptionDescription(), [3], 1000, [rule])
    doomed = catalogue.delete("news", "news/subscriptions/one")
    assert [row.id for row in doomed] == [topic.id, one.id]
    assert (catalogue.entities(), catalogue.rules()) == ([], [])


def test_of_two_that_are_deleted_together_none_is_if_one_is_not_there(catalogue: Catalogue) -> None:
    one = catalogue.create(QUEUE, "one", PLAIN, [0], 1000)
    with pytest.raises(EntityNotFound):
        catalogue.delete("one", "two")
    assert (catalogue.entities(), catalogue.pending_cleanups()) == ([one], [])


def test_a_deleted_subscription_knows_its_topic(catalogue: Catalogue) -> None:
    topic = catalogue.create(TOPIC, "news", TopicDescription(), [3], 1000)
    one = catalogue.create(SUBSCRIPTION, "news/Subscriptions/one", SubscriptionDescription(), [3], 1000)
    catalogue.delete("news/subscriptions/one", topic_id=topic.id)
    assert catalogue.pending_cleanups() == [CleanupRow(id=one.id, fragments=(3,), topic_id=topic.id)]


def test_rules_are_kept_in_the_order_of_their_making_with_the_types_of_their_values(catalogue: Catalogue) -> None:
    filters: tuple[Filter, ...] = (
        SqlFilter(expression="a = @b", parameters={"@b": Value("long", "7")}),
        CorrelationFilter(label="x", properties={"n": Value("double", "1.5")}),
        FalseFilter(),
        TrueFilter(),
    )
    rules = [RuleDescription(name=f"Rule{number}", filter=one) for number, one in enumerate(filters)]
    rules[0] = msgspec.structs.replace(rules[0], action=SqlAction(expression="SET a = 1"))
    one = catalogue.create(SUBSCRIPTION, "news/Subscriptions/one", SubscriptionDescription(), [3], 1000, rules[:1])
    for rule in rules[1:]:
        catalogue.add_rule(one.id, rule)
    assert [row.description for row in catalogue.rules()] == rules
    with pytest.raises(EntityAlreadyExists, match="RULE1"):
        catalogue.add_rule(one.id, RuleDescription(name="RULE1"))
    changed = RuleDescription(name="rule0", filter=FalseFilter())
    catalogue.update_rule(one.id, changed)
    catalogue.delete_rule(one.id, "RULE2")
    assert [row.description for row in catalogue.rules()] == [changed, rules[1], rules[3]]


def test_an_id_is_never_given_twice(catalogue: Catalogue, file: Path) -> None:
    first = catalogue.create(QUEUE, "orders", PLAIN, [0], 1000)
    catalogue.delete("orders")
    catalogue.finish_cleanup(first.id)
    catalogue.close()
    again = Catalogue(file)
    assert again.create(QUEUE, "orders", PLAIN, [0], 2000).id > first.id
    again.close()


def test_a_delete_that_fails_half_way_has_not_happened(catalogue: Catalogue, file: Path) -> None:
    orders = catalogue.create(QUEUE, "orders", PLAIN, [0], 1000)
    tamper(file, "CREATE TRIGGER t BEFORE DELETE ON entities BEGIN SELECT RAISE(FAIL, 'disk I/O error'); END")
    with pytest.raises(StoreUnavailable, match=r"cannot be written: disk I/O error; nothing was changed"):
        catalogue.delete("orders")
    assert catalogue.entities() == [orders]
    assert catalogue.pending_cleanups() == []
    tamper(file, "DROP TRIGGER t")
    assert catalogue.delete("orders") == [CleanupRow(id=orders.id, fragments=(0,))], "it works again when the disk does"


def test_a_full_disk_refuses_a_change_and_keeps_the_rest(catalogue: Catalogue, file: Path) -> None:
    orders = catalogue.create(QUEUE, "orders", PLAIN, [0], 1000)
    catalogue._database.execute("PRAGMA max_page_count = 1")  # noqa: SLF001  # as SQLite sees a full disk
    large = [QueueDescription(user_metadata="x" * 1000)] * 1000

    def fill() -> None:
        for number, description in enumerate(large):
            catalogue.create(QUEUE, f"queue-{number}", description, [0], 1000)

    with pytest.raises(DiskFull, match=r"database or disk is full; nothing was changed\. Free space on that disk"):
        fill()
    kept = catalogue.entities()
    assert kept[0] == orders
    assert reopened(catalogue, file) == kept


def test_somebody_who_holds_the_file_makes_a_change_fail_and_not_hang(catalogue: Catalogue, file: Path) -> None:
    catalogue._database.execute("PRAGMA busy_timeout = 1")  # noqa: SLF001  # nobody waits in a test
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="database is locked; nothing was changed"):
        catalogue.create(QUEUE, "orders", PLAIN, [0], 1000)
    other.close()
    catalogue.create(QUEUE, "orders", PLAIN, [0], 1000)


def test_every_change_is_synced_with_its_directory(catalogue: Catalogue) -> None:
    database = catalogue._database  # noqa: SLF001  # what SQLite was told is what is claimed
    assert database.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert database.execute("PRAGMA synchronous").fetchone() == (3,), "EXTRA"


def test_the_file_is_whole_by_itself_and_for_its_owner_alone(catalogue: Catalogue, file: Path) -> None:
    catalogue.create(QUEUE, "orders", PLAIN, [0], 1000)
    assert os.listdir(file.parent) == ["catalogue.db"]  # noqa: PTH208  # names are enough
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_unknown_fields_of_a_description_are_ignored_and_missing_ones_have_their_default(
    catalogue: Catalogue, file: Path
) -> None:
    catalogue.create(QUEUE, "orders", PLAIN, [0], 1000)
    tamper(file, """UPDATE entities SET description = '{"max_size_mb": 2048, "colour": "blue"}'""")
    assert catalogue.entities()[0].description == QueueDescription(max_size_mb=2048)


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("UPDATE entities SET description = '{'", "describes 'orders' as no queue can be"),
        ("""UPDATE entities SET description = '{"max_size_mb": 7}'""", "max_size_mb is 7; it can be"),
        ("UPDATE entities SET kind = 'relay'", "describes 'orders' as no relay can be"),
        ("UPDATE entities SET fragments = '7'", "has no list of stores in '7'"),
    ],
)
def test_a_row_that_cannot_be_is_told_and_not_guessed(
    catalogue: Catalogue, file: Path, statement: str, reason: str
) -> None:
    catalogue.create(QUEUE, "orders", PLAIN, [0], 1000)
    tamper(file, statement)
    with pytest.raises(StoreUnavailable, match=reason):
        catalogue.entities()


def test_a_file_that_is_no_catalogue_is_told(file: Path, tmp_path: Path) -> None:
    file.write_text("not a database, though long enough to be taken for one " * 20)
    with pytest.raises(StoreUnavailable, match=r"catalogue\.db cannot be opened: file is not a database"):
        Catalogue(file)
    with pytest.raises(StoreUnavailable, match=r"cannot be opened: .*No such file"):
        Catalogue(tmp_path / "missing" / "catalogue.db")


def test_another_thread_may_make_the_calls(catalogue: Catalogue) -> None:
    made: list[EntityRow] = []
    thread = threading.Thread(target=lambda: made.append(catalogue.create(QUEUE, "orders", PLAIN, [0], 1000)))
    thread.start()
    thread.join()
    assert catalogue.entities() == made
