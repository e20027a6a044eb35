"""The key of the emulator is good only where it was asked for, beside the server's own, and on loopback addresses."""

from __future__ import annotations

from pathlib import Path

import pytest

from twinbus.model.signature import make_token
from twinbus.server.auth.keys import ALL_RIGHTS, EMULATOR_SECRET, ROOT_KEY_NAME, Key, KeyRing
from twinbus.server.auth.sas import verify
from twinbus.server.config.settings import ConfigurationError, ServeSettings


def test_it_is_one_more_secret_of_the_root_key() -> None:
    ring = KeyRing([Key(ROOT_KEY_NAME, "own"), Key("other", "x")])
    assert ring.check_password(ROOT_KEY_NAME, EMULATOR_SECRET) is None
    with_it = ring.with_emulator_key()
    assert with_it.check_password(ROOT_KEY_NAME, EMULATOR_SECRET) == ALL_RIGHTS
    assert with_it.check_password(ROOT_KEY_NAME, "own") == ALL_RIGHTS
    assert with_it.root_key is not None
    assert with_it.root_key.primary == "own"
    assert with_it.check_password("other", "x")


def test_it_is_a_key_of_its_own_where_the_root_key_has_another_name() -> None:
    ring = KeyRing([Key("root", "own", "second")]).with_emulator_key()
    assert ring.check_password(ROOT_KEY_NAME, EMULATOR_SECRET) == ALL_RIGHTS
    assert ring.check_password("root", "second") == ALL_RIGHTS
    assert ring.root_key is not None
    assert ring.root_key.name == "root"


def test_no_secret_of_the_root_key_is_given_up_for_it() -> None:
    ring = KeyRing([Key(ROOT_KEY_NAME, "own", "second")]).with_emulator_key()
    for secret in ("own", "second", EMULATOR_SECRET):
        assert ring.check_password(ROOT_KEY_NAME, secret) == ALL_RIGHTS
        token = make_token("sb://h/q", ROOT_KEY_NAME, secret, 2_000_000_000)
        assert verify(token, "q", ring, 1_800_000_000).secret == secret


def test_no_other_key_takes_the_place_of_the_root_key() -> None:
    with pytest.raises(ConfigurationError, match="'root' is the name of a key in the data directory already"):
        KeyRing([Key("root", "own")]).with_keys([Key("root", "other")])


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost"])
def test_every_loopback_address_will_do(host: str) -> None:
    assert ServeSettings(name="contoso", data=Path("d"), host=host, emulator_key=True).emulator_key
