"""Keys are added, rotated and revoked by rules that leave no namespace without a manager by accident."""

from __future__ import annotations

import datetime as dt
import stat
from typing import TYPE_CHECKING

import pytest

from twinbus.server.auth import key_file
from twinbus.server.auth.key_file import KeyChangeRefused, KeyCommand, KeyRule
from twinbus.server.auth.keys import KeyRing, Right
from twinbus.server.config.settings import StartError

if TYPE_CHECKING:
    from pathlib import Path

NOW = dt.datetime(2026, 11, 17, 12, 0, 0, tzinfo=dt.UTC)
ROOT = KeyRule("Root", "c" * 44, "d" * 44)
SENDER = KeyRule("sender", "a" * 44, rights=("Send",))


def after(*rules: KeyRule, **order: object) -> dict[str, KeyRule]:
    changed = key_file.apply_command(rules, KeyCommand(**order), NOW)  # type: ignore[arg-type]  # as the test says
    return {rule.name: rule for rule in changed}


def test_rotating_moves_the_primary_to_the_secondary_and_makes_a_new_primary() -> None:
    rotated = after(ROOT, SENDER, do="rotate", name="Root")["Root"]
    assert rotated.secondary == ROOT.primary
    assert rotated.primary not in (ROOT.primary, ROOT.secondary)
    assert (len(rotated.primary), rotated.rights, rotated.changed) == (44, ROOT.rights, "2026-11-17T12:00:00Z")
    assert after(ROOT, SENDER, do="rotate", name="Root")["Root"].primary != rotated.primary


def test_rotating_the_secondary_leaves_the_primary_as_it_is() -> None:
    for rule in (ROOT, SENDER):
        rotated = after(rule, do="rotate", name=rule.name, secondary=True)[rule.name]
        assert rotated.primary == rule.primary
        assert rotated.secondary not in (rule.primary, rule.secondary, None)


def test_a_new_key_has_one_new_secret_and_the_rights_asked_for() -> None:
    for rights, expected in (
        (("Listen", "Send"), ("Send", "Listen")),
        (("Listen",), ("Listen",)),
        (("Manage",), ("Manage", "Send", "Listen")),
    ):
        added = after(ROOT, do="add", name="app", rights=rights)["app"]
        assert (added.rights, added.secondary, len(added.primary)) == (expected, None, 44)


def test_revoking_takes_all_of_a_key_or_its_secondary_secret() -> None:
    assert list(after(ROOT, SENDER, do="revoke", name="sender")) == ["Root"]
    less = after(ROOT, SENDER, do="revoke", name="Root", secondary=True)["Root"]
    assert (less.primary, less.secondary) == (ROOT.primary, None)


def test_the_last_key_that_manages_is_revoked_only_by_force() -> None:
    with pytest.raises(KeyChangeRefused, match=r"'Root' is the last one with Manage, .* or give --force"):
        after(ROOT, SENDER, do="revoke", name="Root")
    assert list(after(ROOT, SENDER, do="revoke", name="Root", force=True)) == ["sender"]
    boss = KeyRule("boss", "b" * 44)
    assert list(after(ROOT, boss, do="revoke", name="Root")) == ["boss"]


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ({"do": "rotate", "name": "nobody"}, "there is no key 'nobody'; the keys are: Root, sender"),
        ({"do": "revoke", "name": "sender", "secondary": True}, "key 'sender' has no secondary secret"),
        ({"do": "add", "name": "SENDER", "rights": ("Send",)}, "there is a key 'SENDER' already"),
        ({"do": "add", "name": "app", "rights": ("Fly",)}, "the rights of a key are Manage, Send and Listen"),
        ({"do": "add", "name": "app", "rights": ()}, "one or more of them, not none"),
        ({"do": "add", "name": "a;b", "rights": ("Send",)}, "'a;b' is no name of a key"),
    ],
)
def test_what_cannot_be_is_refused_and_says_why(order: dict[str, object], reason: str) -> None:
    with pytest.raises(KeyChangeRefused) as caught:
        after(ROOT, SENDER, **order)
    assert reason in str(caught.value)
    assert not any(secret in str(caught.value) for secret in (ROOT.primary, SENDER.primary))


def test_there_are_at_most_12_keys_as_in_service_bus() -> None:
    rules = [KeyRule(f"key-{number}", "x" * 44) for number in range(12)]
    with pytest.raises(KeyChangeRefused, match="there are 12 keys, and there can be 12"):
        after(*rules, do="add", name="one-more", rights=("Send",))


def test_what_is_written_is_read_again_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    key_file.write_rules(file, [ROOT, SENDER])
    assert key_file.read_rules(file) == (ROOT, SENDER)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    ring = KeyRing.load(file)
    assert ring.root_key is not None
    assert ring.root_key.name == "Root"
    assert ring.check_password("sender", SENDER.primary) == frozenset({Right.SEND})
    assert not any(secret in repr(ring.all_keys) + repr([ROOT, SENDER]) for secret in (ROOT.primary, SENDER.primary))


def test_a_file_of_an_earlier_version_is_read_and_one_with_a_name_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text('{"name": "Root", "primary": "new-new-new-new-new", "secondary": "old-old-old-old-old"}')
    file.chmod(0o600)
    (rule,) = key_file.read_rules(file)
    assert (rule.name, rule.rights, rule.changed) == ("Root", ("Manage", "Send", "Listen"), None)
    key_file.write_rules(file, [ROOT, ROOT])
    with pytest.raises(StartError, match="two keys are named 'Root'"):
        key_file.read_rules(file)
    key_file.write_rules(file, [])
    assert KeyRing.load(file).root_key is None
