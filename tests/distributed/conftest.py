"""Groups of processes, each started once for all tests that use it."""

import pytest
from group_of_ranks import Group

SLOW = pytest.mark.slow


@pytest.fixture(scope="session")
def groups():
    """A group of P processes, by P."""
    found: dict[int, Group] = {}

    def of(size: int) -> Group:
        if size in found and found[size].broken:
            found.pop(size).close()
        if size not in found:
            found[size] = Group(size)
        return found[size]

    yield of
    for group in found.values():
        group.close()
