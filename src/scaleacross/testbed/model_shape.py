"""Defines which models the testbed trains. No torch here."""

from __future__ import annotations

from typing import Any

from scaleacross.errors import InputError
from scaleacross.spec.base import Spec


class ModelShape(Spec):
    """The figures of a dense workload that the testbed's model needs."""

    num_layers: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    vocabulary_size: int

    @classmethod
    def of(cls, workload: dict[str, Any]) -> ModelShape:
        """Return the shape of a workload's mapping. Raises InputError for a model that the testbed does not train."""
        wanted = {"family": "dense_transformer", "gated_mlp": False, "tied_embedding": False, "bias": False}
        for key, value in wanted.items():
            if workload.get(key, value) != value:
                raise InputError(f"the testbed trains models with {key}: {value}, not {workload[key]}")
        shape = cls.model_validate({name: workload[name] for name in cls.model_fields})
        heads, width = workload["num_kv_heads"], workload["head_dim"]
        if heads != shape.num_heads or width != shape.hidden_size // shape.num_heads:
            raise InputError(
                f"the testbed trains plain attention: num_kv_heads {shape.num_heads} and head_dim "
                f"{shape.hidden_size // shape.num_heads}, not {heads} and {width}"
            )
        return shape
