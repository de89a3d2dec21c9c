"""The seconds and the bytes until the duality gap is below a target."""

from benchopt import BasePlot


class Plot(BasePlot):
    """A table: one line for each solver."""

    name = "Time to a gap"
    type = "table"
    options = {"dataset": ..., "objective": ..., "target": [1e-2, 1e-3, 1e-4]}

    def plot(self, df, dataset, objective, target):
        """Return for each solver the fastest fit whose gap is small enough: medians over repetitions."""
        chosen = df[(df["dataset_name"] == dataset) & (df["objective_name"] == objective)]
        reached = chosen[chosen["objective_relative_gap"] <= target]
        lines = []
        for solver in sorted(chosen["solver_name"].unique()):
            fastest = reached[reached["solver_name"] == solver].sort_values("time").groupby("idx_rep").first()
            if len(fastest):
                lines.append([solver, float(fastest["time"].median()), int(fastest["objective_bytes_sent"].median())])
            else:
                lines.append([solver, "not reached", ""])
        return lines

    def get_metadata(self, df, dataset, objective, target):
        """Return the title and the heads of the columns."""
        return {
            "title": f"To a relative duality gap of {target:g}\n{objective}, {dataset}",
            "columns": ["solver", "seconds", "bytes sent"],
        }
