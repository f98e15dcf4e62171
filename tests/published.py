"""Published ``config.json`` files, and small ones that reach the corners of the readers, with counts of transformers' classes.

``published_configs.json`` holds the keys of the files as published (those that name tokens and data types left out) under
``config``, and under ``parameters`` what ``sum(p.numel() for p in AutoModelForCausalLM.from_config(...).parameters())`` gave on
the meta device with transformers 5.23.0 and torch 2.13.0 (Kimi K2 as deepseek_v3, whose class it is; Gemma 3, Qwen3-VL as
their text models).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parent / "published_configs.json"
PUBLISHED: dict[str, dict[str, Any]] = json.loads(_FILE.read_text())
CONFIGS: dict[str, dict[str, Any]] = {name: entry["config"] for name, entry in PUBLISHED.items()}
COUNTED: dict[str, int] = {name: entry["parameters"] for name, entry in PUBLISHED.items()}
