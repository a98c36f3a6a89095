"""Counts the words of our sentences: none has over 30, and the mean of a page is at most 18; names habits of ours.

``python .ci/prose.py [PAGE|KIND ...]`` checks the pages and the kinds of texts in the program (``prose_texts.py``) that
are clean already, or those it is given. Tables, code, headings and references are left out. The exit code is 1 where
something is to be written anew.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from prose_texts import KINDS, gathered

ROOT = Path(__file__).resolve().parents[1]
CLEAN = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/applications.md",
    "docs/architecture.md",
    "docs/asyncio.md",
    "docs/benchmarks.md",
    "docs/cli.md",
    "docs/compatibility.md",
    "docs/configuration.md",
    "docs/connecting.md",
    "docs/console.md",
    "docs/consuming.md",
    "docs/delayed.md",
    "docs/delivery.md",
    "docs/faults.md",
    "docs/filters.md",
    "docs/from-kafka.md",
    "docs/from-other-tools.md",
    "docs/glossary.md",
    "docs/index.md",
    "docs/install.md",
    "docs/maintenance.md",
    "docs/migrating.md",
    "docs/one-message.md",
    "docs/operating.md",
    "docs/operations.md",
    "docs/ordered.md",
    "docs/pop.md",
    "docs/recipes.md",
    "docs/request-reply.md",
    "docs/sending.md",
    "docs/servers.md",
    "docs/spark-cluster.md",
    "docs/spark-options.md",
    "docs/spark-streams.md",
    "docs/spark-writing.md",
    "docs/spark.md",
    "docs/store.md",
    "docs/testing.md",
    "docs/tls.md",
    "docs/tour.md",
    "docs/tracing.md",
    "docs/transactions.md",
    "docs/troubleshooting.md",
    "docs/tutorial.md",
)
"""A page joins when it is rewritten, and stays."""
CLEAN_KINDS = ("help", "settings", "console", "errors", "logs", "docstrings")
"""Kinds of texts in the program, see ``prose_texts.py``; they join in the same way."""
MOST_WORDS = 30
HIGHEST_MEAN = 18.0
HABITS = {
    r"^(?:what|whoever|whatever)\b(?!.*\?$)": "a subordinate clause as the subject: name the thing",
    r"^who\b(?!.*\?$)": "'who …' as the subject: say who",
    r"\b(?:to|from|by|for) who(?:ever)?\b": "'who' for a noun: say who",
    r"\bone that\b": "'one that': repeat the noun",
    r"\bthose that\b": "'those that': repeat the noun",
}
TEXT_HABITS = HABITS | {
    r"(?:^|[;:,]\s)what(?: (?:is|was|has|it|they|a|an|the|of|no)\b)(?!.*\?$)": "'what …' for a noun: name the thing",
    r"(?<!there )\b(?:is|are|was|were) no (?!longer|more)\w+": "'is no …': say 'is not a …', or 'invalid …'",
    r"\bno \w+ that\b": "'no … that': begin with the actor, and 'does not'",
    r"\b(?:nobody|somebody|whoever|whatever)\b": "an actor without a name: name it",
    r"\banew\b": "'anew': again",
    r"\bso (?:many|much|often|long)\b(?! (?:as|that)\b)": "'so many': name the number",
    r"\bthere (?:is|are) none\b": "'there is none': say what happens then",
}
"""Habits of help, errors and docstrings. Pages have some of them in places where they are right."""


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
            found += sentence_faults(f"{name}:{line}", sentence, HABITS)
    mean = sum(counts) / len(counts) if counts else 0.0
    if mean > HIGHEST_MEAN:
        found.append(f"{name}: {mean:.1f} words a sentence, at most {HIGHEST_MEAN:g}")
    return found


def sentence_faults(place: str, sentence: str, habits: dict[str, str]) -> list[str]:
    found = []
    if words(sentence) > MOST_WORDS:
        found.append(f"{place}: {words(sentence)} words, at most {MOST_WORDS}: {sentence[:60]}…")
    for habit, advice in habits.items():
        if re.search(habit, sentence, re.IGNORECASE):
            found.append(f"{place}: {advice}: {sentence[:60]}")
    return found


def text_faults(place: str, text: str) -> list[str]:
    """Judge a text of the program; a row ``name   what it is`` of a docstring is a paragraph of its own."""
    parts = re.split(r"\n\s*\n|\n(?=[ ]*[\w*, ]*\w  +\S)", text)
    return [
        fault
        for part in parts
        for sentence in sentences(re.sub(r"^\s*[\w*, ]+\w  +|\s+", " ", part).strip())
        for fault in sentence_faults(place, sentence, TEXT_HABITS)
    ]


def main(asked: list[str]) -> int:
    kinds = tuple(name for name in asked if name in KINDS) if asked else CLEAN_KINDS
    pages = [name for name in asked or CLEAN if name not in KINDS]
    found = [fault for name in pages for fault in faults(name, (ROOT / name).read_text("utf-8"))]
    texts = gathered(kinds) if kinds else []
    found += [fault for _, place, text in texts for fault in text_faults(place, text)]
    print("\n".join(found) if found else f"{len(pages)} pages and {len(texts)} texts read well")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
