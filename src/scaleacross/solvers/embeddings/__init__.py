"""Placement of embedding tables over ranks and memories: least seconds of the busiest rank, with a bound."""
