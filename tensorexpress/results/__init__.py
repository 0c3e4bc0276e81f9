"""Results: what came out of predictions and of measured runs alike, as values, tables, files and figures.

Nothing here simulates or measures. A value says what came out; what is named after it shows it.

columns.py         every column of what is reported of a job under a policy: the one place to add another
side_by_side.py    several policies on one scenario; report.py (table, JSON, CSV), advice.py (in words), plot.py
swept.py           the points of a sweep; bands.py (where scheduling pays), sweep_report.py, sweep_plot.py
explanation.py     a gain in steps; explanation_report.py, explanation_plot.py
compare.py         two runs, such as a measured one and its prediction; compare_report.py, compare_plot.py
plan_report.py     a plan as a table; chrome_trace.py: a trace as a file for Perfetto
heading.py         the first line of a result; provenance.py: what made it, in every file
figure.py          the style that all figures share; timelines.py: what a worker did, as lanes
"""
