"""The study of the synchronisation period: cost and accuracy at every period, and published claims.

`grid` says what is run, `runner` trains it, `summary` puts rows together, `claims`, `tables` and `plots` are what is
said of them, `report` the page. `dsgd.study` exports what users need; begin with `grid.Study`.
"""

__all__: list[str] = []
