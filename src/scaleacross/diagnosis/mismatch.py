"""Finds members of a group that issued different operations under the same sequence number; ``waiting`` calls it.

The majority counts as right. (PyTorch's ``fr_trace`` trusts the first rank, so it blames all others when the first rank
is the culprit.) Only operations that did not end are compared: unequal sizes of operations that ended were allowed.
"""

from __future__ import annotations

from collections import Counter
from operator import attrgetter
from typing import Final

from scaleacross.diagnosis.align import Alignment, Instance
from scaleacross.spec.diagnosis import Fault, Verdict
from scaleacross.spec.trace import Operation

UNEQUAL_INPUTS: Final = frozenset(
    ("all_to_all", "all_to_allv", "all_to_all_v_single", "scatter", "all_gather_v", "_reduce_oop", "_broadcast_oop")
)
UNEQUAL_OUTPUTS: Final = frozenset(
    ("all_to_all", "all_to_allv", "all_to_all_v_single", "gather", "reduce_scatter_v", "_reduce_oop", "_broadcast_oop")
)
Signature = tuple[object, ...]


def mismatch(alignment: Alignment, instance: Instance) -> Fault | None:
    """Return a fault with the ranks that differ in ``instance``, or None where all agree. ``num_victims`` stays 0."""
    operations = instance.operations
    if instance.pair is not None:
        return _pair_mismatch(instance)
    for verdict, of in (("type_mismatch", _kind), ("dtype_mismatch", attrgetter("dtypes")), ("size_mismatch", _sizes)):
        culprits, majority = _minority(operations, of)
        if culprits:
            return _fault(alignment, instance, verdict, culprits, majority)  # type: ignore[arg-type]
    return _total_mismatch(instance)


def _kind(one: Operation) -> Signature:
    return (one.op,)


def _sizes(one: Operation) -> Signature:
    inputs = None if one.op in UNEQUAL_INPUTS else one.input_sizes
    outputs = None if one.op in UNEQUAL_OUTPUTS else one.output_sizes
    return (inputs, outputs)


def _minority(operations: dict[int, Operation], of) -> tuple[list[int], int]:  # type: ignore[no-untyped-def]
    """Return the ranks that differ from the majority, and one rank of it. A tie goes to the side of the lowest rank."""
    signatures = {rank: of(one) for rank, one in operations.items()}
    votes = Counter(signatures.values())
    if len(votes) < 2:
        return [], -1
    first = {signature: min(rank for rank in signatures if signatures[rank] == signature) for signature in votes}
    right = max(votes, key=lambda signature: (votes[signature], -first[signature]))
    return sorted(rank for rank in signatures if signatures[rank] != right), first[right]


def _fault(alignment: Alignment, instance: Instance, verdict: Verdict, culprits: list[int], majority: int) -> Fault:
    wrong, right = instance.operations[culprits[0]], instance.operations[majority]
    agreeing = len(instance.operations) - len(culprits)
    if verdict == "type_mismatch":
        order = _order(alignment, instance, culprits[0], majority)
        verdict = "order_mismatch" if order else verdict
        what = f"issued {wrong.op} where {agreeing} others issued {right.op}{order}"
    elif verdict == "dtype_mismatch":
        what = f"uses {'/'.join(wrong.dtypes)} where {agreeing} others use {'/'.join(right.dtypes)}"
    else:
        what = f"has sizes {_shapes(wrong)} where {agreeing} others have {_shapes(right)}"
    tie = "; as many say the one as the other" if agreeing == len(culprits) else ""
    who = f"rank {culprits[0]}" if len(culprits) == 1 else f"ranks {', '.join(map(str, culprits[:8]))}"
    return Fault(
        verdict=verdict,
        ranks=tuple(culprits),
        group=instance.group.name,
        sequence=instance.sequence,
        op=right.op,
        num_victims=0,
        since_ns=instance.since_ns,
        explanation=f"in {instance.label()} {who} {what}{tie}",
    )


def _order(alignment: Alignment, instance: Instance, culprit: int, majority: int) -> str:
    """Return words for operations in exchanged order, or for one that was left out; empty without evidence."""
    following = alignment.by_key.get((instance.group, instance.sequence + 1, None))
    if following is None:
        return ""
    wrong, right = instance.operations[culprit], instance.operations[majority]
    others_next, own_next = following.operations.get(majority), following.operations.get(culprit)
    early = others_next is not None and others_next.op == wrong.op
    late = own_next is not None and own_next.op == right.op
    if late:
        return f", and {right.op} after it: its order is another"
    return f", which the others issued next: it left {right.op} out or changed the order" if early else ""


def _total_mismatch(instance: Instance) -> Fault | None:
    """Return the fault of an all-to-all whose total inputs and outputs differ; this names no single rank."""
    operations = instance.operations
    if (
        len(operations) < len(instance.members)
        or next(iter(operations.values())).op not in UNEQUAL_INPUTS & UNEQUAL_OUTPUTS
    ):
        return None
    given = sum(_elements(one.input_sizes) for one in operations.values())
    taken = sum(_elements(one.output_sizes) for one in operations.values())
    if given == taken:
        return None
    what = f"all inputs of {instance.label()} hold {given} elements, all outputs {taken}; no single rank can be named"
    return Fault(
        verdict="size_mismatch",
        ranks=tuple(sorted(operations)),
        group=instance.group.name,
        sequence=instance.sequence,
        op=next(iter(operations.values())).op,
        num_victims=0,
        since_ns=instance.since_ns,
        explanation=what,
    )


def _pair_mismatch(instance: Instance) -> Fault | None:
    """Return the fault of a send whose receive expects another size or type, or None."""
    source, target = instance.pair or (-1, -1)
    send, receive = instance.operations.get(source), instance.operations.get(target)
    if send is None or receive is None or source == target:
        return None
    given, taken = _elements(send.input_sizes), _elements(receive.output_sizes)
    if given == taken and send.dtypes == receive.dtypes:
        return None
    return Fault(
        verdict="size_mismatch" if given != taken else "dtype_mismatch",
        ranks=(source, target),
        link=(source, target),
        group=instance.group.name,
        sequence=instance.sequence,
        op="send",
        num_victims=0,
        since_ns=instance.since_ns,
        explanation=f"{instance.label()}: rank {source} sends {given} of {'/'.join(send.dtypes)}, "
        f"rank {target} receives {taken} of {'/'.join(receive.dtypes)}",
    )


def _elements(shapes: tuple[tuple[int, ...], ...]) -> int:
    total = 0
    for shape in shapes:
        count = 1
        for length in shape:
            count *= length
        total += count
    return total


def _shapes(one: Operation) -> str:
    return f"{list(map(list, one.input_sizes[:4]))} → {list(map(list, one.output_sizes[:4]))}"
