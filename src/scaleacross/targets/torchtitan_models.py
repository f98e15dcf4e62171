"""The models of torchtitan 0.3.0, and which of them a workload is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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
)


def find_flavor(profile: ModelProfile) -> Flavor | None:
    """The torchtitan model with the same layers, hidden size, vocabulary and number of parameters; None where there is none."""
    hidden = profile.embedding.hidden_size
    for flavor in FLAVORS:
        shape = (flavor.num_layers, flavor.hidden_size, flavor.vocabulary_size)
        close = abs(profile.total_parameters - flavor.num_parameters) <= PARAMETER_TOLERANCE * flavor.num_parameters
        if shape == (profile.num_layers, hidden, profile.vocabulary_size) and close:
            return flavor
    return None


def missing_flavor(profile: ModelProfile) -> str:
    """What to say about a model that torchtitan does not ship."""
    known = ", ".join(f"{flavor.package} {flavor.name}" for flavor in FLAVORS)
    return (
        f"model '{profile.name}' ({profile.num_layers} layers × {profile.embedding.hidden_size}, "
        f"{profile.total_parameters:,} parameters) is none of torchtitan 0.3.0's: {known}"
    )
