"""Published ``config.json`` files, and small ones for special cases of the readers, with counts of transformers'
classes.

``published_configs.json`` holds the keys of the published files under ``config``, without those that name tokens and
data types. ``parameters`` holds the result of ``sum(p.numel() for p in
AutoModelForCausalLM.from_config(...).parameters())`` on the meta device. The versions were transformers 5.23.0 and
torch 2.13.0. Kimi K2 uses the class of deepseek_v3; Gemma 3 and Qwen3-VL are their text models.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parent / "published_configs.json"
PUBLISHED: dict[str, dict[str, Any]] = json.loads(_FILE.read_text())
CONFIGS: dict[str, dict[str, Any]] = {name: entry["config"] for name, entry in PUBLISHED.items()}
COUNTED: dict[str, int] = {name: entry["parameters"] for name, entry in PUBLISHED.items()}
