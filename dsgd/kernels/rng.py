"""Counter-based random numbers: each draw is a hash of its key and depends on no earlier draw.

`mix64` is the finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014, with Stafford's constants "mix 13"): a
bijection of 64-bit words in which every input bit flips every output bit with a probability close to one half.
"""

from __future__ import annotations

import numpy as np

from dsgd.kernels.jit import kernel, scalar
from dsgd.types import WordVector

#: The odd number nearest to 2^64 over the golden ratio; multiples of it are spread evenly over the words.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)

_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_S30 = np.uint64(30)
_S27 = np.uint64(27)
_S31 = np.uint64(31)


@scalar
def mix64(word: np.uint64) -> np.uint64:
    """Return `word` scrambled: a bijection of 64-bit words."""
    word = (word ^ (word >> _S30)) * _FIRST
    word = (word ^ (word >> _S27)) * _SECOND
    return word ^ (word >> _S31)


@scalar
def draw(key: np.uint64, counter: np.uint64) -> np.uint64:
    """Return number `counter` of the stream of `key`: splitmix64 started at `key`, entered anywhere."""
    word: np.uint64 = mix64(key + (counter + np.uint64(1)) * GOLDEN)
    return word


def mix64_each(words: WordVector) -> WordVector:
    """Return `mix64` of every word of an array."""
    mixed: WordVector = mix64(words)
    return mixed


def draw_each(keys: WordVector, counters: WordVector) -> WordVector:
    """Return `draw` of every key and counter of two arrays, one broadcast against the other."""
    drawn: WordVector = draw(keys, counters)
    return drawn


@kernel
def draw_one(key: np.uint64, counter: np.uint64) -> np.uint64:
    """Return `draw` to who is not compiled: numpy would warn of the words that wrap around."""
    word: np.uint64 = draw(key, counter)
    return word
