"""Q31: API versions before 2013-10 have no partitioned entities."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.server.http.http_service import HttpService

PARTITIONED = "<EnablePartitioning>true</EnablePartitioning>"


@pytest.mark.parametrize("query", ["", "?api-version=2013-10", "?api-version=2024-05", "?api-version=2099-01-preview"])
def test_from_2013_10_on_partitioning_is_shown_and_can_be_set(service: HttpService, query: str) -> None:
    assert service.put(f"/orders{query}", PARTITIONED).element("EnablePartitioning") == "true"
    assert "<EnablePartitioning>" in service.request("GET", f"/$Resources/queues{query}").text


def test_before_2013_10_partitioning_is_hidden_and_refused(service: HttpService) -> None:
    reply = service.put("/orders?api-version=2013-08", PARTITIONED)
    assert reply.status == 400
    assert "2013-10" in reply.detail
    assert service.put("/plain?api-version=2012-03").status == 201
    assert service.request("GET", "/plain?api-version=2013-08").element("EnablePartitioning") is None
    assert "EnablePartitioning" not in service.request("GET", "/$Resources/queues?api-version=2012-03").text


def test_an_update_by_an_old_client_keeps_partitioning(service: HttpService) -> None:
    service.put("/orders", PARTITIONED)
    reply = service.put("/orders?api-version=2012-03", "<MaxDeliveryCount>3</MaxDeliveryCount>", If_Match="*")
    assert reply.status == 200
    description = service.administration.queues["orders"].description
    assert (description.enable_partitioning, description.max_delivery_count) == (True, 3)


@pytest.mark.parametrize("version", ["", "1", "soon", "2013", "2013-1", "20131-0"])
def test_an_invalid_version_is_refused_before_any_change(service: HttpService, version: str) -> None:
    reply = service.put(f"/orders?api-version={version}")
    assert reply.status == 400
    assert reply.detail.startswith("api-version is ")
    assert service.administration.queues == {}
