"""A token from any client with a key is accepted for its scope, until it expires."""

from __future__ import annotations

import base64
import hashlib
import hmac
from urllib.parse import quote

import pytest
from azure.servicebus._base_handler import ServiceBusSharedKeyCredential
from azure.servicebus._pyamqp.utils import generate_sas_token
from hypothesis import given
from hypothesis import strategies as st

from twinbus.model.errors import Unauthorized
from twinbus.model.signature import make_token
from twinbus.server.auth.keys import ALL_RIGHTS, Key, KeyRing, Right
from twinbus.server.auth.sas import MAX_TOKEN_CHARACTERS, Token, verify

SECRET = "c2VjcmV0/c2VjcmV0+c2VjcmV0"
OTHER_SECRET = "b3RoZXI="
NOW_S = 1_800_000_000
LATER_S = NOW_S + 3600
ROOT = Key("Root", SECRET)
SENDER = Key("send only", "sender-secret", rights=frozenset({Right.SEND}))
KEYS = KeyRing([ROOT, SENDER, Key("rotated", "new", "old"), Key("a+b", "plus")])


def sdk_token(uri: str, name: str, secret: str) -> str:
    token: str = generate_sas_token(uri, name, secret, LATER_S)  # type: ignore[no-untyped-call]
    return token


def token_for(uri: str, *, expires_s: int = LATER_S) -> str:
    return make_token(uri, ROOT.name, SECRET, expires_s)


def javascript_http_token(url: str, *, expires_s: int = LATER_S) -> str:
    """Return a token as @azure/service-bus makes it: all in lower case, with the parameters in another order."""
    resource = quote(url.lower(), safe="!~*'()").lower()
    digest = hmac.digest(SECRET.encode(), f"{resource}\n{expires_s}".encode(), hashlib.sha256)
    signature = quote(base64.b64encode(digest).decode(), safe="")
    return f"SharedAccessSignature sig={signature}&se={expires_s}&skn={ROOT.name}&sr={resource}"


@pytest.mark.parametrize("name", ["Root", "send only", "a+b"])
@pytest.mark.parametrize("uri", ["sb://localhost:7000/Orders/0", "https://localhost:5443", "sb://h/a b~c"])
def test_a_token_of_the_python_sdk_is_accepted(name: str, uri: str) -> None:
    key = KEYS.find(name)
    assert key is not None
    grant = verify(sdk_token(uri, name, key.primary), uri, KEYS, NOW_S)
    assert grant.key_name == name
    assert grant.expires_s == LATER_S


def test_a_token_of_the_sdks_credential_is_accepted() -> None:
    token = ServiceBusSharedKeyCredential(ROOT.name, SECRET).get_token("sb://localhost:7000/q")
    assert isinstance(token.token, str)
    assert verify(token.token, "sb://localhost:7000/q", KEYS, token.expires_on - 10).allows(Right.SEND, "q")


def test_make_token_returns_the_same_token_as_the_python_sdk() -> None:
    uri = "sb://contoso.example:5672/contoso/x-servicebus-transfer/0"
    assert make_token(uri, "Root", SECRET, LATER_S) == sdk_token(uri, "Root", SECRET)


def test_a_token_of_the_javascript_sdk_for_a_request_is_accepted() -> None:
    url = "https://localhost:5443/contoso%2FOrders?api-version=2021-05&$skip=0"
    grant = verify(javascript_http_token(url), "/contoso/Orders", KEYS, NOW_S)
    assert grant.scope == "contoso/orders"
    namespace = verify(javascript_http_token("https://localhost:5443?api-version=2021-05"), "/", KEYS, NOW_S)
    assert namespace.scope == ""


@pytest.mark.parametrize(
    ("scope", "path", "is_covered"),
    [
        ("sb://localhost:5672/orders", "orders", True),
        ("sb://localhost:5672/orders", "ORDERS", True),
        ("SB://OTHER-HOST/Orders/", "orders", True),
        ("sb://localhost/orders", "orders/$management", True),
        ("sb://localhost/orders", "orders/$DeadLetterQueue", True),
        ("sb://localhost/orders", "orders/$DeadLetterQueue/$management", True),
        ("sb://localhost/topic", "topic/Subscriptions/all", True),
        ("sb://localhost/orders", "amqps://localhost:7000/orders", True),
        ("sb://localhost/", "orders", True),
        ("sb://localhost", "", True),
        ("sb://localhost/orders", "orders2", False),
        ("sb://localhost/orders", "order", False),
        ("sb://localhost/orders", "", False),
        ("sb://localhost/orders/$management", "orders", False),
        ("localhost/orders", "orders", False),
    ],
)
def test_a_token_covers_its_entity_and_the_paths_below_it(scope: str, path: str, is_covered: bool) -> None:  # noqa: FBT001
    grant = verify(token_for(scope), scope, KEYS, NOW_S)
    assert grant.allows(Right.LISTEN, path) is is_covered
    if is_covered:
        verify(token_for(scope), path, KEYS, NOW_S)
    else:
        with pytest.raises(Unauthorized, match=r"^the token is for '.*', not for '"):
            verify(token_for(scope), path, KEYS, NOW_S)


def test_a_grant_has_the_rights_of_its_key_and_manage_implies_the_others() -> None:
    sender = verify(make_token("sb://h/q", SENDER.name, SENDER.primary, LATER_S), "q", KEYS, NOW_S)
    assert [right for right in Right if sender.allows(right, "q")] == [Right.SEND]
    assert Key("k", "s", rights=frozenset({Right.MANAGE})).rights == ALL_RIGHTS


