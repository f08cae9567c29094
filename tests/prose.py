"""Count the words of README.md, docs/ and messages; compare the counts with tests/prose.yaml: exit code 1 above one.

python tests/prose.py           compare
python tests/prose.py --pages   also each page's words, sentences and what is counted of it
python tests/prose.py --write   lower the limits to today's counts, rounded up; it raises none

Code in blocks, comments, headings and pages that a program writes are not counted. A table's cells count as words of a
page, not as sentences. An inline piece of code is one word, a link is its text. A message is the text of an InputError
or of a print in fedcore/: no sentence may be long or say what ODD has.
"""

import ast
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
LIMITS = ROOT / "tests" / "prose.yaml"
HEAD = """\
# What the pages may have at most (tests/prose.py). Lower a limit with every page that gets shorter; raise none.
# long_sentences and very_long_sentences are per cent of all sentences, above 25 and above 40 words.
"""
GENERATED = (
    "docs/papers.md",
    "docs/results.md",
    *(f"docs/results/{family}.md" for family in ("code", "dfl", "fedasa", "st_lf")),
)
"""Written by benchmarks/results_page.py and docs/assets/papers_page.py."""
REFERENCE = "docs/api/"
LONG, VERY_LONG, CELL = 25, 40, 25
PAGE, METHOD_PAGE = 1000, 1500
ODD = re.compile(r"\bis no\b|: is of |\ballowed (is|are)\b|\bthat is none\b|\bfor who\b")
STEPS = {"words": 100, "mean_sentence": 0.5, "long_sentences": 0.5, "very_long_sentences": 0.5}
"""A limit is the count rounded up to such steps."""


def text_of(page: str) -> str:
    """Return a page without blocks of code, comments and headings, with links as their text and code as one word."""
    text = re.sub(r"^[ ]*```.*?^[ ]*```$|<!--.*?-->", "", page, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^#{1,6} .*$|^!\[.*$|^:::.*\n(?: .*\n)*|^ {4}fedcore .*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`\n]+`", "code", text)
    return re.sub(r"!?\[([^\]]*)\]\([^)\s]*\)", r"\1", text)


def cells_of(text: str) -> list[str]:
    rows = (line.strip().strip("|") for line in text.splitlines() if line.lstrip().startswith("|"))
    return [cell for row in rows if not re.fullmatch(r"[\s|:-]*", row) for cell in row.split("|")]


def sentences_of(text: str) -> Iterator[str]:
    """Yield the sentences outside of tables; an item of a list is one at least."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("|"))
    for block in re.split(r"\n\s*\n|\n\s*(?:[*-]|\d+\.)\s+", "\n" + "\n".join(lines)):
        for sentence in re.split(r"(?<=[.!?])[\")*]*\s+(?=[A-Z\"(*]|code\b)", " ".join(block.split())):
            if len(words_of(sentence)) > 1:
                yield sentence


def words_of(text: str) -> list[str]:
    return [word for word in text.split() if re.search(r"\w", word)]


def dead_links(page: Path, root: Path) -> list[str]:
    """Return the page's relative links to files that are not there; tests/test_docs.py looks at anchors, too."""
    links = re.findall(r"\]\(([^)\s#]+)", page.read_text())
    here = [link for link in links if not re.match(r"[a-z]+:", link)]
    made = {(root / name).resolve() for name in GENERATED}
    targets = {link: (page.parent / link).resolve() for link in here}
    return [link for link, target in targets.items() if not target.exists() and target not in made]


def count_page(page: Path, root: Path) -> dict[str, int]:
    source = page.read_text()
    text = text_of(source)
    lengths = [len(words_of(sentence)) for sentence in sentences_of(text)]
    return {
        "words": len(words_of(text)),
        "sentences": len(lengths),
        "sentence_words": sum(lengths),
        "long": sum(length > LONG for length in lengths),
        "very_long": sum(length > VERY_LONG for length in lengths),
        "long_cells": sum(len(words_of(cell)) > CELL for cell in cells_of(text)),
        "dead_links": len(dead_links(page, root)),
        "no_example": int(not re.search(r"^ *```|^!\[|^:::|^ {4}fedcore", source, re.MULTILINE)),
    }


def unknown_names(pages: list[Path], root: Path) -> list[str]:
    """Return the names of `fc` that are on no page. Methods are not among them: privacy.md has a row for each."""
    text = "".join(page.read_text() for page in pages)
    public = re.findall(r"import (\w+) as \1", (root / "fedcore" / "__init__.py").read_text())
    return [name for name in public if not re.search(rf"\b{name}\b", text)]


def template_of(node: ast.expr) -> str:
    """Return a text of the code, with X for what is put in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(template_of, node.values))
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "X"


def bad_messages(root: Path) -> list[str]:
    """Return the messages with a long sentence or an odd word, each with its place."""
    bad = []
    for path in sorted((root / "fedcore").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("InputError", "print") and node.args:
                text = template_of(node.args[0])
                if ODD.search(text) or any(len(words_of(one)) > LONG for one in re.split(r"(?<=[.;?])\s|\n", text)):
                    bad.append(f"{path.relative_to(root)}:{node.lineno}: {text}")
    return bad


def count(root: Path) -> tuple[dict[str, dict[str, int]], dict[str, float]]:
    """Return each page's counts, and those of all together, which have limits."""
    paths = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    pages = {path.relative_to(root).as_posix(): path for path in paths}
    counts = {name: count_page(page, root) for name, page in pages.items() if name not in GENERATED}
    hand = {name: one for name, one in counts.items() if not name.startswith(REFERENCE)}
    total = {key: sum(one[key] for one in hand.values()) for key in next(iter(hand.values()))}
    above = [n for n, one in hand.items() if one["words"] > (METHOD_PAGE if n.startswith("docs/methods") else PAGE)]
    return counts, {
        "words": total["words"],
        "mean_sentence": round(total["sentence_words"] / total["sentences"], 1),
        "long_sentences": round(100 * total["long"] / total["sentences"], 1),
        "very_long_sentences": round(100 * total["very_long"] / total["sentences"], 1),
        "long_cells": total["long_cells"],
        "long_pages": len(above),
        "pages_without_example": total["no_example"],
        "dead_links": sum(one["dead_links"] for one in counts.values()),
    }


def compare(now: dict[str, float], limits: dict[str, float]) -> list[str]:
    return [f"{key}: {value:,}, at most {limits[key]:,}" for key, value in now.items() if value > limits[key]]


def main(words: list[str]) -> int:
    pages, now = count(ROOT)
    now["names_on_no_page"] = len(unknown := unknown_names([ROOT / name for name in pages], ROOT))
    now["bad_messages"] = len(bad := bad_messages(ROOT))
    if "--pages" in words:
        print(*(f"{name:36}" + " ".join(f"{k} {v}" for k, v in one.items()) for name, one in pages.items()), sep="\n")
    old = yaml.safe_load(LIMITS.read_text()) if LIMITS.exists() else now
    if "--write" in words:
        room = {key: math.ceil(value / STEPS.get(key, 1)) * STEPS.get(key, 1) for key, value in now.items()}
        lowest = {key: min(value, old.get(key, value)) for key, value in room.items()}
        LIMITS.write_text(HEAD + yaml.safe_dump(lowest, sort_keys=False))
    above = compare(now, old)
    print("pages: " + ", ".join(f"{key} {value:,}" for key, value in now.items()))
    for line in above:
        found = {"names_on_no_page": unknown, "bad_messages": bad}.get(line.partition(":")[0], [])
        print(f"above its limit in tests/prose.yaml: {line}", *found, sep="\n  ")
    return bool(above)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
