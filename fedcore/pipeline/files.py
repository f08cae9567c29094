"""The names of the files that a run writes. This module imports nothing else."""

TABLE, METRICS, CURVES, MODELS, RUNS = "table.parquet", "metrics.json", "curves", "models.json", "runs.json"
SECONDS, PICTURES, INDEX, SCHEMA, PLOTS = "seconds.csv", "pictures", "index.csv", "schema.json", "plots"
OUTCOMES = "outcomes.json"
SETTING, FINAL_FIT, TRAINED, HELD = "setting.json", "final_fit.json", "trained_rows.npy", "held_out_rows.npy"
PATCH, STEPS = "uncommitted.patch", "seconds.json"
SUMMARY, GROUPS, PAGE, CLAIMS, BRIEF = "summary.csv", "groups.csv", "report.html", "claims.csv", "answers.txt"
ANSWERS, LAST = "answers.json", "last"
