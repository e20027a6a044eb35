"""Offsets: how a checkpoint keeps them, when they are refused, and what a loss of data is."""

from __future__ import annotations

import json

import pytest

from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.source.offsets import Offsets, find_losses, read_offsets, resolve_offsets
from twinbus.pipeline.source.positions import FragmentPosition, Positions

SECOND = 1 << 48


def positions(*fragments: tuple[int, int], entity_id: int = 7, purged: int = 0) -> Positions:
    found = [
        FragmentPosition(number, low, end, end - low, is_available=True, purged_sequence_number=purged)
        for number, (low, end) in enumerate(fragments)
    ]
    return Positions(entity_id, tuple(found))


def test_offsets_are_the_same_after_a_checkpoint_and_always_written_alike() -> None:
    offsets = Offsets("orders", 7, {10: 3, 2: 5})
    assert json.dumps(offsets.to_json()) == (
        '{"version": 1, "entity": "orders", "entityId": 7, "fragments": {"2": 5, "10": 3}}'
    )
    again = read_offsets(json.loads(json.dumps(offsets.to_json())), "Orders")
    assert again == offsets


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"version": 2}, "version 2, and this twinbus reads version 1"),
        ({"version": None}, "another checkpointLocation"),
        ({"entity": "news"}, "is of 'news', and the query reads 'orders'"),
        ({"fragments": []}, "damaged"),
        ({"entityId": "x"}, "damaged"),
    ],
)
def test_offsets_of_another_version_or_entity_are_refused(change: dict[str, object], what: str) -> None:
    with pytest.raises(PipelineError, match=what):
        read_offsets(Offsets("orders", 7, {0: 1}).to_json() | change, "orders")


def test_a_range_begins_and_ends_where_the_user_says() -> None:
    where = positions((3, 9), (SECOND + 1, SECOND + 5))
    edges = {
        "earliest": {0: 3, 1: SECOND + 1},
        "latest": {0: 9, 1: SECOND + 5},
    }
    for edge, expected in edges.items():
        assert resolve_offsets("orders", where, edge, default="earliest").fragments == expected
    given = resolve_offsets("orders", where, {1: 4}, default="earliest")
    assert given.fragments == {0: 3, 1: SECOND + 4}
    assert resolve_offsets("orders", where, {0: -1, 1: SECOND + 2}, default="earliest").fragments == {
        0: 9,
        1: SECOND + 2,
    }
    with pytest.raises(PipelineError, match="no fragment 2"):
        resolve_offsets("orders", where, {2: 1}, default="earliest")


def test_numbers_that_others_took_are_no_loss() -> None:
    assert find_losses(Offsets("orders", 7, {0: 2}), positions((50, 60))) == []
    assert find_losses(Offsets("orders", 7, {0: 0}), positions((1, 10))) == []


def test_another_entity_of_the_name_a_log_that_ends_sooner_and_a_purge_are() -> None:
    start = Offsets("orders", 7, {0: 20})
    (again,) = find_losses(start, positions((1, 5), entity_id=8))
    assert "deleted and created again" in again
    (shorter,) = find_losses(start, positions((1, 5)))
    assert "restored to an earlier state" in shorter
    (purged,) = find_losses(start, positions((50, 60), purged=20))
    assert "purged up to 20" in purged
    assert find_losses(start, positions((50, 60), purged=19)) == []


def test_of_a_fragment_that_is_down_nothing_is_known() -> None:
    down = Positions(7, (FragmentPosition(0, 0, 0, 0, is_available=False),))
    assert find_losses(Offsets("orders", 7, {0: 20}), down) == []
    assert Offsets("orders", 7, {0: 20}).limited_to(down).fragments == {}


def test_an_offset_behind_the_end_of_a_log_or_of_another_entity_tells_nothing_of_what_is_there() -> None:
    offsets = Offsets("orders", 7, {0: 20, 1: SECOND + 5})
    assert offsets.limited_to(positions((1, 20), (SECOND + 1, SECOND + 5))) == offsets
    assert offsets.limited_to(positions((1, 19), (SECOND + 1, SECOND + 5))).fragments == {1: SECOND + 5}
    assert offsets.limited_to(positions((1, 20), (SECOND + 1, SECOND + 5), entity_id=8)).fragments == {}
