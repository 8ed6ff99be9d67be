"""What tests of several readers are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers.nsys_export import export
from helpers.recorded import ROOT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an export of Nsight Systems per rank of Megatron's two ranks."""
    folder = tmp_path_factory.mktemp("nsys") / "exports"
    export(ROOT / "tests" / "data" / "megatron-m4", folder)
    return folder
