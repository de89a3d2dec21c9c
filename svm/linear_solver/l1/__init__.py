"""Linear SVMs with an L1 penalty: a proximal Newton method (`newton`) over columns (`columns`)."""

__all__: list[str] = []
