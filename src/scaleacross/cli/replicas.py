"""The commands coordinate (membership of replicas during training) and goodput (what such a run committed)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from scaleacross.cli.frame import answer
from scaleacross.errors import InputError


def coordinate_command(
    replicas: Annotated[int, typer.Option("--replicas", min=1, help="The first epoch waits for so many.")],
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where replicas connect; port 0 takes a free one.")
    ] = "127.0.0.1:29400",
    shards: Annotated[int, typer.Option("--shards", min=1, help="Ranks of a replica.")] = 1,
    silent_s: Annotated[
        float,
        typer.Option("--silent", min=0.1, metavar="SECONDS", help="A member that says nothing for so long is lost."),
    ] = 10.0,
    log: Annotated[
        Path | None, typer.Option("--log", dir_okay=False, help="Append what happens, for `scaleacross goodput`.")
    ] = None,
) -> None:
    """Coordinate replicas that go on training when some are lost (docs/replicas.md). Ends with Ctrl-C.

    Replicas connect from `scaleacross.runtime.replicas.member.Replicas`. They must know SCALEACROSS_REPLICAS_TOKEN, which this
    command reads too; without it anybody who reaches the port is a replica, so only a loopback address is accepted.

    \b
    Examples:
      scaleacross coordinate --replicas 4 --log run.jsonl
      SCALEACROSS_REPLICAS_TOKEN=$(openssl rand -hex 16) scaleacross coordinate --replicas 16 --shards 8 --listen 10.0.0.1:29400
    """
    from scaleacross.runtime.replicas.coordinator import TOKEN_VARIABLE, run
    from scaleacross.runtime.replicas.membership import Membership

    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InputError(f"--listen {listen}: HOST:PORT is expected, e.g. 10.0.0.1:29400")
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token and host not in ("127.0.0.1", "localhost", "::1"):
        raise InputError(
            f"--listen {listen} is reached from other hosts: set {TOKEN_VARIABLE} here and for every replica"
        )
    if log is not None and log.exists() and log.stat().st_size:
        raise InputError(f"--log {log} holds another run: move it away or choose another file")

    def ready(number: int) -> None:
        typer.echo(f"waiting for {replicas} replicas of {shards} ranks on {host}:{number}", err=True)

    run(Membership(replicas, shards, silent_s), host, int(port), token, log, ready)


def goodput_command(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="What `scaleacross coordinate --log` wrote.")],
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="PLAN.json", help="Adds tokens and the prediction.")
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option(
            "--like",
            metavar="LOG",
            help="Simulate with the time out, stall and pace of this earlier run of the replicas.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the facts as JSON and nothing else.")] = False,
) -> None:
    """Print what a run of replicas has committed, what lost replicas cost, and what the plan had predicted.

    \b
    Examples:
      scaleacross goodput run.jsonl
      scaleacross goodput run.jsonl --like yesterday.jsonl
      scaleacross goodput run.jsonl --plan build/plan.json --json | jq .useful_fraction
    """
    from scaleacross.api import measured_goodput
    from scaleacross.report.replica_run import replica_run_report

    run = measured_goodput(log, plan, like)
    answer(run, as_json, replica_run_report)
