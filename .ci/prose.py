"""Counts the words of our sentences: none has over 30, and the mean of a page is at most 18; names habits of ours.

``python .ci/prose.py [PAGE ...]`` checks the pages that are clean already, or those it is given. Tables, code, headings
and references are left out. The exit code is 1 where something is to be written anew.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CLEAN = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/index.md", "docs/install.md", "docs/spark-streams.md",
         "docs/tour.md", "docs/operating.md", "docs/servers.md", "docs/maintenance.md", "docs/operations.md",
         "docs/console.md", "docs/troubleshooting.md", "docs/from-other-tools.md")  # fmt: skip
"""A page joins when it is rewritten, and stays."""
MOST_WORDS = 30
HIGHEST_MEAN = 18.0
HABITS = {
    r"^(?:what|whoever|whatever)\b(?!.*\?$)": "a subordinate clause as the subject: name the thing",
    r"^who\b(?!.*\?$)": "'who …' as the subject: say who",
    r"\b(?:to|from|by|for) who(?:ever)?\b": "'who' for a noun: say who",
    r"\bone that\b": "'one that': repeat the noun",
    r"\bthose that\b": "'those that': repeat the noun",
}


def paragraphs(text: str) -> list[tuple[int, str]]:
    """Return the paragraphs and items of a page's prose, each with the line it begins at."""
    text = re.sub(r"^---\n.*?^---\n|<!--.*?-->", lambda found: "\n" * found[0].count("\n"), text, flags=re.S | re.M)
    found: list[tuple[int, str]] = []
    fresh, code = True, False
    for number, line in enumerate(text.splitlines(), 1):
        fence = line.lstrip().startswith("```")
        code ^= fence
        item = re.match(r"\s*(?:[-*]|\d+\.)\s+", line)
        if fence or code or not line.strip() or re.match(r"\s*(?:\||#|\[[^]]+\]:|!!!)", line):
            fresh = True
        elif fresh or item:
            found.append((number, line[item.end() :].strip() if item else line.strip()))
            fresh = False
        else:
            found[-1] = found[-1][0], f"{found[-1][1]} {line.strip()}"
    return found


def sentences(paragraph: str) -> list[str]:
    """Return the sentences; code counts as one word, a link as its text."""
    plain = re.sub(r"`+[^`]*`+", "code", paragraph)
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"“\1”", plain).replace("**", "")
    return [part for part in re.split(r"(?<=[.?!:])[\")]*\s+(?=[A-Zc(“\d])", plain) if re.search(r"\w", part)]


def words(sentence: str) -> int:
    return len(re.findall(r"[\w’'-]*\w[\w’'.,-]*", sentence))


def faults(name: str, text: str) -> list[str]:
    found, counts = [], []
    for line, paragraph in paragraphs(text):
        for sentence in sentences(paragraph):
            counts.append(words(sentence))
            if counts[-1] > MOST_WORDS:
                found.append(f"{name}:{line}: {counts[-1]} words, at most {MOST_WORDS}: {sentence[:60]}…")
            for habit, advice in HABITS.items():
                if re.search(habit, sentence, re.IGNORECASE):
                    found.append(f"{name}:{line}: {advice}: {sentence[:60]}")
    mean = sum(counts) / len(counts) if counts else 0.0
    if mean > HIGHEST_MEAN:
        found.append(f"{name}: {mean:.1f} words a sentence, at most {HIGHEST_MEAN:g}")
    return found


def main(pages: list[str]) -> int:
    found = [fault for name in pages or CLEAN for fault in faults(name, (ROOT / name).read_text("utf-8"))]
    print("\n".join(found) if found else f"{len(pages or CLEAN)} pages read well")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
