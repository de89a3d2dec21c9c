"""The study of the synchronisation period: cost and accuracy at every period, and published claims.

`grid` lists the runs, `runner` trains, `summary` aggregates rows, `claims`, `tables` and `plots` show them, `report`
makes the page. `dsgd.study` exports what users need; begin with `grid.Study`.
"""

__all__: list[str] = []
