"""Offsets: their form in a checkpoint, when they are refused, and which differences count as lost data."""

from __future__ import annotations

import json

import pytest

from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.source.offsets import Offsets, find_losses, read_offsets, resolve_offsets
from twinbus.pipeline.source.positions import FragmentPosition, Positions

SECOND = 1 << 48


def positions(*fragments: tuple[int, int], entity_id: int = 7, purged: int = 0) -> Positions:
    fragment_positions = [
        FragmentPosition(number, low, end, end - low, is_available=True, purged_sequence_number=purged)
        for number, (low, end) in enumerate(fragments)
    ]
    return Positions(entity_id, tuple(fragment_positions))


def test_offsets_survive_a_checkpoint_and_have_one_written_form() -> None:
    offsets = Offsets("orders", 7, {10: 3, 2: 5})
    assert json.dumps(offsets.to_json()) == (
        '{"version": 1, "entity": "orders", "entityId": 7, "fragments": {"2": 5, "10": 3}}'
    )
    restored = read_offsets(json.loads(json.dumps(offsets.to_json())), "Orders")
    assert restored == offsets


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version 2; this twinbus reads version 1"),
        ({"version": None}, "another checkpointLocation"),
        ({"entity": "news"}, "is of 'news'; the query reads 'orders'"),
        ({"fragments": []}, "damaged"),
        ({"entityId": "x"}, "damaged"),
    ],
)
def test_offsets_of_another_version_or_entity_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        read_offsets(Offsets("orders", 7, {0: 1}).to_json() | change, "orders")


def test_options_set_the_first_and_last_offset() -> None:
    current = positions((3, 9), (SECOND + 1, SECOND + 5))
    edges = {
        "earliest": {0: 3, 1: SECOND + 1},
        "latest": {0: 9, 1: SECOND + 5},
    }
    for edge, expected in edges.items():
        assert resolve_offsets("orders", current, edge, default="earliest").fragments == expected
    resolved = resolve_offsets("orders", current, {1: 4}, default="earliest")
    assert resolved.fragments == {0: 3, 1: SECOND + 4}
    assert resolve_offsets("orders", current, {0: -1, 1: SECOND + 2}, default="earliest").fragments == {
        0: 9,
        1: SECOND + 2,
    }
    with pytest.raises(PipelineError, match="no fragment 2"):
        resolve_offsets("orders", current, {2: 1}, default="earliest")


def test_messages_that_others_received_are_no_data_loss() -> None:
    assert find_losses(Offsets("orders", 7, {0: 2}), positions((50, 60))) == []
    assert find_losses(Offsets("orders", 7, {0: 0}), positions((1, 10))) == []


def test_a_recreated_entity_a_shorter_log_and_a_purge_are_data_loss() -> None:
    start = Offsets("orders", 7, {0: 20})
    (recreated,) = find_losses(start, positions((1, 5), entity_id=8))
    assert "deleted and created again" in recreated
    (shorter,) = find_losses(start, positions((1, 5)))
    assert "restored to an earlier state" in shorter
    (purged,) = find_losses(start, positions((50, 60), purged=20))
    assert "purged up to 20" in purged
    assert find_losses(start, positions((50, 60), purged=19)) == []


def test_an_unavailable_fragment_is_no_data_loss_and_has_no_offset() -> None:
    down = Positions(7, (FragmentPosition(0, 0, 0, 0, is_available=False),))
    assert find_losses(Offsets("orders", 7, {0: 20}), down) == []
    assert Offsets("orders", 7, {0: 20}).limited_to(down).fragments == {}


def test_offsets_beyond_the_end_of_a_log_or_of_another_entity_are_dropped() -> None:
    offsets = Offsets("orders", 7, {0: 20, 1: SECOND + 5})
    assert offsets.limited_to(positions((1, 20), (SECOND + 1, SECOND + 5))) == offsets
    assert offsets.limited_to(positions((1, 19), (SECOND + 1, SECOND + 5))).fragments == {1: SECOND + 5}
    assert offsets.limited_to(positions((1, 20), (SECOND + 1, SECOND + 5), entity_id=8)).fragments == {}
