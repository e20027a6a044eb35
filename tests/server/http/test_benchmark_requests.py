"""The requests with which bench/peer/compare creates its queues: urllib, over plain HTTP."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.server.http.http_service import TOKEN

if TYPE_CHECKING:
    from tests.server.http.http_service import HttpService

COMPARE = (Path(__file__).parents[3] / "bench" / "peer" / "compare").read_text()


def create_queue(service: HttpService, name: str, *, is_partitioned: bool) -> int:
    template = re.findall('ATOM = """(.*?)"""', COMPARE, re.DOTALL)[0]
    request = urllib.request.Request(  # our own server
        f"http://127.0.0.1:{service.http_listener.port}/{name}?api-version=2021-05",
        template.format(str(is_partitioned).lower()).encode(),
        method="PUT",
        headers={**TOKEN, "Content-Type": "application/atom+xml"},
    )
    with urllib.request.urlopen(request, timeout=20) as response:  # noqa: S310  # our own server
        return int(response.status)


def test_the_queues_of_the_benchmark_are_created_and_a_second_time_are_a_conflict(service: HttpService) -> None:
    assert create_queue(service, "bench-plain", is_partitioned=False) == 201
    assert create_queue(service, "bench-partitioned", is_partitioned=True) == 201
    with pytest.raises(urllib.error.HTTPError) as caught:
        create_queue(service, "bench-plain", is_partitioned=False)
    with caught.value as error:
        assert error.code == 409
    queues = service.administration.queues
    assert {name: info.description.enable_partitioning for name, info in queues.items()} == {
        "bench-plain": False,
        "bench-partitioned": True,
    }
