"""All claims on one page: every published figure that this library implements, measured in minutes.

::

    statements = chosen(["gtopk"])
    rows = list(run_claims(statements, "claims/"))
    claims_page(rows, statements).save("claims/")

Statements are in `dsgd.study.published`; here is what measures them: `codes` counts bytes, `contests` compares methods,
each at its own rate, on simulated clusters, `fits` those that differ in their rates, `local_gd` fits powers to losses,
`studies` runs the studies on small grids.
`registry` puts them together, runs them and makes the page.
"""

from dsgd.study.claims.registry import (
    MEASURE_OF,
    MEASURES,
    chosen,
    claims_facts,
    claims_of,
    claims_page,
    key_of,
    list_table,
    overview_table,
    run_claims,
)
from dsgd.study.published import Measure

__all__ = [
    "MEASURES",
    "MEASURE_OF",
    "Measure",
    "chosen",
    "claims_facts",
    "claims_of",
    "claims_page",
    "key_of",
    "list_table",
    "overview_table",
    "run_claims",
]
