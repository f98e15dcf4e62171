"""report.html: one file with charts that needs no network; Vega-Lite draws, these modules say what."""
