"""What tests of several readers are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers.nsys_export import export
from helpers.recorded import data

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an export of Nsight Systems per rank of Megatron's two ranks."""
    folder = tmp_path_factory.mktemp("nsys") / "exports"
    export(data("megatron", "1f1b_m8"), folder)
    return folder
