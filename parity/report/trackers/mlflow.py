"""MLflow. Without `--into` the tracking URI is that of its own environment (MLFLOW_TRACKING_URI)."""

from __future__ import annotations

import tempfile
from pathlib import Path

from parity.report.tracked import Tracked
from parity.report.trackers import Target, tracker

MOST_METRICS, MOST_PARAMS = 1000, 100
"""Of one request, by its API."""
_LONGEST = 5000
"""Characters of a tag."""


@tracker("mlflow")
def mlflow(run: Tracked, to: Target) -> str:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client = MlflowClient(tracking_uri=to.into)
    experiment = client.get_experiment_by_name(to.project)
    number = client.create_experiment(to.project) if experiment is None else experiment.experiment_id
    tags = {name: text[:_LONGEST] for name, text in run.texts.items()}
    made = client.create_run(number, run_name=run.name, tags=tags).info.run_id
    params = [Param(name, value) for name, value in run.settings.items()]
    metrics = [Metric(_name(s.name), s.value, 0, s.step) for s in run.scalars]
    for i in range(0, len(params), MOST_PARAMS):
        client.log_batch(made, params=params[i : i + MOST_PARAMS])
    for i in range(0, len(metrics), MOST_METRICS):
        client.log_batch(made, metrics=metrics[i : i + MOST_METRICS])
    with tempfile.TemporaryDirectory(prefix="parity-") as folder:
        for image in run.images:
            file = Path(folder) / f"{image.step:04d}-{image.name.rpartition('/')[2]}.png"
            file.write_bytes(image.png)
            client.log_artifact(made, str(file), "frames")
    client.set_terminated(made)
    return f"experiment {to.project}, run {made}"


def _name(name: str) -> str:
    """A metric's name: letters, digits, _ - . space : and / alone."""
    return "".join(c if c.isalnum() or c in "_-. :/" else "_" for c in name)
