"""The command diagnose: find the rank or link at fault in a hang or a slow run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scaleacross.cli.frame import answer, searching


def diagnose_command(
    dumps: Annotated[
        list[Path], typer.Argument(metavar="DUMPS...", help="Directories or files; each file's name ends in its rank.")
    ],
    slow_ratio: Annotated[
        float, typer.Option("--slow", metavar="RATIO", help="A link this many times slower than predicted is slow.")
    ] = 2.0,
    perfetto: Annotated[
        Path | None,
        typer.Option(
            "--perfetto", metavar="FILE", dir_okay=False, help="Write measured and predicted times for Perfetto."
        ),
    ] = None,
    launch: Annotated[
        Path | None,
        typer.Option(
            "--launch",
            metavar="LAUNCH.json",
            help="The job's: names hosts and levels, predicts for dumps without predictions.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the diagnosis as JSON and nothing else.")] = False,
) -> None:
    """Name the one rank or link that hundreds of stuck ranks wait for, or that makes them slow.

    For a log of `scaleacross coordinate` (*.jsonl) it names what held epochs of replicas up.

    Reads flight-recorder dumps, pickled or JSON, of the bundled runtime and of PyTorch's own groups
    (TORCH_FR_BUFFER_SIZE > 0, TORCH_FR_DUMP_TEMP_FILE). Nothing in a dump is ever executed. Needs no torch.

    \b
    Verdicts: all_good, not_judged (exit code 2), process_dead, not_joined, stuck_outside, stuck_before, stuck_inside, stuck_link,
      type_mismatch, order_mismatch, size_mismatch, dtype_mismatch, deadlock, slow_rank, slow_link.

    \b
    Examples:
      scaleacross diagnose dumps/
      scaleacross diagnose dumps/ --json | jq .root
      scaleacross diagnose run.jsonl
      scaleacross diagnose dumps/ --launch launch.json --perfetto trace.json
    """
    if len(dumps) == 1 and dumps[0].suffix == ".jsonl":
        from scaleacross.api.replica_runs import hung_epochs

        for line in hung_epochs(dumps[0]) or ("nothing held an epoch of replicas up",):
            typer.echo(line)
        return
    from scaleacross.api import diagnose
    from scaleacross.report.diagnosis import diagnosis_report
    from scaleacross.runtime.launch_file import read_launch

    config = None if launch is None else read_launch(launch)
    with searching() as progress:
        found = diagnose(*dumps, slow_ratio=slow_ratio, perfetto=perfetto, launch=config, progress=progress)
    answer(found, as_json, diagnosis_report)
    if found.verdict == "not_judged":
        typer.echo("not judged: the evidence is not whole, see the notes", err=True)
    if perfetto is not None:
        typer.echo(f"wrote {perfetto}; open it at https://ui.perfetto.dev", err=True)
    if found.verdict == "not_judged":
        raise typer.Exit(2)
