"""The common frame of all studies: grids, rows, workers, summaries and reports.

A study lists its runs (`rows.AbstractRun`) on a grid (`grid.check_grid`). `runner.run_grids` makes those that have no
row yet, on workers that are started for the while (`workers`), with data that is loaded once (`data`) and what fits are
worth (`measure`). `summary` puts rows together, `report` has what pages say alike. Only studies import from here; begin
with `runner`.
"""

__all__: list[str] = []
