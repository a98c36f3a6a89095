"""A strict reader of the text form of metrics (Prometheus 0.0.4), which refuses what a scraper may not take."""

from __future__ import annotations

import re

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"'
_HELP = re.compile(rf"# HELP ({_NAME}) ((?:[^\\\n]|\\[\\n])*)")
_TYPE = re.compile(rf"# TYPE ({_NAME}) (counter|gauge|histogram)")
_SAMPLE = re.compile(rf"({_NAME})\{{((?:{_LABEL}(?:,{_LABEL})*)?)\}} (-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)")
_ESCAPED = {r"\\": "\\", r"\"": '"', r"\n": "\n"}

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read_exposition(text: str) -> tuple[dict[str, str], Samples]:
    """Return the kind of each family, and the value of each sample by name and labels.

    raises  ValueError for a line of no form, a family that is not in one piece or has no HELP and TYPE before it, a
            sample or label twice, and a histogram whose classes do not add up
    """
    kinds: dict[str, str] = {}
    samples: Samples = {}
    if not text.endswith("\n"):
        raise ValueError("the last line does not end")
    family, announced = "", ""
    for line in text.split("\n")[:-1]:
        if found := _HELP.fullmatch(line):
            announced = found[1]
            if announced in kinds:
                raise ValueError(f"twice: {line}")
        elif found := _TYPE.fullmatch(line):
            family = found[1]
            if family != announced or family in kinds:
                raise ValueError(f"not behind its HELP: {line}")
            kinds[family] = found[2]
        elif found := _SAMPLE.fullmatch(line):
            name, labels = found[1], _labels(found[2])
            suffixes = ("_bucket", "_sum", "_count") if kinds.get(family) == "histogram" else ("",)
            if name not in {family + suffix for suffix in suffixes}:
                raise ValueError(f"not of {family}: {line}")
            if (name, labels) in samples:
                raise ValueError(f"twice: {line}")
            samples[name, labels] = float(found[7])
        else:
            raise ValueError(f"no line of the form: {line!r}")
    for name in [name for name, kind in kinds.items() if kind == "histogram"]:
        _check_histogram(name, samples)
    return kinds, samples


def _labels(text: str) -> frozenset[tuple[str, str]]:
    pairs = [
        (name, re.sub(r"\\.", lambda found: _ESCAPED[found[0]], value)) for name, value in re.findall(_LABEL, text)
    ]
    if len(dict(pairs)) != len(pairs):
        raise ValueError(f"a label twice: {text}")
    return frozenset(pairs)


def _check_histogram(name: str, samples: Samples) -> None:
    for labels in [labels for sample, labels in samples if sample == f"{name}_count"]:
        classes = [
            (float(dict(each)["le"]), count)
            for (sample, each), count in samples.items()
            if sample == f"{name}_bucket" and {pair for pair in each if pair[0] != "le"} == labels
        ]
        if classes != sorted(classes) or [count for _, count in classes] != sorted(count for _, count in classes):
            raise ValueError(f"classes of {name} are not in order: {classes}")
        if classes[-1] != (float("inf"), samples[f"{name}_count", labels]):
            raise ValueError(f"the last class of {name} is not all: {classes}")


_OTHER_UNITS = {
    "milliseconds": "seconds", "ms": "seconds", "s": "seconds", "minutes": "seconds", "hours": "seconds",
    "microseconds": "seconds", "kb": "bytes", "mb": "bytes", "kilobytes": "bytes", "mebibytes": "bytes",
    "bits": "bytes", "percent": "ratio", "celcius": "celsius",
}  # fmt: skip
"""Ends of names, and what promtool would have in their place."""


def complaints(text: str) -> list[str]:
    """Return what ``promtool check metrics`` has against the names of a scrape: the rules of Prometheus' promlint."""
    kinds = dict(re.findall(rf"^# TYPE ({_NAME}) (\w+)$", text, re.MULTILINE))
    samples = re.findall(rf"^({_NAME})\{{(.*)\}} ", text, re.MULTILINE)
    found = []
    for name, kind in kinds.items():
        words = name.split("_")
        if (kind == "counter") != name.endswith("_total"):
            found.append(f"{name}: _total is the end of counters, and of them alone")
        if not words[0] or ":" in name or re.search("[A-Z]", name):
            found.append(f"{name}: no colons, no capitals")
        if {"gauge", "counter", "histogram", "summary"} & set(words):
            found.append(f"{name}: no type in the name")
        if name.endswith(("_bucket", "_count", "_sum")):
            found.append(f"{name}: an end of histograms")
        found += [f"{name}: base unit {_OTHER_UNITS[word]}" for word in words if word in _OTHER_UNITS]
    for name, labels in set(samples):
        for label, _ in re.findall(_LABEL, labels):
            if re.search("[A-Z]", label) or (label == "le" and not name.endswith("_bucket")) or label == "quantile":
                found.append(f"{name}: label {label}")
    return sorted(set(found))
