"""Adding, rotating and revoking keys follows rules that never remove the last key with Manage by accident."""

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


def apply(*rules: KeyRule, **order: object) -> dict[str, KeyRule]:
    changed = key_file.apply_command(rules, KeyCommand(**order), NOW)  # type: ignore[arg-type]  # the test passes valid fields
    return {rule.name: rule for rule in changed}


def test_rotating_moves_the_primary_to_the_secondary_and_makes_a_new_primary() -> None:
    rotated = apply(ROOT, SENDER, do="rotate", name="Root")["Root"]
    assert rotated.secondary == ROOT.primary
    assert rotated.primary not in (ROOT.primary, ROOT.secondary)
    assert (len(rotated.primary), rotated.rights, rotated.changed) == (44, ROOT.rights, "2026-11-17T12:00:00Z")
    assert apply(ROOT, SENDER, do="rotate", name="Root")["Root"].primary != rotated.primary


def test_rotating_the_secondary_leaves_the_primary_as_it_is() -> None:
    for rule in (ROOT, SENDER):
        rotated = apply(rule, do="rotate", name=rule.name, secondary=True)[rule.name]
        assert rotated.primary == rule.primary
        assert rotated.secondary not in (rule.primary, rule.secondary, None)


def test_a_new_key_has_one_new_secret_and_the_requested_rights() -> None:
    for rights, expected in (
        (("Listen", "Send"), ("Send", "Listen")),
        (("Listen",), ("Listen",)),
        (("Manage",), ("Manage", "Send", "Listen")),
    ):
        added = apply(ROOT, do="add", name="app", rights=rights)["app"]
        assert (added.rights, added.secondary, len(added.primary)) == (expected, None, 44)


def test_revoking_removes_a_key_or_only_its_secondary_secret() -> None:
    assert list(apply(ROOT, SENDER, do="revoke", name="sender")) == ["Root"]
    reduced = apply(ROOT, SENDER, do="revoke", name="Root", secondary=True)["Root"]
    assert (reduced.primary, reduced.secondary) == (ROOT.primary, None)


def test_the_last_key_with_manage_is_revoked_only_with_force() -> None:
    with pytest.raises(KeyChangeRefused, match=r"'Root' is the last one with Manage, .* or use --force"):
        apply(ROOT, SENDER, do="revoke", name="Root")
    assert list(apply(ROOT, SENDER, do="revoke", name="Root", force=True)) == ["sender"]
    manager = KeyRule("boss", "b" * 44)
    assert list(apply(ROOT, manager, do="revoke", name="Root")) == ["boss"]


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ({"do": "rotate", "name": "nobody"}, "there is no key 'nobody'; the keys are: Root, sender"),
        ({"do": "revoke", "name": "sender", "secondary": True}, "key 'sender' has no secondary secret"),
        ({"do": "add", "name": "SENDER", "rights": ("Send",)}, "key 'SENDER' exists already"),
        (
            {"do": "add", "name": "app", "rights": ("Fly",)},
            "a key has one or more of the rights Manage, Send and Listen",
        ),
        ({"do": "add", "name": "app", "rights": ()}, "one or more of the rights Manage, Send and Listen, not none"),
        ({"do": "add", "name": "a;b", "rights": ("Send",)}, "'a;b' is not a valid key name"),
    ],
)
def test_an_invalid_change_is_refused_with_a_reason(order: dict[str, object], reason: str) -> None:
    with pytest.raises(KeyChangeRefused) as caught:
        apply(ROOT, SENDER, **order)
    assert reason in str(caught.value)
    assert not any(secret in str(caught.value) for secret in (ROOT.primary, SENDER.primary))


def test_there_are_at_most_12_keys_as_in_service_bus() -> None:
    rules = [KeyRule(f"key-{number}", "x" * 44) for number in range(12)]
    with pytest.raises(KeyChangeRefused, match=r"there are 12 keys \(limit: 12\)"):
        apply(*rules, do="add", name="one-more", rights=("Send",))


def test_written_rules_are_read_back_and_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    key_file.write_rules(file, [ROOT, SENDER])
    assert key_file.read_rules(file) == (ROOT, SENDER)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    ring = KeyRing.load(file)
    assert ring.root_key is not None
    assert ring.root_key.name == "Root"
    assert ring.check_password("sender", SENDER.primary) == frozenset({Right.SEND})
    assert not any(secret in repr(ring.all_keys) + repr([ROOT, SENDER]) for secret in (ROOT.primary, SENDER.primary))


def test_a_file_of_an_earlier_version_is_read_and_duplicate_names_are_refused(tmp_path: Path) -> None:
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
