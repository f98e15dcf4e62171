"""Tables over ranks and memories: least seconds of the busiest rank, with a bound."""
