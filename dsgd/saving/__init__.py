"""Models in files without code: ``model.save(path)`` and `load`.

`models` writes and reads files, `values` what is in them, and says which classes there may be.
"""

from dsgd.saving.models import SavingMixin, is_model_file, load

__all__ = ["SavingMixin", "is_model_file", "load"]
