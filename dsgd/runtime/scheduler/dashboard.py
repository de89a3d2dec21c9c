"""The page ``/dsgd`` of the Dask dashboard: jobs, time of each rank, loss.

It shows the jobs of the scheduler plugin, updated twice a second while the page is open; their losses since it was
opened are kept by the page. This file is loaded only if the scheduler has a dashboard, and therefore bokeh; without a
dashboard there is no page, and nothing else changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Final

from bokeh.layouts import column, row
from bokeh.models import ColumnDataSource, Div, HoverTool, Legend, LegendItem, Range1d, Select
from bokeh.plotting import figure

from dsgd.progress import count_text
from dsgd.runtime.dask_internals import add_page, has_dashboard
from dsgd.runtime.scheduler.jobs import JobView
from dsgd.runtime.scheduler.registry import Registry

if TYPE_CHECKING:
    from bokeh.document import Document
    from distributed import Scheduler


PAGE: Final = "/dsgd"
_REDRAW_MS: Final = 500
_MAX_POINTS: Final = 1000

# Stacked from work to waiting, in colours that people with any colour vision can distinguish; reports use the same.
_PHASES: Final = ("compute", "encode", "wire", "wait", "control")
_COLOURS: Final = ("#0072b2", "#009e73", "#c98500", "#d55e00", "#b8609a")
_CURVES: Final = ("#0072b2", "#d55e00", "#009e73", "#b8609a", "#c98500")
_MUTED: Final = "#57606a"
_NEWEST: Final = "the newest job"
_STATES: Final = {
    "running": "#0072b2",
    "queued": "#9a6700",
    "stopping": "#c02f1d",
}
_EMPTY: Final = (
    "<p class='empty'>No job of dsgd yet. One appears here while an estimator with <code>client=...</code> is fitted "
    "on this cluster.</p>"
)

# Styles of the table; a data table of bokeh draws its cells only once.
_STYLE: Final = """
.bk-clearfix { width: 100%; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; font-weight: 600; color: #57606a; white-space: nowrap; border-bottom: 1px solid #c6ccd2; }
td { border-bottom: 1px solid #e4e7eb; white-space: nowrap; }
th, td { padding: 5px 14px 5px 0; }
th.number, td.number { text-align: right; font-variant-numeric: tabular-nums; }
td.note { width: 40%; white-space: normal; color: #57606a; }
.empty { font-size: 15px; color: #57606a; margin: 8px 0; }
.id { color: #57606a; }
"""


def attach(scheduler: Scheduler, registry_of: Callable[[Scheduler], Registry]) -> bool:
    """Add the page to the dashboard of a scheduler, unless it is there."""
    if not has_dashboard(scheduler):
        return False

    def fill(doc: Document) -> Callable[[], None]:
        page = GangPage(lambda: registry_of(scheduler))
        doc.add_root(page.root)
        return page.update

    add_page(scheduler, PAGE, "Dask: dsgd", fill, _REDRAW_MS)
    return True


class GangPage:
    """The page of one visitor."""

    def __init__(self, registry: Callable[[], Registry]) -> None:
        self._registry = registry
        self._points: dict[str, deque[tuple[float, float]]] = {}
        self._bars = ColumnDataSource({name: [] for name in ("rank", "place", *_PHASES)})
        self._curves = ColumnDataSource({name: [] for name in ("seconds", "loss", "name", "colour", "width")})
        self._ends = ColumnDataSource({name: [] for name in ("seconds", "loss", "colour")})
        self._table = Div(text=_EMPTY, stylesheets=[_STYLE], sizing_mode="stretch_width", name="jobs")
        self._choice = Select(title="Ranks of", value=_NEWEST, options=[_NEWEST], width=260, name="choice")
        self._make_bars()
        self._make_curves()
        self.root = column(
            self._table,
            self._choice,
            row(self.ranks, self.loss, sizing_mode="stretch_width", spacing=24),
            sizing_mode="stretch_width",
            margin=(12, 20, 12, 20),
            spacing=10,
        )

    def update(self) -> None:
        """Draw the current state of the jobs."""
        views = self._registry().overview()
        names = [_NEWEST, *(_name(view) for view in views)]
        if self._choice.options != names:
            self._choice.options = names
        if self._choice.value not in names:
            self._choice.value = _NEWEST
        shown = self._chosen(views)
        self._table.text = _table(views) if views else _EMPTY
        self._draw_bars(shown)
        self._draw_curves(views, shown)

    def _chosen(self, views: Sequence[JobView]) -> JobView | None:
        """Return the job whose ranks are shown; by default the newest that has reported them."""
        known = [view for view in views if view.job.latest]
        return next((view for view in known if _name(view) == self._choice.value), known[0] if known else None)

    def _make_bars(self) -> None:
        self.ranks = figure(
            title="Where the time of each rank goes",
            height=400,
            sizing_mode="stretch_width",
            toolbar_location=None,
            tools="",
            x_range=Range1d(0, 1),
            y_range=Range1d(1.5, -0.5),
            x_axis_label="seconds so far",
            y_axis_label="rank",
            name="ranks",
        )
        bars = self.ranks.hbar_stack(
            list(_PHASES), y="rank", height=0.72, color=list(_COLOURS), source=self._bars, line_color=None
        )
        times = [(name, f"@{name}{{0.00}} s") for name in _PHASES]
        self.ranks.add_tools(HoverTool(renderers=bars, tooltips=[("rank", "@rank"), ("worker", "@place"), *times]))
        items = [LegendItem(label=name, renderers=[bar]) for name, bar in zip(_PHASES, bars, strict=True)]
        _decorate(self.ranks, items)
        self.ranks.ygrid.visible = False
        self.ranks.yaxis.ticker.min_interval = 1
        self.ranks.yaxis.ticker.num_minor_ticks = 0

    def _make_curves(self) -> None:
        self.loss = figure(
            title="Training loss",
            height=400,
            sizing_mode="stretch_width",
            toolbar_location=None,
            tools="",
            x_axis_label="seconds of training",
            y_axis_label="mean loss of a row",
            name="loss",
        )
        lines = self.loss.multi_line(
            "seconds", "loss", color="colour", line_width="width", line_join="round", source=self._curves
        )
        self.loss.scatter("seconds", "loss", color="colour", size=7, source=self._ends)
        tips = [("job", "@name"), ("loss", "$data_y{0.000000}"), ("at", "$data_x{0.0} s")]
        self.loss.add_tools(HoverTool(renderers=[lines], tooltips=tips))
        _decorate(self.loss, [LegendItem(label={"field": "name"}, renderers=[lines])])

    def _draw_bars(self, view: JobView | None) -> None:
        latest = {} if view is None else view.job.latest
        n = len(latest.get("compute_s", ()))
        times = {name: list(latest.get(f"{name}_s", [0.0] * n)) for name in _PHASES}
        places = [] if view is None else [*view.job.places, *[""] * n][:n]
        self._bars.data = {"rank": list(range(n)), "place": places, **times}
        title = "Where the time of each rank goes"
        self.ranks.title.text = title if view is None else f"{title}: {_name(view)}"
        longest = max((sum(each) for each in zip(*times.values(), strict=True)), default=1.0)
        self.ranks.x_range.end = 1.02 * longest or 1.0
        self.ranks.y_range.start = max(n, 2) - 0.5

    def _draw_curves(self, views: Sequence[JobView], shown: JobView | None) -> None:
        known = [view for view in views if view.job.latest]
        before = self._points
        self._points = {view.job.job_id: before.get(view.job.job_id, deque(maxlen=_MAX_POINTS)) for view in known}
        for view in known:
            point = float(view.job.latest["seconds"]), float(view.job.latest["train_loss"])
            if point not in self._points[view.job.job_id]:
                self._points[view.job.job_id].append(point)
        drawn = known[: len(_CURVES)]
        points = [self._points[view.job.job_id] for view in drawn]
        # A job keeps its colour while others start and end.
        colours = [_CURVES[view.job.number % len(_CURVES)] for view in drawn]
        self._curves.data = {
            "seconds": [[seconds for seconds, _ in curve] for curve in points],
            "loss": [[loss for _, loss in curve] for curve in points],
            "name": [_name(view) for view in drawn],
            "colour": colours,
            "width": [2.5 if view is shown else 1.5 for view in drawn],
        }
        ends = [curve[-1] for curve in points]
        self._ends.data = {
            "seconds": [seconds for seconds, _ in ends],
            "loss": [loss for _, loss in ends],
            "colour": colours,
        }


def _name(view: JobView) -> str:
    return f"{view.job.label.title} {_short(view)}"


def _short(view: JobView) -> str:
    return view.job.job_id[:6]


_NUMBERS: Final = ("ranks", "epoch", "training loss", "rows/s", "communication", "period", "elapsed")
_COLUMNS: Final = ("job", "state", *_NUMBERS, "strategy", "note")


def _table(views: Sequence[JobView]) -> str:
    """Return the jobs as an HTML table; texts of a job are escaped."""

    def line(tag: str, cells: dict[str, str]) -> str:
        kinds = {name: "number" if name in _NUMBERS else name for name in cells}
        return "<tr>" + "".join(f"<{tag} class='{kinds[n]}'>{text}</{tag}>" for n, text in cells.items()) + "</tr>"

    head = line("th", {name: name for name in _COLUMNS})
    return f"<table><thead>{head}</thead><tbody>{''.join(line('td', _cells(view)) for view in views)}</tbody></table>"


def _cells(view: JobView) -> dict[str, str]:
    latest = view.job.latest
    cells = dict.fromkeys(_COLUMNS, "")
    place = f", place {view.position}" if view.position else ""
    cells |= {
        "job": f"{escape(view.job.label.title)} <span class='id'>{escape(_short(view))}</span>",
        "state": f"<b style='color: {_STATES.get(view.state, _MUTED)}'>{view.state}</b>{place}",
        "ranks": str(view.n_ranks),
        "elapsed": f"{view.elapsed_s:.1f} s",
        "note": escape(view.job.note),
    }
    if latest:
        cells |= {
            "epoch": f"{latest['epoch']:,} of {latest['max_iter']:,}",
            "training loss": f"{latest['train_loss']:.5g}",
            "rows/s": count_text(latest["rows_per_s"]),
            "communication": f"{latest['comm_share']:.0%}",
            "period": "" if latest["period"] is None else f"{latest['period']:,}",
            "strategy": escape(latest["strategy"]),
        }
    return cells


def _decorate(plot: Any, items: list[LegendItem]) -> None:
    plot.title.text_font_size = "14px"
    plot.title.text_color = "#1b1f24"
    plot.axis.axis_label_text_font_style = "normal"
    plot.axis.axis_label_text_color = _MUTED
    plot.axis.major_label_text_color = _MUTED
    plot.axis.axis_line_color = plot.axis.major_tick_line_color = "#c6ccd2"
    plot.axis.minor_tick_line_color = None
    plot.grid.grid_line_color = "#e4e7eb"
    plot.outline_line_color = None
    legend = Legend(items=items, orientation="horizontal", border_line_color=None, background_fill_alpha=0.0)
    legend.label_text_font_size, legend.spacing, legend.margin = "12px", 14, 0
    plot.add_layout(legend, "below")
