"""Texts as whole numbers, a word each: 0 pads in front, 1 is a word outside of the vocabulary, 2 the most frequent."""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from unicodedata import category, name, normalize

import torch
from torch import Tensor

from fedcore.types.ranges import Count

PADDING, UNKNOWN, FIRST = 0, 1, 2
LENGTH, VOCABULARY = 25, 10_000
"""Words of a text that LEAF's model of Sent140 reads; words that are known, beside padding and unknown."""

WORD = re.compile(r"[.,;!?]|[\w']+")


@cache
def _marked_word() -> re.Pattern[str]:
    """Return WORD with the combining marks after a letter, as in Hindi. It is slower."""
    marks = (c for c in map(chr, range(sys.maxunicode + 1)) if category(c) in ("Mn", "Mc"))
    combining = "".join(c for c in marks if "VARIATION SELECTOR" not in name(c, ""))  # which follow emoji
    return re.compile(rf"[.,;!?]|[\w'][\w'{combining}]*")


def words_of(text: str) -> list[str]:
    """Split a text into words, with their apostrophes, and the marks .,;!? (LEAF, Sent140)."""
    return (WORD if text.isascii() else _marked_word()).findall(normalize("NFC", text))


def vocabulary_of(texts: Iterable[str], size: Count = VOCABULARY) -> dict[str, int]:
    """Return word -> number of the `size` most frequent words; of equally frequent ones the first by alphabet."""
    counts = Counter(word for text in texts for word in words_of(text))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[:size]
    return {word: number for number, word in enumerate(ranked, FIRST)}


def stored_vocabulary(path: str | Path, texts: Iterable[str], size: Count = VOCABULARY) -> dict[str, int]:
    """Return the vocabulary in a file, after words of these texts that it lacks are added to it, up to `size`.

    So a word keeps its number when texts are added, and so do a trained model and the rows that are held out.
    """
    file = Path(path)
    known: dict[str, int] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    new = [word for word in vocabulary_of(texts, size + len(known)) if word not in known]
    grown = known | {word: number for number, word in enumerate(new[: max(size - len(known), 0)], FIRST + len(known))}
    if grown != known:
        part = file.with_name(f".{file.name}.part")
        part.write_text(json.dumps(grown, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
        part.replace(file)
    return grown


def to_numbers(texts: Sequence[str], vocabulary: dict[str, int], length: Count = LENGTH) -> Tensor:
    """Return the first `length` words of each text as numbers, (N, length) float32, padded in front."""
    x = torch.full((len(texts), length), float(PADDING))
    for row, text in zip(x, texts, strict=True):
        if numbers := [vocabulary.get(word, UNKNOWN) for word in words_of(text)[:length]]:
            row[-len(numbers) :] = torch.tensor(numbers, dtype=torch.float32)
    return x
