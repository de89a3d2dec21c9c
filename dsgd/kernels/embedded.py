"""Compiling what only becomes a part of kernels: without machine code of its own.

Problem: Numba makes every function that a kernel calls fit to be called by itself. It is optimised and turned into
machine code, then linked into the kernel and optimised once more with all around it. That takes a fifth of compiling.

Method: a library of code that ends with what is linked. Kernels are as fast as before, and their sums the same to the
bit.
"""

from __future__ import annotations

from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler


class PartCompiler(Compiler):
    """A pipeline of Numba's whose outcome is linked into kernels, and never called by itself."""

    def define_pipelines(self) -> Any:
        """Return the stages of the pipeline."""
        self.state.library = _PartLibrary(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        return super().define_pipelines()


class _NoCode:
    """Takes the place of a code generator that is asked to prepare a function for being called."""

    def set_env(self, name: str, env: Any) -> None:
        """Do nothing: parts of kernels make no Python objects."""


class _PartLibrary(JITCodeLibrary):
    """What is linked into kernels."""

    @property
    def codegen(self) -> Any:
        return _NoCode()

    def get_pointer_to_function(self, name: str) -> int:
        return 0

    def _optimize_final_module(self) -> None:
        """Leave that to the kernel."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True
