"""P2P modes as people write them."""

from __future__ import annotations

from tracetool.validation.measured import p2p_mode


def test_p2p_modes() -> None:
    assert [p2p_mode(word) for word in ("grouped", "IN_ORDER", "perEdge", None)] == [
        "grouped",
        "in-order",
        "per-edge",
        None,
    ]
