"""The common frame of all studies; only studies import from here.

A study is one declaration, `study.Study`, with the options that several have (`options`). `runner` keeps rows (`rows`)
of runs on temporary workers (`workers`), with data that are loaded once (`data`, `missing`); `measure` evaluates fits.
`cells` puts rows together, and `report` has what all pages share.
"""

__all__: list[str] = []
