"""The referee: plays schedules event by event on links that are shared max-min fairly. Knows nothing of ``cost_models``."""
