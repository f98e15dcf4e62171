"""emit() writes everything or leaves things as they were."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from plans import make_plan

from scaleacross.emitters import EMITTERS, emit, write_files
from scaleacross.errors import EmitError, InputError
from scaleacross.spec.parallelism import Degrees

PLAN = make_plan(Degrees(tp=2, pp=2, dp_shard=5), num_micro_batches=2)


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("target", [name for name in EMITTERS if name != "recovery"])  # which needs failure rates
def test_every_target_writes_what_it_renders(target: str, tmp_path: Path) -> None:
    written = emit(PLAN, target, tmp_path / "new" / "place")
    files = EMITTERS[target](PLAN)
    assert {
        str(path.relative_to(tmp_path / "new" / "place")): path.read_text(encoding="utf-8") for path in written
    } == files
    assert emit(PLAN, target, tmp_path / "new" / "place") == written  # again, over its own files
    for path in written:
        assert os.access(path, os.X_OK) == (path.suffix in (".sh", ".sbatch"))
    assert {path.name for path in (tmp_path / "new" / "place").iterdir()} == {name.split("/")[0] for name in files}


def test_unknown_target_names_the_nearest() -> None:
    with pytest.raises(InputError, match=r"there are launch, torchrun, .*did you mean 'megatron'"):
        emit(PLAN, "megatorn", "nowhere")


def test_refusal_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(EmitError):
        emit(make_plan(Degrees(tp=4, pp=5), schedule="GPipe"), "megatron", tmp_path / "out")
    assert everything(tmp_path) == []


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(InputError, match="out is a file: a folder is needed"):
        emit(PLAN, "launch", tmp_path / "out")
    with pytest.raises(InputError, match="out is a file: a folder is needed"):
        emit(PLAN, "launch", tmp_path / "out" / "deeper")
    assert (tmp_path / "out").read_text() == "mine"
    assert everything(tmp_path) == ["out"]


def test_a_folder_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "launch.json").mkdir()
    with pytest.raises(InputError, match=r"launch\.json is a folder"):
        emit(PLAN, "launch", tmp_path)
    assert everything(tmp_path) == ["launch.json"]


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_interruption_leaves_the_old_files(
    tmp_path: Path, failure: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files({"a": "old", "b": "old"}, tmp_path)
    write_text = Path.write_text

    def fail_on_second(path: Path, text: str, *args: object, **kwargs: object) -> int:
        if text == "new b":
            write_text(path, "half", encoding="utf-8")
            raise failure
        return write_text(path, text, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "write_text", fail_on_second)
    expected = InputError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(expected):
        write_files({"a": "new a", "b": "new b"}, tmp_path)
    with pytest.raises(expected):
        write_files({"a": "new a", "b": "new b"}, tmp_path / "made" / "now")
    assert everything(tmp_path) == ["a", "b"]
    assert (tmp_path / "a").read_text() == "old"
