"""A rank of a group of two, each at an address of its own: what ``test_tls.py`` runs."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta


def main(rank: int, port: int) -> None:
    """Collectives of two ranks; prints what came of them, as JSON."""
    import group_functions as functions
    import torch
    import torch.distributed as dist

    from scaleacross.runtime.communicator import LinkSettings
    from scaleacross.runtime.secure import SecureSocket

    torch.set_num_threads(1)
    os.environ["SCALEACROSS_LISTEN"] = f"127.0.0.{rank + 1}"
    store = dist.TCPStore("127.0.0.1", port, 2, rank == 0, timedelta(seconds=60))
    links = LinkSettings(share_memory=False)
    group = functions.group(
        store, rank, 2, {"all_reduce": "ring", "all_to_all": "direct"}, settings=links, timeout_s=20
    )
    try:
        right = True
        for size in (1, 1000, 3_000_001):
            tensor = torch.full((size,), float(rank + 1))
            functions.all_reduce(group, tensor)
            right = right and bool((tensor == 3).all())
        rows, got = torch.arange(6.0) + 10 * rank, torch.empty(6)
        functions.all_to_all(group, got, rows)
        right = right and got.tolist() == [
            *(torch.arange(3) + 3 * rank).tolist(),
            *(torch.arange(3) + 3 * rank + 10).tolist(),
        ]
        tensor, cpu = torch.ones(4 << 20), time.process_time()
        for _ in range(8):
            functions.all_reduce(group, tensor)
        said = {"right": right, "cpu_s": (time.process_time() - cpu) / 8}
        links = group._communicator._links()
        said["secure"] = all(isinstance(link.connection, SecureSocket) for link in links) and bool(links)
        store.set(f"done/{rank}", "")
        store.wait([f"done/{1 - rank}"], timedelta(seconds=30))
    except Exception as error:
        said = {"error": str(error)}
    print(json.dumps(said), flush=True)
    store.set(f"end/{rank}", "")
    store.wait([f"end/{1 - rank}"], timedelta(seconds=60))
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
