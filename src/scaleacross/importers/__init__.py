"""Converts cluster descriptions that operators have into a topology with real host names (``scaleacross import``).

There is one small file per source. Each returns ``Found``: hosts with their building, zone and rack. ``assemble`` turns
it into a topology. No source states bandwidth or latency, except InfraGraph, whose figures are not read yet. Links
within buildings are therefore those of a standard building. The user states links between buildings, and each figure
names its origin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from scaleacross.catalogue.yaml_source import Source
from scaleacross.importers import clouds, hosts, infragraph, kubernetes, slurm
from scaleacross.importers.found import Found

Importer = Callable[[Sequence[Source]], Found]

IMPORTERS: Final[Mapping[str, Importer]] = {
    "slurm": slurm.read,
    "kubernetes": kubernetes.read,
    "aws": clouds.read_aws,
    "oci": clouds.read_oci,
    "gcp": clouds.read_gcp,
    "hosts": hosts.read,
    "infragraph": infragraph.read,
}
