"""One cluster for as many scenarios as it survives, and a soak that runs only on request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chaos.harness import Cluster
from chaos.scenarios import Scenario, measure, play


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the soak out unless ``-m`` names it."""
    if "soak" in config.getoption("markexpr"):
        return
    soak = [item for item in items if item.get_closest_marker("soak")]
    if soak:
        config.hook.pytest_deselected(items=soak)
        items[:] = [item for item in items if item not in soak]


@pytest.fixture(scope="module")
def stage() -> Iterator[Callable[..., None]]:
    """Give a function that plays a scenario; after one that fails, the next gets a new cluster."""
    current: list[Cluster] = []

    def clear() -> None:
        while current:
            current.pop().stop()

    def perform(scenario: Scenario, **facts: Any) -> None:
        print(f"to replay: {scenario}")  # noqa: T201
        if current and current[0].n_threads != scenario.n_threads:
            clear()
        try:
            if not current:
                current.append(Cluster(n_threads=scenario.n_threads))
                measure(current[0])
            play(current[0], scenario, **facts)
        except BaseException:
            clear()
            raise

    yield perform
    clear()
