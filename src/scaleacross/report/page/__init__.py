"""report.html: one file with charts that needs no network. Vega-Lite draws the charts that these modules specify."""
