"""The handshake: ranks authenticate and check that they belong to the same job.

Problem: anyone who can reach a port can connect to it. A health check, a scanner, a rank of yesterday's job or of
another version may connect, and none of them may join, stop the gang, or learn its secret.

One of two ranks connects, usually the one with the higher number. Four records of `RECORD_BYTES` bytes go to and fro::

    connector -> acceptor   hello:   job, epoch, who I am, whom I want, world size, digest of the settings, nonce
    acceptor  -> connector  welcome: the same from its side, and HMAC(token, "accept" + hello + welcome)
    connector -> acceptor   proof:   HMAC(token, "connect" + hello + welcome)
    acceptor  -> connector  verdict: joined, or why not, and HMAC(token, "verdict" + ...)

The token is never sent. A connection that fails before the proof (garbage, another job, a wrong token) is dropped and
counted, and the acceptor keeps waiting: a stranger must not be able to stop a gang. A failure after the proof (other
settings, a rank that has already joined) is an error on both sides, but for two ranks that connect to each other at
once: the connection of the lower one ends here (`dsgd.comm.sockets.link`).

Source: challenge and response after RFC 2104 and `multiprocessing.connection`, with both nonces in either proof.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import struct
from dataclasses import dataclass, replace
from typing import Final

from dsgd.comm.frames import job_code
from dsgd.errors import InvalidParameterError, ProtocolError

_MAGIC: Final = b"dsgH"
_VERSION: Final = 1
_LAYOUT: Final = struct.Struct("<4sBBBxQIIII32s32s32s")
RECORD_BYTES: Final = _LAYOUT.size
_DIGEST_BYTES: Final = 32
_MIN_TOKEN_BYTES: Final = 16

OK, WRONG_VERSION, WRONG_JOB, WRONG_EPOCH, WRONG_TOKEN, WRONG_CONFIG, WRONG_SIZE, WRONG_RANK, CROSSED = range(9)
_REASONS: Final = {
    WRONG_VERSION: "it speaks another version of the handshake: install one dsgd on all workers",
    WRONG_JOB: "it belongs to another job",
    WRONG_EPOCH: "it belongs to another incarnation (epoch) of this job",
    WRONG_TOKEN: "the token of the job is not the same",
    WRONG_CONFIG: "the settings of the job (versions, dtype, number of features, ...) are not the same",
    WRONG_SIZE: "the number of ranks is not the same",
    WRONG_RANK: "it names a rank that has already joined or is not expected here",
    CROSSED: "the two have called each other at once, and the call of the higher rank holds",
}

_KINDS: Final = {WRONG_JOB: "job", WRONG_EPOCH: "epoch", WRONG_TOKEN: "token"}


def check_job(hello: Record, job: int, epoch: int) -> int:
    """Return why a peer that has proved nothing yet cannot belong to this job; zero if it may."""
    if hello.job != job:
        return WRONG_JOB
    return OK if hello.epoch == epoch else WRONG_EPOCH


def refusal_kind(status: int) -> str:
    """Return the word under which a refusal is counted."""
    return _KINDS.get(status, "settings")


def refusal_text(status: int) -> str:
    """Return in words why a handshake was refused."""
    return _REASONS.get(status, f"unknown reason {status}")


@dataclass(frozen=True)
class Record:
    """One record of a handshake."""

    job: int
    epoch: int
    rank: int
    peer: int
    size: int
    config: bytes
    nonce: bytes
    proof: bytes = bytes(_DIGEST_BYTES)
    status: int = OK
    relayed: int = 0

    def pack(self) -> bytes:
        """Return the record as bytes."""
        who = self.job, self.epoch, self.rank, self.peer, self.size
        return _LAYOUT.pack(_MAGIC, _VERSION, self.status, self.relayed, *who, self.config, self.nonce, self.proof)

    @staticmethod
    def may_start(data: bytes) -> bool:
        """Return whether a record can begin with these bytes."""
        return _MAGIC.startswith(data[: len(_MAGIC)])

    @classmethod
    def unpack(cls, data: bytes) -> Record:
        """Read a record."""
        if len(data) != RECORD_BYTES:
            raise ProtocolError(f"Expected a handshake record of {RECORD_BYTES} bytes, got {len(data)} bytes.")
        magic, version, status, relayed, job, epoch, rank, peer, size, config, nonce, proof = _LAYOUT.unpack(data)
        if magic != _MAGIC:
            raise ProtocolError(f"Expected a handshake that starts with {_MAGIC!r}, got {magic!r}.")
        if version != _VERSION:
            raise ProtocolError(f"Expected a handshake of version {_VERSION}, got version {version}.")
        record = cls(job, epoch, rank, peer, size, config, nonce, proof, status, relayed)
        if record.pack() != data:
            raise ProtocolError("Expected a handshake whose reserved byte is zero.")
        return record


class Credentials:
    """What a rank shows to its peers, and demands of them."""

    def __init__(self, rank: int, size: int, job_id: bytes | str, epoch: int, token: bytes, config: bytes) -> None:
        if len(token) < _MIN_TOKEN_BYTES:
            raise InvalidParameterError(
                f"connect(token=...) must have at least {_MIN_TOKEN_BYTES} bytes (secrets.token_bytes(32)). "
                f"Got {len(token)}."
            )
        if not 0 <= epoch < 2**32:
            raise InvalidParameterError(f"connect(epoch=...) must be from 0 to 2**32 - 1. Got {epoch}.")
        self.rank = rank
        self.size = size
        self.job = job_code(job_id)
        self.epoch = epoch
        self._token = token
        self._config = hashlib.sha256(config).digest()

    def hello(self, peer: int, status: int = OK, *, relayed: int = 0) -> Record:
        """Return a record from this rank to `peer`, without a proof."""
        nonce = secrets.token_bytes(_DIGEST_BYTES)
        settings = self.job, self.epoch, self.rank, peer, self.size, self._config, nonce
        return Record(*settings, status=status, relayed=relayed)

    def sign(self, record: Record, label: bytes, *before: Record) -> Record:
        """Return `record` with the proof that this rank holds the token."""
        return replace(record, proof=self._proof(label, *before, record))

    def verifies(self, record: Record, label: bytes, *before: Record) -> bool:
        """Return whether the proof in `record` shows that its speaker holds the token."""
        return hmac.compare_digest(record.proof, self._proof(label, *before, record))

    def compare(self, hello: Record) -> int:
        """Return why a peer that holds the token does not fit all the same; zero if it does."""
        if hello.size != self.size:
            return WRONG_SIZE
        if not hmac.compare_digest(hello.config, self._config):
            return WRONG_CONFIG
        return OK if hello.peer == self.rank else WRONG_RANK

    def _proof(self, label: bytes, *records: Record) -> bytes:
        digest = hmac.new(self._token, label, hashlib.sha256)
        for record in records:
            digest.update(replace(record, proof=bytes(_DIGEST_BYTES)).pack())
        return digest.digest()


def receive_exactly(sock: socket.socket, n_bytes: int) -> bytes:
    """Return the next bytes of a blocking socket; fewer only where the peer has closed it."""
    data = b""
    while len(data) < n_bytes:
        more = sock.recv(n_bytes - len(data))
        if not more:
            break
        data += more
    return data
