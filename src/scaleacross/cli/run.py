"""The commands run and bench: execute a launch file with torchrun."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scaleacross.cli.frame import answer, output_folder
from scaleacross.errors import InputError

if TYPE_CHECKING:
    from scaleacross.spec.launch import LaunchConfig

LaunchFile = Annotated[
    Path,
    typer.Argument(
        metavar="LAUNCH.json", help="Written by `scaleacross plan -o DIR` and `scaleacross emit --to launch`."
    ),
]
Local = Annotated[bool, typer.Option("--local", help="Start all ranks on this machine, whatever hosts the plan names.")]


def run_command(
    launch: LaunchFile,
    program: Annotated[list[str], typer.Argument(metavar="-- PROGRAM [ARGUMENTS...]", help="As torchrun takes it.")],
    local: Local = False,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=1,
            max=65535,
            help="Where torchrun's own processes meet (several hosts). Default: 29500, or the one after the rendezvous.",
        ),
    ] = None,
    dumps: Annotated[
        Path | None,
        typer.Option(
            "--dumps",
            metavar="DIR",
            file_okay=False,
            help="Every rank writes its trace there when it ends; `scaleacross diagnose DIR` reads them.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands and start nothing.")] = False,
) -> None:
    """Run a training program on the ranks and process groups of a plan.

    On one host it starts torchrun with one process per rank of the plan and SCALEACROSS_LAUNCH set, which backend
    "cpu:scaleacross" reads. For several hosts it prints the command of each host, in rank order. A program that calls
    scaleacross.runtime.start.start(...) starts with a constant number of store operations per rank.

    \b
    Examples:
      scaleacross run build/small/launch.json --local -- examples/train.py --steps 20
      scaleacross run launch.json --local --dumps dumps/ -- train.py
      scaleacross run launch.json --dry-run -- train.py
      scaleacross run launch.json -- -m mypackage.train --config big.toml
    """
    from scaleacross.runtime.launch_file import read_launch
    from scaleacross.runtime.start_commands import commands, dumping_into, start

    config = read_launch(launch)
    if not program:
        raise InputError("no program: scaleacross run LAUNCH.json -- train.py")
    found = commands(config, launch, program, port, local, dumps)
    if dry_run or len(found) > 1:
        typer.echo("\n".join(found))
        if not dry_run:
            typer.echo(f"{len(found)} hosts: run each line on its host, or all ranks here with --local", err=True)
        return
    code = start(config, launch, program, dumping_into(dumps))
    if code and dumps is not None:
        typer.echo(f"the ranks ended with exit code {code}: scaleacross diagnose {shlex.quote(str(dumps))}", err=True)
    raise typer.Exit(code)


def bench_command(
    launch: Annotated[
        Path | None, typer.Argument(metavar="[LAUNCH.json]", help="Written by `scaleacross plan -o DIR`.")
    ] = None,
    op: Annotated[
        str, typer.Option("--op", help="all_reduce, all_gather, reduce_scatter, all_to_all or broadcast.")
    ] = "all_reduce",
    axis: Annotated[str | None, typer.Option("--axis", help="Groups of this axis. Default: the largest.")] = None,
    algorithm: Annotated[
        str | None, typer.Option("--algorithm", help="Instead of the plan's: ring, direct, halving_doubling, ....")
    ] = None,
    smallest: Annotated[str, typer.Option("--min", metavar="SIZE", help="First size.")] = "1KiB",
    largest: Annotated[str, typer.Option("--max", metavar="SIZE", help="Last size.")] = "16MiB",
    factor: Annotated[int, typer.Option("--factor", min=2, help="From one size to the next.")] = 4,
    iterations: Annotated[int, typer.Option("--iterations", min=1, help="Timed runs per size.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON and nothing else.")] = False,
    gemm: Annotated[bool, typer.Option("--gemm", help="Time the matrix products of training on this GPU.")] = False,
    attention: Annotated[bool, typer.Option("--attention", help="Time causal attention on this GPU.")] = False,
    device: Annotated[
        str | None, typer.Option("--device", help="cuda or cpu. Default: a GPU where torch sees one.")
    ] = None,
    accelerator: Annotated[
        str | None, typer.Option("--accelerator", metavar="NAME", help="What the rows call the device.")
    ] = None,
    output: Annotated[Path, output_folder("Where the kernels' CSV files go.")] = Path(),
) -> None:
    """Time a collective of a plan as nccl-tests does, or the kernels of this machine's GPU.

    A collective runs on all ranks on this machine; the plan's prediction and gloo's time are shown, too.
    --gemm and --attention need no plan. They write gemm.csv and attention.csv, which calibrate reads: about a minute on a GPU,
    in the layouts of training and at clocks under load. On a processor shapes are few and small: that only shows that it runs.

    algbw is size over time, busbw the rate of a link that explains it, #wrong counts elements that differ from the exact result.
    'predicted' is the plan's time on the plan's network: on another machine the error says how the two differ.

    \b
    Examples:
      scaleacross bench build/small/launch.json --axis dp_shard --op reduce_scatter
      scaleacross bench build/small/launch.json --algorithm ring --max 64MiB --json
      scaleacross bench --gemm --attention -o sweep/
      scaleacross calibrate --gemm sweep/gemm.csv --attention sweep/attention.csv -o fleet/
    """
    if gemm or attention:
        if launch is not None or as_json:
            raise typer.BadParameter("--gemm and --attention time kernels: they take neither LAUNCH.json nor --json")
        _bench_kernels(gemm, attention, device, accelerator, output)
        return
    if launch is None:
        raise typer.BadParameter("give LAUNCH.json to time a collective, or --gemm, --attention to time kernels")
    if device or accelerator:
        raise typer.BadParameter("--device and --accelerator go with --gemm or --attention")
    from scaleacross.report.runtime_bench import bench_report
    from scaleacross.runtime.bench import BenchRequest, bench
    from scaleacross.runtime.launch_file import read_launch
    from scaleacross.units import parse_bytes

    try:
        sizes = parse_bytes(smallest), parse_bytes(largest)
    except ValueError as error:
        raise InputError(f"--min or --max: {error}") from None
    config = read_launch(launch)
    request = BenchRequest(
        op=op,
        axis=axis or _largest_axis(config),
        algorithm=algorithm,
        first_bytes=int(sizes[0]),
        last_bytes=int(sizes[1]),
        factor=factor,
        iterations=iterations,
    )
    result = bench(config, launch, request, None if as_json else lambda line: typer.echo(line, err=True))
    answer(result, as_json, bench_report)


def _bench_kernels(gemm: bool, attention: bool, device: str | None, accelerator: str | None, output: Path) -> None:
    """Time this machine's kernels and write one CSV file each, whole or not at all."""
    from scaleacross.emitters import write_files
    from scaleacross.runtime.kernel_bench import attention_rows, bench_csv, bench_of, gemm_rows

    with typer.progressbar(length=1, label="timing kernels", file=sys.stderr) as bar:

        def told(what: str, done: int, total: int) -> None:
            bar.label, bar.length = f"timing {what}", total
            bar.update(done - bar.pos)

        bench = bench_of(device, accelerator, told)
        files = {"gemm.csv": bench_csv(gemm_rows(bench))} if gemm else {}
        files |= {"attention.csv": bench_csv(attention_rows(bench))} if attention else {}
    written = write_files(files, output)
    options = " ".join(f"--{path.stem} {path}" for path in written)
    typer.echo(
        f"wrote {', '.join(map(str, written))} for '{bench.accelerator}': scaleacross calibrate {options}", err=True
    )


def _largest_axis(config: LaunchConfig) -> str:
    """Return the axis with most ranks per group."""
    if not config.process_groups:
        raise InputError("the plan has one rank: there is no collective to time")
    return max(config.process_groups, key=lambda groups: groups.degree).axis
