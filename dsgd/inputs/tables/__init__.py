"""Tables column by column: numbers, codes of categories, texts and dates, whichever library holds them.

`dsgd.preprocessing` reads columns by these, and estimators the column of the target. Begin with `base`, which says what
a table answers; `reading` turns a user's data into one. There is a reader for pandas, one for Arrow memory, which all
other libraries hand out, and one for arrays. No library is loaded for anybody who has none of its objects.
"""

__all__: list[str] = []
