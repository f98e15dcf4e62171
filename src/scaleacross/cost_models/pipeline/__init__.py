"""The pipeline of a step: closed forms and bounds for arrays of candidates, timing by action for placed decisions."""
