"""What a killed process leaves in MLflow's record, and how the next one removes it."""

from __future__ import annotations

import shutil

from mlflow import MlflowClient
from mlflow.entities import LoggedModel
from mlflow.store.tracking.dbmodels.models import SqlInput, SqlLoggedModelMetric
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from mlflow.utils.file_utils import local_file_uri_to_path


def forget_model(client: MlflowClient, model: LoggedModel) -> None:
    """Delete a model whose logging was cut short, with its files, and the word that it is an output of its run.

    MLflow's client marks it as deleted and leaves all this; so it stays where a server keeps the record.
    """
    client.delete_logged_model(model.model_id)
    store = client._tracking_client.store
    if isinstance(store, SqlAlchemyStore):
        with store.ManagedSessionMaker(read_only=False) as session:
            session.query(SqlInput).filter_by(destination_type="MODEL_OUTPUT", destination_id=model.model_id).delete()
            session.query(SqlLoggedModelMetric).filter_by(model_id=model.model_id).delete()
        store._hard_delete_logged_model(model.model_id)
        if model.artifact_location.startswith("file:"):
            shutil.rmtree(local_file_uri_to_path(model.artifact_location), ignore_errors=True)
