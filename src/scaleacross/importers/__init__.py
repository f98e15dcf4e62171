"""Cluster descriptions that operators already have -> a topology with real host names.

One small file per source; each returns ``Found``: hosts with their building, zone and rack. ``assemble`` makes a topology of it.
None of these sources states bandwidth or latency (InfraGraph does, which is not read yet): links inside are those of a standard
building, links between buildings are stated by the user, and each figure names its origin.
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
