"""Training among replicas that survives the loss of one: membership in epochs, an all-reduce that is done again, late joiners.

``membership`` decides who takes part, ``coordinator`` serves it over sockets; both need no torch. ``member`` is what a replica
uses. A replica is a fault unit: it holds a complete state, on one rank or sharded over several, and lives or dies as a whole.
"""
