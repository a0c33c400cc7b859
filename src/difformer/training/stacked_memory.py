"""How many runs can be trained as one: the memory of a run, and what is free."""

from __future__ import annotations

# Of the free memory: gradients in flight, and what the allocator cannot use because it lies in pieces.
SHARE = 0.7
# Copies of a run's parameters: themselves, two moments, two forms of the gradient, the best epoch's.
PARAMETER_COPIES = 6


def chunks_that_fit(runs: int, bytes_each: int, free: int, most: int | None = None) -> list[int]:
    """Sizes of chunks of about equal length: as few as memory allows.

    Args:
        runs: How many there are in all.
        bytes_each: What one of them needs.
        free: What is there for all of a chunk.
        most: Largest chunk that is wanted whatever the memory.
    """
    if runs < 1:
        return []
    fitting = max(1, int(SHARE * free / max(1, bytes_each)))
    size = min(fitting, runs, most or runs)
    count = -(-runs // size)
    return [runs // count + (chunk < runs % count) for chunk in range(count)]
