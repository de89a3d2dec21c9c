"""The model before its L1 penalty, which ranks may average, and the conversion to and from the model.

With the cumulative penalty of `dsgd.kernels.penalties`, a weight is at every moment the sum z of its steps without
penalty, moved towards zero by u, the penalty due so far, but never across zero::

    w = sign(z) max(0, |z| - u),  z = w - q

where q is the penalty that the weight has received. This is lazy dual averaging: z is the dual model, w the primal one.
z does not depend on when a weight last paid; so it is known of weights whose features a rank has not seen as well.

Source: Tsuruoka, Tsujii and Ananiadou 2009, section 3.2 (the penalty); Xiao 2010 (dual averaging). That the two are one
is ours: both sides of each case of the truncation give the line above.
"""

from __future__ import annotations

import numpy as np

from dsgd.kernels.jit import kernel
from dsgd.kernels.penalties import truncate
from dsgd.kernels.state import L1_TOTAL
from dsgd.types import FloatVector


@kernel
def to_dual(vector: FloatVector, received: FloatVector | None, counters: FloatVector) -> None:
    """Replace a model by its dual.

    - `vector`, shape (n_params + 1,): the model, then one entry that is overwritten; afterwards z for every weight,
      the intercepts as they were, u.
    - `received`, shape (n_weights,): q, read only; None where there is no penalty, and nothing to do.
    - `counters`, shape (COUNTERS,): has u at `L1_TOTAL`; read only.
    """
    if received is None:
        return
    for j in range(np.uint64(received.shape[0])):
        vector[j] -= received[j]
    vector[-1] = vector.dtype.type(counters[L1_TOTAL])


@kernel
def to_primal(vector: FloatVector, received: FloatVector | None, counters: FloatVector) -> None:
    """Replace the dual of a model by the model; every weight has then paid all that is due.

    A second `to_dual` gives the same dual to the bit: w - z is exact, whichever of z and u is the larger part.

    - `vector`, shape (n_params + 1,): as `to_dual` leaves it, or a mean of such; afterwards the model.
    - `received`, shape (n_weights,): overwritten by q.
    - `counters`, shape (COUNTERS,): gets u.
    """
    if received is None:
        return
    owed = float(vector[-1])
    counters[L1_TOTAL] = owed
    for j in range(np.uint64(received.shape[0])):
        z = vector[j]
        weight = vector.dtype.type(truncate(z, owed, 0.0))
        received[j] = weight - z
        vector[j] = weight
