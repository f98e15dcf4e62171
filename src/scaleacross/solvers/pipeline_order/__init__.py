"""The pieces of ``order_pipeline``: the problem, a list scheduler, lower bounds, a CP-SAT model and its neighbourhoods."""
