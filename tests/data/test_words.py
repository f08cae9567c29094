from pathlib import Path

import torch

from fedcore.data.words import FIRST, UNKNOWN, stored_vocabulary, to_numbers, vocabulary_of, words_of


def test_words_keep_apostrophes_and_marks():
    assert words_of("I can't wait!! @you: 3, yes?") == ["I", "can't", "wait", "!", "!", "you", "3", ",", "yes", "?"]
    assert words_of("Gro\u0308\u00dfe") == words_of("Gr\u00f6\u00dfe") == ["Gr\u00f6\u00dfe"]


def test_words_keep_their_combining_marks():
    assert words_of("की का कि") == ["की", "का", "कि"]
    assert words_of("كَتَبَ, كُتُب") == ["كَتَبَ", ",", "كُتُب"]
    assert words_of("1\ufe0f\u20e3 a \u2764\ufe0f \u0301b") == ["1", "a", "b"], "emoji, and a mark of no letter"


def test_vocabulary_has_the_most_frequent_words():
    assert vocabulary_of(["b a b", "c a b"], size=2) == {"b": FIRST, "a": FIRST + 1}


def test_a_stored_vocabulary_only_grows(tmp_path: Path):
    file = tmp_path / "words.json"
    first = stored_vocabulary(file, ["b a b ö"], size=5)
    assert first == {"b": 2, "a": 3, "ö": 4}
    grown = stored_vocabulary(file, ["a a a", "d c d a e"], size=5)
    assert grown == {"b": 2, "a": 3, "ö": 4, "d": 5, "c": 6}
    assert vocabulary_of(["a a a", "d c d a e"])["a"] != grown["a"]
    assert stored_vocabulary(file, ["new words"], size=5) == stored_vocabulary(file, [], size=2) == grown
    assert [*tmp_path.iterdir()] == [file]


def test_texts_are_cut_and_padded_in_front():
    x = to_numbers(["a b c d", "d", "", "a"], {"a": 2, "d": 3}, length=3)
    assert x.tolist() == [[2, UNKNOWN, UNKNOWN], [0, 0, 3], [0, 0, 0], [0, 0, 2]]
    assert x.dtype == torch.float32
