"""Composites that cannot be encoded: EncodeError names the field whose value has no AMQP encoding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from twinbus.amqp.codec.performatives import Attach, Error, Open, Transfer
from twinbus.amqp.errors import EncodeError
from twinbus.amqp.terminus import Source

if TYPE_CHECKING:
    from twinbus.amqp.codec.composite import Composite

FAULTS: dict[str, tuple[Composite, str]] = {
    # name of the case: composite, field with the invalid value
    "a number for a string": (Open(container_id=5), "container_id"),  # type: ignore[arg-type]  # wrong on purpose
    "half a surrogate pair": (Open(container_id="\ud800"), "container_id"),
    "a ushort too large": (Open(container_id="a", channel_max=65_536), "channel_max"),
    "a uint below zero": (Open(container_id="a", max_frame_size=-1), "max_frame_size"),
    "a fraction": (Open(container_id="a", idle_time_out=1.5), "idle_time_out"),  # type: ignore[arg-type]
    "a number too long to print": (Open(container_id="a", idle_time_out=10**5000), "idle_time_out"),
    "a symbol beyond ASCII": (Error(condition="é"), "condition"),
    "one of many symbols beyond ASCII": (
        Open(container_id="a", offered_capabilities=("a", "é")),
        "offered_capabilities",
    ),
    "a value of no type": (Open(container_id="a", properties={"a": object()}), "properties"),
    "a list for a map": (Open(container_id="a", properties=["a"]), "properties"),  # type: ignore[arg-type]
    "a string for a number": (Transfer(handle="0"), "handle"),  # type: ignore[arg-type]
    "a string for a binary": (Transfer(handle=0, delivery_tag="tag"), "delivery_tag"),  # type: ignore[arg-type]
    "an object for a state": (Transfer(handle=0, state=object()), "state"),
    "a fault in a source": (Attach(name="a", handle=0, role=True, source=Source(timeout=-1)), "timeout"),
    "a mode too large": (Attach(name="a", handle=0, role=True, snd_settle_mode=256), "snd_settle_mode"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_encode_error_names_the_field_that_has_no_encoding(fault: str) -> None:
    invalid, field = FAULTS[fault]
    with pytest.raises(EncodeError, match=f"amqp:.*:list: {field} is not a ") as raised:
        invalid.encode()
    assert len(str(raised.value)) < 400


def test_a_composite_without_a_mandatory_field_cannot_be_encoded() -> None:
    with pytest.raises(EncodeError, match="container_id is mandatory"):
        Open(container_id=None).encode()  # type: ignore[arg-type]  # wrong on purpose
