"""The header of a frame."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsgd.comm import frames
from dsgd.errors import InvalidParameterError, ProtocolError

u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))
codes = st.sampled_from(sorted(frames.DTYPE_CODES.values()))


@given(u64, u32, u64, u16, codes, st.integers(0, frames.MAX_FRAME_BYTES), u32)
def test_a_header_reads_as_it_was_written(
    job: int, epoch: int, sequence: int, op: int, dtype: int, nbytes: int, flags: int
) -> None:
    """unpack_from undoes pack_into for every value of every field."""
    buffer = bytearray(frames.HEADER_BYTES)
    frames.pack_into(buffer, job, epoch, sequence, op, dtype, nbytes, flags)
    assert frames.unpack_from(buffer) == frames.Header(job, epoch, sequence, op, dtype, nbytes, flags)


@given(st.binary(min_size=0, max_size=80))
def test_random_bytes_are_no_header(data: bytes) -> None:
    """Bytes that are no packed header are refused."""
    if data.startswith(frames.MAGIC):
        return
    with pytest.raises(ProtocolError):
        frames.unpack_from(data)


@given(st.integers(0, frames.HEADER_BYTES - 1), st.integers(1, 255))
def test_a_changed_byte_never_passes_for_the_same_header(position: int, change: int) -> None:
    """Any changed byte is either refused or shows as a difference in words."""
    buffer = bytearray(frames.HEADER_BYTES)
    frames.pack_into(buffer, 1, 2, 3, 4, 2, 6)
    expected = frames.unpack_from(buffer)
    buffer[position] ^= change
    try:
        got = frames.unpack_from(buffer)
    except ProtocolError:
        return
    assert "expected" in frames.describe_mismatch(expected, got)


def test_an_impossible_length_is_not_believed() -> None:
    """A header that claims more bytes than any frame has is refused before anything is allocated."""
    buffer = bytearray(frames.HEADER_BYTES)
    frames.pack_into(buffer, 1, 0, 0, 0, 1, frames.MAX_FRAME_BYTES + 1)
    with pytest.raises(ProtocolError, match="at most"):
        frames.unpack_from(buffer)


def test_the_version_and_the_type_are_checked() -> None:
    """Another version of the layout and an unknown element type are refused by name."""
    buffer = bytearray(frames.HEADER_BYTES)
    frames.pack_into(buffer, 1, 0, 0, 0, 99, 0)
    with pytest.raises(ProtocolError, match="dtype code"):
        frames.unpack_from(buffer)
    frames.pack_into(buffer, 1, 0, 0, 0, 1, 0)
    buffer[4] = 77
    with pytest.raises(ProtocolError, match="version 77"):
        frames.unpack_from(buffer)


def test_only_arrays_that_can_travel_are_accepted() -> None:
    """Unknown dtypes, foreign byte order and strided arrays are refused with what to do."""
    for array in (np.zeros(3, dtype=object), np.zeros(3, dtype=">f8"), np.zeros(3, dtype=np.complex128)):
        with pytest.raises(InvalidParameterError, match="dtype"):
            frames.check_array(array)
    with pytest.raises(InvalidParameterError, match="C-contiguous"):
        frames.check_array(np.zeros((4, 4))[:, 1])
    for dtype, code in frames.DTYPE_CODES.items():
        assert frames.check_array(np.zeros(0, dtype=dtype)) == code


def test_the_code_of_a_job_is_the_same_everywhere() -> None:
    """The code is a function of the name alone, as text or as bytes."""
    assert frames.job_code("job-1") == frames.job_code(b"job-1") == frames.job_code("job-1")
    assert frames.job_code("job-1") != frames.job_code("job-2")
    assert 0 <= frames.job_code("x") < 2**64
