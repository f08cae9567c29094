import torch

from fedcore.data.words import FIRST, UNKNOWN, to_numbers, vocabulary_of, words_of


def test_words_keep_apostrophes_and_marks():
    assert words_of("I can't wait!! @you: 3, yes?") == ["I", "can't", "wait", "!", "!", "you", "3", ",", "yes", "?"]


def test_vocabulary_has_the_most_frequent_words():
    assert vocabulary_of(["b a b", "c a b"], size=2) == {"b": FIRST, "a": FIRST + 1}


def test_texts_are_cut_and_padded_in_front():
    x = to_numbers(["a b c d", "d", "", "a"], {"a": 2, "d": 3}, length=3)
    assert x.tolist() == [[2, UNKNOWN, UNKNOWN], [0, 0, 3], [0, 0, 0], [0, 0, 2]]
    assert x.dtype == torch.float32
