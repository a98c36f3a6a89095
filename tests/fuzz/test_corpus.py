"""Every kept input and every seed through its target, on the normal build and without a fuzzer."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.fuzz import corpus, targets


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Damage is what is tested here, so that nobody has to read of it."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", targets.NAMES)
def test_kept_inputs(name: str) -> None:
    inputs = corpus.load(name)
    assert inputs, f"no corpus: python -m tests.fuzz.run --keep {name}"
    run = targets.load(name).run
    for data in inputs:
        try:
            run(data)
        except Exception as error:
            error.add_note(f"input {corpus.name_of(data)} of {corpus.path_of(name).name}: {data[:200]!r}")
            raise


@pytest.mark.parametrize("name", targets.NAMES)
def test_seeds(name: str) -> None:
    target = targets.load(name)
    seeds = list(target.seeds())
    assert len(seeds) > 5
    for data in seeds:
        target.run(data[: target.max_length])


@pytest.mark.parametrize("name", targets.NAMES)
def test_a_corpus_is_small(name: str) -> None:
    inputs = corpus.load(name)
    assert len(inputs) <= corpus.MAX_INPUTS
    assert sum(map(len, inputs)) <= corpus.MAX_BYTES
    assert len(set(inputs)) == len(inputs)


def test_every_corpus_has_a_target() -> None:
    assert {path.stem for path in corpus.FOLDER.glob("*.zip")} <= set(targets.NAMES)
