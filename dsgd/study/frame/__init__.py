"""The common frame of all studies; only studies import from here.

A study is one declaration, `study.Study`, with the options that several have (`options`). `rows` keeps a row of every
run and puts rows together; `data` are loaded once and placed on workers, and fits of them evaluated; `report` has what
all pages share.
"""

__all__: list[str] = []
