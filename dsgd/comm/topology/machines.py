"""The links between the accelerators of common machines, such as the DGX-1P and the DGX-1V."""

from __future__ import annotations

from typing import Final

#: NVLinks between the eight P100 of a DGX-1P, each in either direction: the same mesh with one link where there is any,
#: four at each.
DGX_1P_LINKS: Final = (
    (0, 1, 1, 1, 1, 0, 0, 0),
    (1, 0, 1, 1, 0, 1, 0, 0),
    (1, 1, 0, 1, 0, 0, 1, 0),
    (1, 1, 1, 0, 0, 0, 0, 1),
    (1, 0, 0, 0, 0, 1, 1, 1),
    (0, 1, 0, 0, 1, 0, 1, 1),
    (0, 0, 1, 0, 1, 1, 0, 1),
    (0, 0, 0, 1, 1, 1, 1, 0),
)

#: NVLinks between the eight V100 of a DGX-1V (``nvidia-smi topo -m``), each in either direction: a hybrid cube mesh of
#: two rings of four that are cross-linked, six links at each.
DGX_1V_LINKS: Final = (
    (0, 1, 1, 2, 2, 0, 0, 0),
    (1, 0, 2, 1, 0, 2, 0, 0),
    (1, 2, 0, 2, 0, 0, 1, 0),
    (2, 1, 2, 0, 0, 0, 0, 1),
    (2, 0, 0, 0, 0, 1, 1, 2),
    (0, 2, 0, 0, 1, 0, 2, 1),
    (0, 0, 1, 0, 1, 2, 0, 2),
    (0, 0, 0, 1, 2, 1, 2, 0),
)
