"""Apache's servers of both lines."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.peers import ApacheCluster


@pytest.fixture(params=["4.9.7", "5.5.0"])
def apache_line(request: pytest.FixtureRequest, apache_clusters: Callable[[str], ApacheCluster]) -> ApacheCluster:
    """A NameServer and a broker of the last 4.9 or of 5.5.0, which other tests have too."""
    return apache_clusters(request.param)
