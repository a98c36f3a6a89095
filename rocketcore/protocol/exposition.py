"""The text form of metrics that Prometheus scrapes, version 0.0.4: families of samples with labels.

# HELP rocketmq_topic_number Topics that the broker has
# TYPE rocketmq_topic_number gauge
rocketmq_topic_number{cluster="DefaultCluster",node_id="broker-a"} 12
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Final, Literal

__all__ = ["CONTENT_TYPE", "Family", "Kind", "label_text", "sample_lead"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_IN_LABELS: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_IN_HELP: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})

_PIECES_A_PART: Final = 250

Kind = Literal["counter", "gauge", "histogram"]


def label_text(labels: Mapping[str, str]) -> str:
    """Return labels as they stand between the braces; parts made of some can be joined by commas."""
    return ",".join(f'{name}="{value.translate(_IN_LABELS)}"' for name, value in labels.items())


def sample_lead(name: str, labels: str) -> str:
    """Return the line of a sample up to its value: it may be kept, as it is most of what many samples cost."""
    return f"{name}{{{labels}}} "


class Family:
    """All samples of one name. Labels are texts that ``label_text`` made, so that those of many are made once."""

    def __init__(self, name: str, kind: Kind, text: str) -> None:
        self.name = name
        self._lines = [f"# HELP {name} {text.translate(_IN_HELP)}\n", f"# TYPE {name} {kind}\n"]

    def add(self, value: float, labels: str) -> None:
        """Add the sample of a counter or gauge."""
        self._lines.append(f"{sample_lead(self.name, labels)}{value}\n")

    @property
    def add_lines(self) -> Callable[[str], None]:
        """Adds whole lines of some samples, a few at a time."""
        return self._lines.append

    def add_histogram(self, bounds: Sequence[float], counts: Iterable[int], total: float, labels: str) -> None:
        """Add the samples of a histogram.

        bounds  upper bounds of all classes but the last, which has none
        counts  how many fell in each class, one more than bounds
        total   sum of what was observed
        """
        lead = f"{labels}," if labels else ""
        below = list(accumulate(counts))
        for bound, count in zip([*map(str, bounds), "+Inf"], below, strict=True):
            self._lines.append(f'{self.name}_bucket{{{lead}le="{bound}"}} {count}\n')
        self._lines.append(f"{self.name}_sum{{{labels}}} {total}\n")
        self._lines.append(f"{self.name}_count{{{labels}}} {below[-1]}\n")

    def encode(self) -> Iterable[bytes]:
        """Return its text in parts; nothing where it has no sample."""
        if len(self._lines) > 2:
            for start in range(0, len(self._lines), _PIECES_A_PART):
                yield "".join(self._lines[start : start + _PIECES_A_PART]).encode("utf-8", "replace")