def test_both_secrets_of_a_key_are_valid() -> None:
    for secret in ("new", "old"):
        verify(make_token("sb://h/q", "rotated", secret, LATER_S), "q", KEYS, NOW_S)


def test_a_token_is_refused_from_the_second_in_which_it_expires() -> None:
    token = token_for("sb://h/q", expires_s=NOW_S)
    verify(token, "q", KEYS, NOW_S - 0.001)
    with pytest.raises(Unauthorized, match=r"^the token expired at 2027-01-15T08:00:00Z"):
        verify(token, "q", KEYS, NOW_S)


def test_a_token_made_with_another_key_is_refused() -> None:
    with pytest.raises(Unauthorized, match=r"^the signature does not match"):
        verify(make_token("sb://h/q", "Root", OTHER_SECRET, LATER_S), "q", KEYS, NOW_S)


def test_a_token_with_an_unknown_key_name_is_refused() -> None:
    with pytest.raises(Unauthorized, match=r"^the signature does not match"):
        verify(make_token("sb://h/q", "no one", SECRET, LATER_S), "q", KEYS, NOW_S)


def test_an_unknown_key_name_gets_the_same_error_and_costs_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    compare = hmac.compare_digest

    def counted(left: bytes, right: bytes) -> bool:
        compared.append(len(right))
        return compare(left, right)

    monkeypatch.setattr(hmac, "compare_digest", counted)
    results = []
    for name in ("Root", "rotated", "no one"):
        compared.clear()
        with pytest.raises(Unauthorized) as caught:
            verify(make_token("sb://h/q", name, OTHER_SECRET, LATER_S), "q", KEYS, NOW_S)
        results.append((str(caught.value), list(compared)))
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize(
    ("change", "to"),
    [
        (f"se={LATER_S}", f"se={LATER_S + 1}"),
        ("sr=sb%3A%2F%2Fh%2Fq", "sr=sb%3A%2F%2Fh"),
        ("%2F", "%2f"),
        ("sig=", "sig=A"),
    ],
)
def test_a_modified_token_is_refused(change: str, to: str) -> None:
    token = token_for("sb://h/q")
    assert change in token
    with pytest.raises(Unauthorized, match=r"^the signature does not match"):
        verify(token.replace(change, to, 1), "q", KEYS, NOW_S)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not a shared access signature"),
        ("Bearer abc", "is not a shared access signature"),
        ("SharedAccessSignature sr=x&sig=\u00e9&se=1&skn=k", "is not a shared access signature"),
        ("SharedAccessSignature ", "has no 'sr'"),
        ("SharedAccessSignature sr=&sig=x&se=1&skn=k", "has no 'sr'"),
        ("SharedAccessSignature sr=x&se=1&skn=k", "has no 'sig'"),
        ("SharedAccessSignature sr=x&sig=x&skn=k", "has no 'se'"),
        ("SharedAccessSignature sr=x&sig=x&se=1", "has no 'skn'"),
        ("SharedAccessSignature sr=x&sr=y&sig=x&se=1&skn=k", "has 'sr' twice"),
        ("SharedAccessSignature sr=x&sig=x&se=-1&skn=k", "'se' is not"),
        ("SharedAccessSignature sr=x&sig=x&se=1e9&skn=k", "'se' is not"),
        ("SharedAccessSignature sr=x&sig=x&se=1234567890123&skn=k", "'se' is not"),
        ("SharedAccessSignature sr=" + "x" * MAX_TOKEN_CHARACTERS, r"characters \(limit: "),
    ],
)
def test_a_malformed_token_is_refused_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(Unauthorized, match=reason):
        verify(text, "q", KEYS, NOW_S)


@given(
    st.text(max_size=200)
    | st.lists(
        st.sampled_from(["sr=%2F", "sig=%00", "se=1", "skn=Root", "skn=%25%32%35", "sig=%ff", "=", "%", "?#", "sr=//"])
    ).map(lambda parts: "SharedAccessSignature " + "&".join(parts))
)
def test_arbitrary_text_is_refused_as_unauthorized(text: str) -> None:
    with pytest.raises(Unauthorized):
        verify(text, "q", KEYS, NOW_S)


def test_neither_errors_nor_the_repr_show_key_or_signature() -> None:
    token = make_token("sb://h/q", "Root", OTHER_SECRET, LATER_S)
    parsed = Token.parse(token)
    with pytest.raises(Unauthorized) as caught:
        verify(token, "q", KEYS, NOW_S)
    for text in (str(caught.value), repr(caught.value), repr(parsed), repr(ROOT)):
        assert parsed.signature not in text
        assert SECRET not in text
        assert OTHER_SECRET not in text


def test_a_token_for_the_host_and_port_covers_the_namespace() -> None:
    token = token_for("localhost:5443")
    assert verify(token, "orders", KEYS, NOW_S, "LOCALHOST:5443").allows(Right.SEND, "orders")
    for host in ("", "localhost", "localhost:5444", "orders"):
        with pytest.raises(Unauthorized):
            verify(token, "orders", KEYS, NOW_S, host)


def test_a_host_with_the_name_of_an_entity_does_not_widen_a_token_for_the_entity() -> None:
    with pytest.raises(Unauthorized):
        verify(token_for("orders"), "invoices", KEYS, NOW_S, "orders")
