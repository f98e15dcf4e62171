"""Connections between networks under TLS give the same results, and a wrong certificate is reported to its owner."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the runtime needs torch (pip install 'scaleacross[runtime]')")

from scaleacross.errors import InputError
from scaleacross.runtime.secure import INSIDE, PATHS, leaves_network

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates with")

LIMIT_S = 100


def certificate(folder: Path, name: str) -> dict[str, str]:
    """The settings of a rank whose certificate is its own authority."""
    key, own = folder / f"{name}.key", folder / f"{name}.pem"
    how = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    subprocess.run([*how, "-subj", f"/CN={name}", "-keyout", key, "-out", own], check=True, capture_output=True)
    return dict(zip(PATHS, map(str, (own, key, own)), strict=True))


def said_by_both(*settings: dict[str, str]) -> list[dict[str, Any]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = Path(__file__).with_name("tls_cases.py")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SCALEACROSS_")}
    ranks = [
        subprocess.Popen([sys.executable, script, str(rank), str(port)], env=clean | own, stdout=subprocess.PIPE)
        for rank, own in enumerate(settings)
    ]
    return [json.loads(rank.communicate(timeout=LIMIT_S)[0]) for rank in ranks]


def test_the_same_results_come_over_tls(tmp_path: Path) -> None:
    own = certificate(tmp_path, "job")
    for said in said_by_both(own, own):
        assert said["right"] and said["secure"]
    for said in said_by_both(own | {INSIDE: "127.0.0.0/8"}, own | {INSIDE: "127.0.0.0/8"}):
        assert said["right"] and not said["secure"], "inside a network nothing is encrypted"


def test_a_wrong_certificate_and_none_are_named(tmp_path: Path) -> None:
    own, other = certificate(tmp_path, "job"), certificate(tmp_path, "other")
    errors = [said["error"] for said in said_by_both(own, other)]
    assert all("no TLS with 127.0.0" in error and "the same authority has signed" in error for error in errors), errors
    errors = [said["error"] for said in said_by_both(own, {})]
    assert all("all ranks need SCALEACROSS_TLS_CERTIFICATE" in error for error in errors), errors


def test_which_connections_leave_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not leaves_network("10.1.0.1", "10.2.0.1"), "off unless it is set"
    monkeypatch.setenv(PATHS[0], str(tmp_path / "none.pem"))
    assert leaves_network("10.1.0.1", "10.2.0.1") and not leaves_network("10.1.0.1", "10.1.0.1")
    monkeypatch.setenv(INSIDE, "10.1.0.0/16, 10.2.0.0/16")
    assert leaves_network("10.1.0.1", "10.2.0.1") and not leaves_network("10.1.0.1", "10.1.9.9")
    monkeypatch.setenv(INSIDE, "10.1.0.0/99")
    with pytest.raises(InputError, match="networks like"):
        leaves_network("10.1.0.1", "10.2.0.1")
