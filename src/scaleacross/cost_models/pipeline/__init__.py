"""The pipeline of a step: closed forms and bounds for arrays of candidates, timing action by action for what is placed."""
