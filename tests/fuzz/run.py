"""Fuzz the decoders: ``python -m tests.fuzz.run [--seconds 600] [--jobs 2] [--keep] [target …]``.

Each target starts from its kept corpus, its seeds and what earlier runs found. A finding ends the run of its target:
the input is kept in ``tests/fuzz/findings`` and the exit code is 1. ``--keep`` puts the minimised corpora into the
repository.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.fuzz import build, corpus, targets

WORK = build.ROOT / "build" / "fuzz"
FINDINGS = Path(__file__).resolve().parent / "findings"
ONE_INPUT_SECONDS = 25
MEMORY_MEGABYTES = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one target; ``edges`` are covered branches of C and Python code together."""

    target: str
    executions: int
    edges: int
    features: int
    inputs: int
    seconds: float
    reports: tuple[Path, ...]

    def line(self) -> str:
        return (
            f"{self.target:16} {self.executions:10,} {self.edges:7,} {self.features:9,} {self.inputs:7,}"
            f" {self.seconds:8.0f} {len(self.reports):8}"
        )


HEADING = f"{'target':16} {'executions':>10} {'edges':>7} {'features':>9} {'inputs':>7} {'seconds':>8} {'reports':>8}"


def fuzz(name: str, seconds: int, *, keep: bool) -> Outcome:
    """Run one target and minimise what it found."""
    target = targets.load(name)
    folder = WORK / name
    inputs = folder / "inputs"
    inputs.mkdir(parents=True, exist_ok=True)
    FINDINGS.mkdir(exist_ok=True)
    for data in [*corpus.load(name), *target.seeds()]:
        (inputs / corpus.name_of(data)).write_bytes(data[: target.max_length])
    words = folder / "words"
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in target.words), encoding="ascii")
    before = set(FINDINGS.iterdir())
    began = time.monotonic()
    log = folder / "log"
    with log.open("wb") as output:
        code = _engine(
            name,
            output,
            f"-max_total_time={seconds}",
            f"-max_len={target.max_length}",
            f"-timeout={ONE_INPUT_SECONDS}",
            f"-rss_limit_mb={MEMORY_MEGABYTES}",
            f"-dict={words}",
            f"-artifact_prefix={FINDINGS}/{name}-",
            "-print_final_stats=1",
            "-reload=0",
            inputs,
        )
    spent = time.monotonic() - began
    text = log.read_text(errors="replace")
    reports = tuple(sorted(set(FINDINGS.glob(f"{name}-*")) - before))
    if code and not reports:
        report = FINDINGS / f"{name}-log-{int(time.time())}"
        shutil.copy(log, report)
        reports = (report,)
    minimised = _minimise(name, inputs, target.max_length) if code == 0 else sorted(inputs.iterdir())
    if keep and code == 0:
        corpus.save(name, (path.read_bytes() for path in minimised))
    progress = re.findall(r"cov: (\d+) ft: (\d+)", text)
    edges, features = map(int, progress[-1]) if progress else (0, 0)
    executions = re.search(r"stat::number_of_executed_units: (\d+)", text) or re.search(r".*#(\d+)\t", text, re.DOTALL)
    return Outcome(
        target=name,
        executions=int(executions[1]) if executions else 0,
        edges=edges,
        features=features,
        inputs=len(minimised),
        seconds=spent,
        reports=reports,
    )


def _minimise(name: str, inputs: Path, max_length: int) -> list[Path]:
    """Replace a folder of inputs by the few that reach as much; returns them."""
    least = inputs.with_name("least")
    shutil.rmtree(least, ignore_errors=True)
    least.mkdir()
    child = inputs.with_name("child")
    child.write_text(f"#!/bin/sh\nexec '{sys.executable}' -m tests.fuzz.engine {name} --child='{child}' \"$@\"\n")
    child.chmod(0o755)
    with inputs.with_name("merge-log").open("wb") as output:
        code = _engine(name, output, f"--child={child}", "-set_cover_merge=1", f"-max_len={max_length}", least, inputs)
    if code == 0:
        shutil.rmtree(inputs)
        least.rename(inputs)
    return sorted(inputs.iterdir())


def _engine(name: str, output: IO[bytes], *options: object) -> int:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="rocketcore-fuzz-", dir=memory if memory.is_dir() else None) as folder:
        return subprocess.run(
            [sys.executable, "-m", "tests.fuzz.engine", name, *map(str, options)],
            cwd=build.ROOT,
            env={**build.environment(build.fuzzer_runtime()), "TMPDIR": folder},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        ).returncode


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Fuzz the decoders on kernels with sanitizers.")
    parser.add_argument("--seconds", type=int, default=600, help="time for each target")
    parser.add_argument("--jobs", type=int, default=2, help="targets at a time")
    parser.add_argument("--keep", action="store_true", help="put the minimised corpora into the repository")
    parser.add_argument("targets", nargs="*", metavar="target", help=f"of {', '.join(targets.NAMES)}; all without one")
    options = parser.parse_args(arguments)
    unknown = set(options.targets) - set(targets.NAMES)
    if unknown:
        parser.error(f"no target {', '.join(sorted(unknown))}")
    build.build()
    print(HEADING, flush=True)
    failed = False
    with ThreadPoolExecutor(options.jobs) as pool:
        for outcome in pool.map(
            lambda name: fuzz(name, options.seconds, keep=options.keep), options.targets or targets.NAMES
        ):
            print(outcome.line(), flush=True)
            for report in outcome.reports:
                failed = True
                print(f"  {report}  (log: {WORK / outcome.target / 'log'})", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
