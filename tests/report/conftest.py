"""Runs that several tests look at."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def workshop(tmp_path_factory):
    from report_runs import Workshop

    return Workshop(tmp_path_factory.mktemp("runs"))
