"""What one rank really did: shards, collectives, memory."""

from tp_teach.measure.step import measure

__all__ = ["measure"]
