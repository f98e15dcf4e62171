"""All-reduces over replicas of pipeline ranks with unlike gradients, on trunks that they share.

A collective's price takes all groups that cross a level to send as much as this one. Where the replicas' groups of all pipeline
ranks leave over the same trunks, and start at once, rank r does not take N_r, the seconds if all sent as much as it does, but

    mean_j min(N_j, N_r)        equal shares of those that still send; of the heaviest rank the mean of all

and never sooner than alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scaleacross.cost_models.collectives import Group
from scaleacross.cost_models.levels import RACK
from scaleacross.cost_models.overlap import WINDOW_NAMES
from scaleacross.cost_models.settings import Floats
from scaleacross.cost_models.traffic import Volumes
from scaleacross.cost_models.window_traffic import communicators


def replicas_traffic(volumes: Volumes, group: Group) -> Floats:
    """Traffic of ``dp_replicate`` in the windows, (TRAFFIC_ROWS, ranks); ``volumes`` has a row for every pipeline rank."""
    (traffic,) = communicators("dp_replicate", volumes, group)
    sent, shape = volumes.replica_gradient_bytes, group.shape
    span = int(shape.span[0])
    num_groups = volumes.settings.world_size[0] / shape.degree[0]
    if span < RACK or shape.crossing[0, span] < num_groups or np.ptp(sent) == 0:
        return traffic
    share = np.minimum(sent[:, None], sent[None, :]).mean(axis=1) / sent
    unshared = replace(group, links=group.links._replace(capacity=np.full_like(group.links.capacity, np.inf)))
    (alone,) = communicators("dp_replicate", volumes, unshared)
    windows = len(WINDOW_NAMES)
    spared = (1 - share) * traffic[windows:]
    return np.maximum(traffic - np.concatenate([spared, spared]), alone)
