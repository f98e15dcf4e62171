"""The models of torchtitan 0.3.0, and the one that matches a workload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from scaleacross.errors import InputError
from scaleacross.targets.common import decoder_of
from scaleacross.targets.law import JobLaw, Subject
from scaleacross.workloads.decoder import Decoder
from scaleacross.workloads.identity import Rope, RopeScaling
from scaleacross.workloads.layer_kinds import Attention, Latent
from scaleacross.workloads.layer_profile import ModelProfile

# torchtitan does not train router biases, some counts include them: 256 · 58 of DeepSeek-V3's 671e9 parameters.
PARAMETER_TOLERANCE: Final = 1e-6


@dataclass(frozen=True)
class Flavor:
    """A model of torchtitan 0.3.0: package, flavor, layers, hidden size, vocabulary, parameters (counted on the meta device)."""

    package: str
    name: str
    num_layers: int
    hidden_size: int
    vocabulary_size: int
    num_parameters: int


FLAVORS: Final = (
    Flavor("llama3", "debugmodel", 6, 256, 2048, 6_163_712),
    Flavor("llama3", "1B", 16, 2048, 128_256, 1_235_814_400),
    Flavor("llama3", "3B", 28, 3072, 128_256, 3_212_749_824),
    Flavor("llama3", "8B", 32, 4096, 128_256, 8_030_261_248),
    Flavor("llama3", "70B", 80, 8192, 128_256, 70_553_706_496),
    Flavor("llama3", "405B", 126, 16_384, 128_256, 405_853_388_800),
    Flavor("qwen3", "0.6B", 28, 1024, 151_936, 596_049_920),
    Flavor("qwen3", "1.7B", 28, 2048, 151_936, 1_720_574_976),
    Flavor("qwen3", "4B", 36, 2560, 151_936, 4_022_468_096),
    Flavor("qwen3", "8B", 36, 4096, 151_936, 8_190_735_360),
    Flavor("qwen3", "14B", 40, 5120, 151_936, 14_768_307_200),
    Flavor("qwen3", "32B", 64, 5120, 151_936, 32_762_123_264),
    Flavor("qwen3", "30B-A3B", 48, 2048, 151_936, 30_532_122_624),
    Flavor("qwen3", "235B-A22B", 94, 4096, 151_936, 235_093_634_560),
    Flavor("deepseek_v3", "16B", 27, 2048, 102_400, 15_706_484_224),
    Flavor("deepseek_v3", "236B", 60, 5120, 102_400, 235_741_434_880),
    Flavor("deepseek_v3", "671B", 61, 7168, 129_280, 671_026_404_352),
    Flavor("gpt_oss", "20b", 24, 2880, 201_088, 20_914_757_184),
    Flavor("gpt_oss", "120b", 36, 2880, 201_088, 116_829_156_672),
)


def find_flavor(profile: ModelProfile) -> Flavor | None:
    """Return the torchtitan model with equal layers, hidden size, vocabulary and parameters; None without one."""
    hidden = profile.embedding.hidden_size
    for flavor in FLAVORS:
        shape = (flavor.num_layers, flavor.hidden_size, flavor.vocabulary_size)
        close = abs(profile.total_parameters - flavor.num_parameters) <= PARAMETER_TOLERANCE * flavor.num_parameters
        if shape == (profile.num_layers, hidden, profile.vocabulary_size) and close:
            return flavor
    return None


def missing_flavor(profile: ModelProfile) -> str:
    """Return the refusal of a model that torchtitan does not ship."""
    known = ", ".join(f"{flavor.package} {flavor.name}" for flavor in FLAVORS)
    return (
        f"model '{profile.name}' ({profile.num_layers} layers × {profile.embedding.hidden_size}, "
        f"{profile.total_parameters:,} parameters) is none of torchtitan 0.3.0's: {known}"
    )


ROPES: Final = {"llama3": "ComplexRoPE", "qwen3": "CosSinRoPE", "deepseek_v3": "ComplexRoPE", "gpt_oss": "CosSinRoPE"}
"""Rotary embedding of each package (models/common/rope.py)."""


def rope_of(decoder: Decoder) -> Rope | None:
    """Return the rotary embedding that a workload states."""
    mixers = [kind.mixer for kind in decoder.kinds.values() if isinstance(kind.mixer, Attention | Latent)]
    return next((mixer.rope for mixer in mixers if isinstance(mixer.rope, Rope)), None)


def refused_scaling(scaling: RopeScaling | None, package: str) -> str:
    """Return the refusal of a rotary scaling that a package lacks; empty where it has it."""
    rope = ROPES[package]
    known = ("llama3", "yarn") if rope == "ComplexRoPE" else ("yarn",)
    if scaling is None:
        return ""
    if package == "deepseek_v3" and scaling.mscale != scaling.mscale_all_dim:
        return f"mscale {scaling.mscale} differs from mscale_all_dim {scaling.mscale_all_dim}: torchtitan 0.3.0 has one for both"
    if scaling.kind in known:
        return ""
    return f"rotary scaling {scaling.kind}: torchtitan 0.3.0's {rope} has {' and '.join(known)}"


def _refused_rope(subject: Subject) -> str:
    flavor = find_flavor(subject.profile)
    if flavor is None:
        return ""  # another law refuses the model
    try:
        rope = rope_of(decoder_of(subject.job))
    except InputError as error:
        return str(error)
    return refused_scaling(rope.scaling if rope else None, flavor.package)


def _refused_start(subject: Subject) -> str:
    """Return the refusal of a checkpoint path (components/checkpointer/base.py); empty where it is accepted."""
    tuning = subject.job.fine_tuning
    path = tuning.checkpoint if tuning else None
    if path is None or path.startswith("/") or "://" in path:
        return ""
    return f"fine_tuning.checkpoint {path!r}: torchtitan 0.3.0 takes absolute paths and URIs only"


JOB_LAWS: Final = (
    JobLaw(lambda s: find_flavor(s.profile) is not None, lambda s: missing_flavor(s.profile)),
    JobLaw(lambda s: not _refused_rope(s), _refused_rope),
    JobLaw(lambda s: not _refused_start(s), _refused_start),
)
