"""Training among replicas that survives the loss of one: membership in epochs, repeated all-reduces, late joiners.

``membership`` decides who takes part and ``coordinator`` serves it over sockets; both need no torch. ``member`` is what
a replica uses. A replica is a fault unit: it holds a complete state, on one rank or sharded over several, and is lost
as a whole.
"""
