"""Save what the first stages of `dvc repro` prepare: datasets, and who holds what."""

from fedcore.config.settings import Setting
from fedcore.pipeline.orchestration.session import Session
from fedcore.pipeline.orchestration.task_runs import task
from fedcore.pipeline.record.result import PreparedData
from fedcore.pipeline.run import partitions
from fedcore.pipeline.run.outputs import data_folder, partition_folder


@task("read {setting.dataset}")
def read_dataset(session: Session, setting: Setting) -> None:
    """Read a setting's dataset from its source, and save it for the next stage."""
    dataset = partitions.read_dataset(session.store, setting.data)
    partitions.save_dataset(session.store, dataset, data_folder(setting))


def save_partition(session: Session, setting: Setting, seed: int) -> None:
    """Divide a setting's dataset among devices, and save who holds what."""
    dataset = partitions.import_dataset(session.store, data_folder(setting))
    divided = partitions.divide_dataset(session.steps, dataset, setting.federation, seed)
    partitions.save_partition(session.store, PreparedData(dataset, divided), partition_folder(setting, seed))
