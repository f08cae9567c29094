-- Once, as the database of compose.yaml begins: the one of Prefect's server and the one of MLflow.
create database prefect;
create database mlflow;
