"""A text whose best possible loss is known: invented words, drawn one by one by Zipf's law, with spaces between.

Which word comes next cannot be foreseen, and how it is spelled can: the mean entropy of a character is that of the
choice of a word over its mean length, with the space. A model that has learnt the words and their frequencies comes
near it; one that sees too few characters, or too little of the text, does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from dsgd.types import AnyArray, FloatVector, IntVector

_LETTERS: Final = 20
_LONGEST: Final = 7


@dataclass(frozen=True)
class InventedText:
    """A text of invented words; code 0 is the space, and 1 to 20 are letters."""

    n_words: int = 60
    seed: int = 0

    @property
    def n_symbols(self) -> int:
        """How many different characters there are."""
        return _LETTERS + 1

    def words(self) -> list[IntVector]:
        """Return the words, each an array of letters, the most frequent first."""
        rng = np.random.default_rng((self.seed, 0))
        found: dict[bytes, IntVector] = {}
        while len(found) < self.n_words:
            word = rng.integers(1, _LETTERS + 1, rng.integers(2, _LONGEST + 1))
            found.setdefault(word.tobytes(), word)
        return list(found.values())

    def frequencies(self) -> FloatVector:
        """Return how often each word comes, shape (n_words,): the n-th an n-th as often as the first."""
        shares = 1.0 / np.arange(1, self.n_words + 1)
        found: FloatVector = shares / shares.sum()
        return found

    def entropy(self) -> float:
        """Return the least mean loss of a character, in nats: that of who knows all that came before."""
        shares = self.frequencies()
        lengths = np.array([len(word) + 1 for word in self.words()])
        return float(-(shares @ np.log(shares)) / (shares @ lengths))

    def draw(self, n: int, length: int, seed: int) -> tuple[AnyArray, IntVector]:
        """Return a text as rows: the characters before each one, and that character."""
        rng, words = np.random.default_rng((self.seed, 1, seed)), self.words()
        # Words have two letters or more, so that so many are enough.
        chosen = rng.choice(self.n_words, size=(n + length) // 3 + 1, p=self.frequencies())
        text = np.concatenate([np.append(words[number], 0) for number in chosen])[: n + length].astype(np.int64)
        rows = np.lib.stride_tricks.sliding_window_view(text, length)[:n]
        return np.ascontiguousarray(rows), text[length:]
