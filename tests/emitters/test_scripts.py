"""run_node.sh and slurm.sbatch are run for real, against stand-ins for torchrun, srun and scontrol."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from plans import make_plan, two_buildings
from pydantic import ValidationError
from shells import bash, needs_bash, stand_in

from emitters.test_recovery import with_failures
from scaleacross.emitters import EMITTERS, emit, recovery
from scaleacross.emitters.shell import plain
from scaleacross.errors import EmitError
from scaleacross.solvers.network_of_plan import with_network
from scaleacross.spec.parallelism import Degrees, GridAxis
from scaleacross.spec.plan import Plan
from scaleacross.spec.slurm import Slurm
from scaleacross.workloads.problem import problem_of

SCRIPT_TARGETS = ("torchrun", "torchtitan", "megatron")
PP_INSIDE: tuple[GridAxis, ...] = ("tp", "pp", "cp", "dp_shard", "dp_replicate")


def plan_of_20(order: tuple[GridAxis, ...] = PP_INSIDE) -> Plan:
    """A plan with tp 4 on every host and dp_shard 5 over 2 hosts of east and 3 of west."""
    return make_plan(Degrees(tp=4, dp_shard=5), order, num_micro_batches=1)


def renamed(plan: Plan, name: str) -> Plan:
    """``plan`` with a job name that the spec would refuse."""
    return plan.model_copy(update={"job": plan.job.model_copy(update={"name": name})})


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "ranks.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@needs_bash
@pytest.mark.parametrize("target", SCRIPT_TARGETS)
@pytest.mark.parametrize(
    "name", ["plain", "a b; touch pwned", "$(touch pwned)`touch pwned`", "x\ntouch pwned\n#SBATCH --x", "'\"\\"]
)
def test_scripts_parse_and_no_name_becomes_code(target: str, name: str, tmp_path: Path) -> None:
    written = emit(renamed(plan_of_20(), name), target, tmp_path)
    scripts = [path for path in written if path.suffix in (".sh", ".sbatch")]
    assert len(scripts) >= 2
    for script in scripts:
        text = script.read_text(encoding="utf-8")
        assert "set -euo pipefail" in text
        assert "\n#SBATCH --x" not in text
        assert bash("-n", script, cwd=tmp_path).stderr == ""
        bash(
            script, cwd=tmp_path, NODE_NAME="nowhere"
        )  # refuses unknown hosts and a missing allocation; nothing is run
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("name", ["a b", "a;b", "$(x)", "", "-rf", "#", "a\nb", "ä", "a/b"])
def test_host_names_must_be_plain(name: str) -> None:
    with pytest.raises(EmitError, match="rename the building"):
        plain(name)
    assert plain("east-h00001.example_1") == "east-h00001.example_1"


@needs_bash
def test_run_node_finds_its_rank_by_host_name(tmp_path: Path) -> None:
    emit(plan_of_20(), "torchrun", tmp_path)
    stand_in(tmp_path / "bin", "torchrun", 'printf "%s\\n" "$@" > "$RECORD"')
    script, record = tmp_path / "torchrun/run_node.sh", tmp_path / "argv"
    done = bash(
        script,
        "train.py",
        "--x",
        "a b",
        cwd=tmp_path,
        path=tmp_path / "bin",
        NODE_NAME="west-h00001",
        RECORD=str(record),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert record.read_text().splitlines() == [
        "--nnodes", "5", "--nproc-per-node", "4", "--node-rank", "3", "--rdzv-backend", "static",
        "--master-addr", "east-h00000", "--master-port", "29500", "train.py", "--x", "a b",
    ]  # fmt: skip


@needs_bash
def test_run_node_takes_real_host_names_and_nccl_settings(tmp_path: Path) -> None:
    plan = plan_of_20()
    network = with_network(problem_of(plan.job), plan.decision).decision.network
    plan = plan.model_copy(update={"decision": plan.decision.model_copy(update={"network": network})})
    for target in ("torchrun", "nccl"):
        emit(plan, target, tmp_path)
    hosts = tmp_path / "torchrun/hosts.txt"
    hosts.write_text(
        hosts.read_text().replace("west-h00002 4", "node-7.example 4").rstrip("\n")
    )  # the last line has no line end
    stand_in(tmp_path / "bin", "torchrun", 'echo "$6 $NCCL_IB_QPS_PER_CONNECTION" > "$RECORD"')
    stand_in(tmp_path / "bin", "hostname", "echo node-7.example")
    done = bash(tmp_path / "torchrun/run_node.sh", cwd=tmp_path, path=tmp_path / "bin", RECORD=str(tmp_path / "argv"))
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "argv").read_text() == "4 8\n"


@needs_bash
def test_run_node_takes_the_plans_time_outs_and_none_of_an_earlier_plan(tmp_path: Path) -> None:
    """run_node.sh uses the time-outs of its plan only.

    It once read files next to its folder, whatever plan had left them.
    """
    plan = with_failures()
    for stale in ("recovery/nccl.env", "nccl.env"):
        (tmp_path / stale).parent.mkdir(exist_ok=True)
        (tmp_path / stale).write_text("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=321\n")
    stand_in(tmp_path / "bin", "torchrun", 'echo "${TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC:-none}" > "$RECORD"')
    expected = str(recovery.timeouts(plan, plan.goodput).watchdog_s)  # type: ignore[arg-type]
    for one, heartbeat in ((plan, expected), (plan.model_copy(update={"goodput": None}), "none")):
        emit(one, "torchrun", tmp_path)
        done = bash(
            tmp_path / "torchrun/run_node.sh", cwd=tmp_path, path=tmp_path / "bin", NODE_NAME="east-h00000",
            RECORD=str(tmp_path / "argv"),
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        assert (tmp_path / "argv").read_text() == f"{heartbeat}\n"


@needs_bash
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("east-h00000 4", "east-h00000 3", "5 hosts with 19 processes; the plan has 5 hosts with 20"),
        ("east-h00000 4 east-h00000\n", "", "4 hosts with 16 processes"),
        ("east-h00000 4", "east-h00001 4", "host east-h00001 is listed twice"),
        ("east-h00001 4", "other 4", "host east-h00001 is not in"),
    ],
)
def test_run_node_refuses_a_wrong_host_file(old: str, new: str, message: str, tmp_path: Path) -> None:
    emit(plan_of_20(), "torchrun", tmp_path)
    hosts = tmp_path / "torchrun/hosts.txt"
    hosts.write_text(hosts.read_text().replace(old, new))
    stand_in(tmp_path / "bin", "torchrun", "echo must not run >&2")
    done = bash(tmp_path / "torchrun/run_node.sh", cwd=tmp_path, path=tmp_path / "bin", NODE_NAME="east-h00001")
    assert done.returncode == 2
    assert message in done.stderr
    assert "must not run" not in done.stderr


FAKE_SRUN = """
tasks="$(cat "$SLURM_HOSTFILE" | wc -l)"
[[ " $* " == *" --distribution=arbitrary "* && " $* " == *" --ntasks=$tasks "* ]]
while [[ "$1" == --* ]]; do shift; done
declare -A seen=()
for ((task = 0; task < tasks; task++)); do
  host="$(sed -n "$((task + 1))p" "$SLURM_HOSTFILE")"
  SLURM_PROCID=$task SLURM_LOCALID=${seen[$host]:-0} HOST=$host "$@"
  seen[$host]=$((${seen[$host]:-0} + 1))
