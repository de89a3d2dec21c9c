"""What all studies do alike: rows in a file that a study goes on from, data, workers, scores, medians.

A study lists its runs (`rows.AbstractRun`), makes those that have no row yet (`record.Record`), on workers that are
started for the while (`workers.cluster_where`) with data that is loaded once (`data.load_data`), and puts their rows
together (`summary.Stat`). The folders beside this one say what is measured and what is drawn, and none else imports
from here. Begin with `record`, then `rows`.
"""

__all__: list[str] = []
