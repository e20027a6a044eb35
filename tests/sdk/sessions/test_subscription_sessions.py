"""Session listing of a subscription."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from azure.servicebus import ServiceBusMessage

if TYPE_CHECKING:
    from tests.sdk.bus import Bus


def test_sessions_of_a_subscription_with_messages_are_listed(bus: Bus) -> None:
    topic, client = bus.topic(), bus.client()
    bus.administration.create_subscription(topic, "one", requires_session=True)
    bus.topic_sender(topic).send_messages([ServiceBusMessage("x", session_id=session) for session in "aab"])

    def listing() -> Any:  # noqa: ANN401  # an iterator of either kind
        return client.list_subscription_sessions(topic, "one")

    async def collect() -> list[str]:
        return [session async for session in listing()]

    session_ids = bus._driver.run(collect if bus.is_aio else lambda: list(listing()))  # noqa: SLF001  # of either kind
    assert sorted(session_ids) == ["a", "b"]