done
"""


@needs_bash
@pytest.mark.parametrize("target", SCRIPT_TARGETS)
def test_sbatch_starts_every_rank_on_its_host(target: str, tmp_path: Path) -> None:
    emit(plan_of_20(), target, tmp_path)
    folder, tools = tmp_path / target, tmp_path / "bin"
    hosts = folder / "hosts.txt"
    hosts.write_text(hosts.read_text().replace("west-h00002 4", "real-7 4"))
    stand_in(tools, "srun", FAKE_SRUN)
    stand_in(tools, "scontrol", "printf '%s\\n' real-7 east-h00000 east-h00001 west-h00000 west-h00001")
    stand_in(tools, "python", 'echo "$RANK $HOST $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR" >> "$RECORD"')
    done = bash(
        folder / "slurm.sbatch", "train.py", cwd=folder, path=tools, SLURM_JOB_ID="7", SLURM_JOB_NODELIST="x",
        RECORD=str(tmp_path / "ranks"), MEGATRON_LM="/opt/megatron",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    expected = [
        f"{row['rank']} {row['host'].replace('west-h00002', 'real-7')} {row['local']} 20 4 east-h00000"
        for row in table(folder)
    ]
    assert (tmp_path / "ranks").read_text().splitlines() == expected
    assert not list(folder.glob(".slurm_hostfile.*"))


@needs_bash
def test_sbatch_refuses_an_allocation_without_its_hosts(tmp_path: Path) -> None:
    emit(plan_of_20(), "torchrun", tmp_path)
    stand_in(tmp_path / "bin", "scontrol", "echo east-h00000")
    stand_in(tmp_path / "bin", "srun", "echo must not run >&2")
    where = {"cwd": tmp_path / "torchrun", "path": tmp_path / "bin"}
    done = bash("slurm.sbatch", **where, SLURM_JOB_ID="7", SLURM_JOB_NODELIST="x")  # type: ignore[arg-type]
    assert done.returncode == 2
    assert "host east-h00001 of" in done.stderr
    assert "must not run" not in done.stderr


@pytest.mark.parametrize("target", SCRIPT_TARGETS)
@pytest.mark.parametrize("order", [PP_INSIDE, ("tp", "dp_shard", "cp", "pp", "dp_replicate")])
def test_slurm_hostfile_follows_the_rank_table(target: str, order: tuple[GridAxis, ...]) -> None:
    plan = make_plan(Degrees(tp=4, dp_shard=2, pp=2), order)
    files = EMITTERS[target](plan)
    rows = list(csv.DictReader(files[f"{target}/ranks.csv"].splitlines()))
    assert files[f"{target}/slurm_hostfile"].splitlines() == [row["host"] for row in rows]


@needs_bash
def test_split_hosts_are_refused_by_torchrun_and_served_by_slurm(tmp_path: Path) -> None:
    """torchrun refuses hosts that are split between stages, and SLURM runs them.

    With tp 2 a host has two pipeline stages. torchtitan's ranks have all of stage 0 first, so the host is split.
    """
    plan = make_plan(Degrees(tp=2, pp=2, dp_shard=4), PP_INSIDE)
    emit(plan, "torchtitan", tmp_path)
    done = bash(tmp_path / "torchtitan/run_node.sh", cwd=tmp_path, NODE_NAME="east-h00000")
    assert done.returncode == 2
    assert "ranks of host east-h00000 are not consecutive in the rank order of torchtitan" in done.stderr
    assert "use slurm.sbatch" in done.stderr
    rows = table(tmp_path / "torchtitan")
    assert [row["host"] for row in rows[:3]] == ["east-h00000", "east-h00000", "west-h00000"]
    assert sorted((row["host"], row["local"]) for row in rows) == sorted({(row["host"], row["local"]) for row in rows})


@needs_bash
def test_submit_hands_over_the_real_hosts_as_a_file(tmp_path: Path) -> None:
    """submit.sh passes the real hosts as a file and does not ask for spare hosts.

    A list of names on the command line would end at about 7,000 hosts.
    """
    emit(plan_of_20(), "torchrun", tmp_path)
    folder = tmp_path / "torchrun"
    hosts = folder / "hosts.txt"
    hosts.write_text(hosts.read_text().replace("west-h00002 4", "node-7.example 4"))
    stand_in(tmp_path / "bin", "sbatch", 'printf "%s\\n" "$PLAN_DIR" "$@" > "$RECORD"')
    done = bash(
        folder / "submit.sh", "train.py", "a b", cwd=tmp_path, path=tmp_path / "bin", RECORD=str(tmp_path / "argv"),
        SBATCH_OPTIONS="--test-only --qos=high",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    words = [str(folder), "--test-only", "--qos=high", "slurm.sbatch", "train.py", "a b"]
    assert (tmp_path / "argv").read_text().splitlines() == words
    names = ["east-h00000", "east-h00001", "west-h00000", "west-h00001", "node-7.example"]
    assert (folder / "nodes.0.txt").read_text().splitlines() == names
    assert "#SBATCH --nodefile=nodes.0.txt" in (folder / "slurm.sbatch").read_text()


def test_the_batch_script_says_what_the_job_says_of_slurm() -> None:
    slurm = {"partition": "h100", "account": "ai", "time": "2-00", "container": "img:1", "extra": ["--qos=high"]}
    text = EMITTERS["torchrun"](make_plan(Degrees(tp=4), slurm=slurm))["torchrun/slurm.sbatch"]
    for line in ("--partition=h100", "--account=ai", "--time=2-00", "--qos=high", "--gpus-per-node=4"):
        assert f"#SBATCH {line}\n" in text
    assert "--container-image=img:1 --container-mounts=" in text


IMAGES = [
    "/lustre/images/torch.sqsh",
    "./torch.sqsh",
    "nvcr.io#nvidia/pytorch:25.01-py3",
    "docker://nvcr.io#nvidia/pytorch:25",
]


@needs_bash
@pytest.mark.parametrize("image", IMAGES)
def test_images_are_named_as_enroot_takes_them(image: str, tmp_path: Path) -> None:
    """Image names follow enroot's rules.

    They are a squashed file by its path, or a registry before '#'. enroot's import takes a '/' as part of Docker Hub.
    """
    plan = plan_of_20()
    job = plan.job.model_copy(update={"slurm": Slurm(container=image)})
    emit(plan.model_copy(update={"job": job}), "torchrun", tmp_path)
    folder = tmp_path / "torchrun"
    stand_in(tmp_path / "bin", "srun", 'printf "%s\\n" "$@" > "$RECORD"')
    names = "east-h00000 east-h00001 west-h00000 west-h00001 west-h00002"
    stand_in(tmp_path / "bin", "scontrol", f"printf '%s\\n' {names}")
    done = bash(
        folder / "slurm.sbatch", "train.py", cwd=folder, path=tmp_path / "bin", SLURM_JOB_ID="7", SLURM_JOB_NODELIST="x",
        RECORD=str(tmp_path / "argv"), CONTAINER_MOUNTS="/data:/data",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    words = (tmp_path / "argv").read_text().splitlines()
    assert f"--container-image={image}" in words
    assert f"--container-mounts={folder}:{folder},/data:/data" in words
    assert "--cpu-bind=none" in words


def test_an_image_with_a_blank_is_refused() -> None:
    with pytest.raises(ValidationError):
        Slurm(container="/lustre/my images/torch.sqsh")
    assert Slurm(extra=("--constraint=h100&ib", "--reservation=r[1]")).extra[0] == "--constraint=h100&ib"


@needs_bash
def test_many_missing_hosts_are_named_too(tmp_path: Path) -> None:
    """Many missing hosts are named too.

    3,000 names are more than a pipe buffers before its reader stops. The script once ended with 141 and no message.
    """
    plan = make_plan(Degrees(dp_shard=12_000), topology=two_buildings((1000, 2000)))
    emit(plan, "torchrun", tmp_path)
    stand_in(tmp_path / "bin", "scontrol", "echo other")
    where = {"cwd": tmp_path / "torchrun", "path": tmp_path / "bin"}
    done = bash("slurm.sbatch", **where, SLURM_JOB_ID="7", SLURM_JOB_NODELIST="x")  # type: ignore[arg-type]
    assert (done.returncode, done.stderr.partition(" of ")[0]) == (2, "host east-h00000")


@pytest.mark.parametrize(
    "slurm", [{"partition": "a b"}, {"account": "$(x)"}, {"time": "soon"}, {"extra": ["--wrap=a b"]}, {"extra": ["-x"]}]
)
def test_slurm_takes_plain_words_only(slurm: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Slurm.model_validate(slurm)


def test_ranks_that_alternate_between_partitions_are_refused() -> None:
    slurm = {"partition": {"east": "a", "west": "b"}}
    with pytest.raises(EmitError, match=r"slurm.partition a, b: ranks alternate between them"):
        EMITTERS["torchtitan"](make_plan(Degrees(tp=2, pp=2, dp_shard=4), PP_INSIDE, slurm=slurm))


@needs_bash
def test_what_megatron_needs_is_asked_for_before_the_job_waits(tmp_path: Path) -> None:
    """Variables that Megatron-LM needs are checked before the job waits.

    Otherwise a job could wait for hours and then end on every host.
    """
    emit(plan_of_20(), "megatron", tmp_path)
    stand_in(tmp_path / "bin", "sbatch", 'printf "%s\\n" "$MEGATRON_LM" "$@" > "$RECORD"')
    folder = tmp_path / "megatron"
    where = {"cwd": folder, "path": tmp_path / "bin"}
    done = bash("submit.sh", **where, RECORD=str(tmp_path / "argv"))  # type: ignore[arg-type]
    assert done.returncode != 0 and "set MEGATRON_LM to the Megatron-LM checkout" in done.stderr
    assert not (tmp_path / "argv").exists()
    done = bash("submit.sh", "--lr", "1e-4", **where, RECORD=str(tmp_path / "argv"), MEGATRON_LM="/opt/m")  # type: ignore[arg-type]
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "argv").read_text().splitlines() == ["/opt/m", "slurm.sbatch", "--lr", "1e-4"]
    page = (folder / "SUBMIT.md").read_text()
    assert "Set `MEGATRON_LM` to" in page and "--tokenizer-type" in page
