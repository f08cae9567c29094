"""Training of a net whose first parts are shared and whose other parts are personal (FedASA, Section III; FedPer)."""

from collections.abc import Collection

from fedcore.core.training import WHOLE, FlatNet, Pieces, Training, fit, flatten_net, starting_params
from fedcore.types.federation import Device, Params
from fedcore.types.method import Message, StepId, Update


def train_shared(
    memory: Params,
    message: Message,
    device: Device,
    step_id: StepId,
    *,
    shared: Collection[str],
    training: Training,
    personal_lr: float | None,
) -> tuple[Params, Update]:
    r"""Train shared theta and personal phi (4) together; send theta (Algorithm 1, lines 21-24), (3) and (5) its bytes.

    theta <- theta - eta_g grad L,  phi <- phi - eta_h grad L   (13)

    shared: the parameters of theta, the net's first ones. eta_g is training's rate, eta_h personal_lr (None: the same).
    Parameters of the message replace those in memory, which is the device's whole model after its last training.
    """
    flat = flatten_net(device.net, starting_params({}, Message({**memory, **message.params}), device, step_id))
    moments = fit(
        flat,
        device,
        step_id,
        training,
        memory,
        message=message,
        pieces=cut_pieces(flat, shared, training.lr, personal_lr),
    )
    params = flat.params()
    sent = {name: x for name, x in params.items() if name in shared}
    return params | moments, Update(sent, size=len(device.data.train))


def cut_pieces(flat: FlatNet, shared: Collection[str], lr: float, personal_lr: float | None) -> Pieces:
    """Cut the vector at the first personal parameter."""
    personal = [tensor.storage_offset() for name, tensor in flat.parameters.items() if name not in shared]
    if personal_lr is None or personal_lr == lr or not personal:
        return WHOLE
    return ((slice(None, personal[0]), 1.0), (slice(personal[0], None), personal_lr / lr))
