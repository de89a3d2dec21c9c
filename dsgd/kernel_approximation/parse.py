"""Random features by name, for the command line."""

from __future__ import annotations

from typing import Final

from dsgd.errors import InvalidParameterError
from dsgd.kernel_approximation.random_features import RandomFeatures
from dsgd.named import Kind, part_of

_FEATURES: Final = Kind(
    "map to random features", RandomFeatures, "dsgd.kernel_approximation", {"rff": RandomFeatures}, "dsgd.features"
)


def parse_features(text: str) -> RandomFeatures | None:
    """Return the random features that a text names.

    Parameters
    ----------
    text : str
        ``none``; or ``rff``, with or without parameters: ``rff:2000,gamma=0.1``,
        ``rff:2000,kernel=laplacian,random_state=7``. The number of features may be without its name.

    Raises
    ------
    InvalidParameterError
        The text names none, or they have no such parameter, or its value is out of range.

    Examples
    --------
    >>> parse_features("rff:2000,gamma=0.1")
    RandomFeatures(gamma=0.1, n_components=2000)
    """
    if text == "none":
        return None
    found: RandomFeatures | None = part_of(_FEATURES, text, f"features {text!r}")
    if found is None:
        raise InvalidParameterError(
            f"No features {text!r}; give none, rff, or rff with parameters (rff:2000,gamma=0.1)."
        )
    # An estimator would find out only after the files were read.
    found.as_map(0)
    return found
