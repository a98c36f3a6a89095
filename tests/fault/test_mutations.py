"""Damage in every file of a store, before every start: what was acknowledged is served whole, or named as damaged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fault.campaign import run_trials
from tests.fault.image import Image

SEED = int(os.environ.get("ROCKETCORE_FAULT_SEED", "20261120"))
MUTATIONS = int(os.environ.get("ROCKETCORE_FAULT_MUTATIONS", "60"))
SHOWN = 20

pytestmark = pytest.mark.fault


@pytest.mark.timeout(120 + MUTATIONS)
def test_damage_is_named_and_never_served() -> None:
    report = run_trials(SEED, range(MUTATIONS))
    print(f"\n{report}")
    assert report.trials == MUTATIONS
    assert not report.failing, f"{len(report.failing)} trials failed\n{report}\n" + "\n".join(report.failing[:SHOWN])
    assert report.named > report.trials // 20, "hardly any message was damaged: the mutator does nothing"


def test_a_file_that_goes_while_an_image_is_read_is_not_in_it(tmp_path: Path) -> None:
    """A running store writes a note beside the old one and renames it."""
    (tmp_path / "queuebounds").write_bytes(b"note")
    (tmp_path / "queuebounds.tmp").symlink_to("renamed meanwhile")
    assert Image.read(tmp_path).files == {"queuebounds": b"note"}
