"""Write MLflow's database, without runs. python -m empty_record PATH"""

import sys

from mlflow import MlflowClient

if __name__ == "__main__":
    MlflowClient(f"sqlite:///{sys.argv[1]}")
