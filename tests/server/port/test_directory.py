"""The texts that direct a client to the right port."""

from __future__ import annotations

import pytest

from twinbus.server.port.detection import WireProtocol
from twinbus.server.port.directory import AMQP, AMQPS, HTTP, HTTPS, TLS, PortDirectory, Spoken

PORTS = {"amqp": 5672, "amqps": 5671, "http": 5300, "https": 5443}
EVERYTHING = ("amqp", "http")


def directory(*names: str, plaintext: tuple[str, ...] = EVERYTHING) -> PortDirectory:
    """Return a directory in which these ports are open (default: all)."""
    made = PortDirectory(plaintext=plaintext, has_tls=True)
    made.ports.update({name: PORTS[name] for name in names or PORTS})
    return made


def test_the_amqp_port_serves_every_protocol_and_each_other_port_serves_one() -> None:
    assert {name: directory().protocols(name) for name in PORTS} == {
        "amqp": (AMQP, HTTP, AMQPS, HTTPS),
        "amqps": (AMQPS,),
        "http": (HTTP,),
        "https": (HTTPS,),
    }


@pytest.mark.parametrize(
    ("plaintext", "served"),
    [((), (AMQPS, HTTPS)), (("amqp",), (AMQP, AMQPS, HTTPS)), (("http",), (HTTP, AMQPS, HTTPS))],
)
def test_the_amqp_port_serves_without_tls_only_what_plaintext_names(
    plaintext: tuple[str, ...], served: tuple[Spoken, ...]
) -> None:
    assert directory(plaintext=plaintext).protocols("amqp") == served


@pytest.mark.parametrize(
    ("open_ports", "name", "spoken", "text"),
    [
        (
            (),
            "amqps",
            AMQP,
            (
                "port 5671 serves AMQP over TLS, but the client sent AMQP without TLS: use AMQP without TLS on port "
                "5672 or AMQP over TLS on port 5671"
            ),
        ),
        (
            (),
            "http",
            TLS,
            (
                "port 5300 serves HTTP without TLS, but the client sent TLS: use AMQP over TLS on port 5671 or HTTP "
                "over TLS on port 5443"
            ),
        ),
        (
            ("amqp", "http"),
            "http",
            TLS,
            (
                "port 5300 serves HTTP without TLS, but the client sent TLS: use AMQP over TLS on port 5672 or HTTP "
                "over TLS on port 5672"
            ),
        ),
        (
            ("amqps",),
            "amqps",
            HTTPS,
            (
                "port 5671 serves AMQP over TLS, but the client sent HTTP over TLS: no port of the server serves HTTP "
                "over TLS"
            ),
        ),
        (
            (),
            "https",
            Spoken(WireProtocol.UNKNOWN, is_tls=False),
            "port 5443 serves HTTP over TLS, but the client sent an unknown protocol without TLS",
        ),
    ],
)
def test_a_refusal_names_the_ports_that_serve_what_the_client_needs(
    open_ports: tuple[str, ...], name: str, spoken: Spoken, text: str
) -> None:
    assert directory(*open_ports).refusal(name, spoken) == text


def test_a_refusal_on_the_amqp_port_names_the_option_that_allows_plaintext() -> None:
    ports = directory("amqp", "amqps", plaintext=("http",))
    assert ports.refusal("amqp", AMQP) == (
        "port 5672 serves AMQP only over TLS, because other machines can reach the server: use AMQP over TLS on port "
        "5671, or start the server with --plaintext amqp"
    )
