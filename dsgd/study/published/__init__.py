"""What sources publish of their methods: every statement once, with its figure, its place and its tolerance.

Modules are by subject: `msf`, `scaling`, `gtopk`, `elimination` and `transports` have studies of their own,
`averaging`, `rates`, `neighbours` and `compression` are of the methods that have none, and
`library` is what this library promises of itself.
The claims of every study, and those of `dsgd.study.claims`, are made of these statements; `registry` has all of them.
`citing` says what a report cites.
"""

from dsgd.study.published.citing import citations, sources_of
from dsgd.study.published.registry import SOURCES, STATEMENTS

__all__ = ["SOURCES", "STATEMENTS", "citations", "sources_of"]
