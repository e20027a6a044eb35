"""SASL PLAIN credentials: encoding and decoding of name and password, and a repr that hides the password."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.amqp.codec.value_strategies import examples
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.sasl import Credentials, read_plain

words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


@examples(100)
@given(words, words)
def test_a_name_and_a_password_survive_a_round_trip(username: str, password: str) -> None:
    assert read_plain(Credentials.plain(username, password).initial_response) == (username, password)


def test_plain_credentials_have_the_bytes_of_rfc_4616() -> None:
    credentials = Credentials.plain("tim", "tanstaaftanstaaf")
    assert credentials.mechanism == "PLAIN"
    assert credentials.initial_response == b"\0tim\0tanstaaftanstaaf"
    assert read_plain(b"Ursel\0Kurt\0xipj3plmq") == ("Kurt", "xipj3plmq")


@pytest.mark.parametrize(("username", "password"), [("a\0b", "c"), ("a", "b\0c")])
def test_a_null_character_in_a_name_or_password_is_refused(username: str, password: str) -> None:
    with pytest.raises(ValueError, match="null character"):
        Credentials.plain(username, password)


@pytest.mark.parametrize(
    "response", [None, b"", b"\0", b"name\0password", b"\0a\0b\0c", b"\0\xff\0password", b"\0name\0\xff"]
)
def test_a_malformed_plain_response_is_refused(response: bytes | None) -> None:
    with pytest.raises(DecodeError, match="PLAIN"):
        read_plain(response)


def test_a_password_is_not_printed() -> None:
    assert "secret" not in repr(Credentials.plain("name", "secret"))
