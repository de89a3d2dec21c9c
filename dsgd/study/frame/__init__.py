"""The common frame of all studies: grids, rows, workers, summaries and reports.

A study lists its runs (`rows.AbstractRun`) on a grid (`grid.check_grid`). `runner.run_grids` makes those that have no
row yet, on temporary workers (`workers`), with data that is loaded once (`data`); `measure` evaluates the fits.
`summary` aggregates rows, `verdict` judges claims, `report` has the sections that all pages share. Only studies import
from here; begin with `runner`.
"""

__all__: list[str] = []
