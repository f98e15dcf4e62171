"""Read a file of measurements, plain or gzip, with a digest that identifies it wherever it is quoted."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scaleacross.errors import InputError, unreadable

DIGEST_DIGITS: Final = 12
_GZIP_MAGIC: Final = b"\x1f\x8b"


@dataclass(frozen=True)
class DataFile:
    """The text of a file; ``digest`` is the start of the SHA-256 of its stored bytes."""

    path: Path
    text: str
    digest: str

    @property
    def label(self) -> str:
        """Name of the file in provenance: ``gemm.csv (sha256 0123456789ab)``."""
        return f"{self.path.name} (sha256 {self.digest})"


MAX_FILE_BYTES = 64 * 2**20


def read_data_file(path: str | Path) -> DataFile:
    """Return the UTF-8 text of ``path``, unpacked if it is gzip.

    Raises:
        InputError: it cannot be read, is damaged, is no text, or is empty.
    """
    path = Path(path)
    try:
        if (size := path.stat().st_size) > MAX_FILE_BYTES:
            raise InputError(f"{path}: {size / 2**20:.0f} MiB; files up to {MAX_FILE_BYTES // 2**20} MiB are read")
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if raw.startswith(_GZIP_MAGIC) else raw).decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: cannot be read: {unreadable(error)}") from None
    except (EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read: damaged gzip ({error})") from None
    if not text.strip():
        raise InputError(f"{path}: the file is empty")
    return DataFile(path, text, hashlib.sha256(raw).hexdigest()[:DIGEST_DIGITS])
