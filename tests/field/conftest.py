"""Tests of the field run in a folder of their own: NVIDIA FLARE searches the current one for its settings."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("field"))
        yield
