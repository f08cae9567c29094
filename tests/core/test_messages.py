import mpmath
import pytest
import torch
from federations import NET, federation, model

from fedcore import Federation, InputError, apply_changes, nets
from fedcore.core.messages import (
    begin_with_memory,
    from_memory,
    initial_messages,
    received_model,
    to_everyone,
    to_memory,
    to_sampled,
)
from fedcore.core.secure_sum import from_integers, gaussian_noise, mask, require_everyone, to_integers
from fedcore.types.method import Message, Model, generator

WIDE = nets.net("mlp", shape=(4,), classes=3, widths=[7])


def test_everyone_gets_the_very_same_message():
    message = Message(model())
    sent = to_everyone(("a", "b"), message)
    assert list(sent) == ["a", "b"]
    assert all(one is message for one in sent.values())


def test_common_initial_models_are_drawn_by_the_server_from_the_seed():
    server, messages = initial_messages(federation().public, 3, shared_init=True)
    assert server == {}
    assert len({id(message) for message in messages.values()}) == 1
    torch.testing.assert_close(messages["b"].params, nets.init(NET, generator(3, "init")), rtol=0, atol=0)
    other = initial_messages(federation().public, 4, shared_init=True)[1]["b"].params
    assert not torch.equal(other["fc1.weight"], messages["b"].params["fc1.weight"])


def test_devices_with_different_nets_get_one_model_per_net_drawn_alike():
    fed = federation("abcd")
    devices = {**fed.devices, **federation("bd", WIDE).devices}
    _, messages = initial_messages(Federation(devices, fed.test, 3).public, 3, shared_init=True)
    assert messages["a"] is messages["c"]
    assert messages["b"] is messages["d"]
    for name, net in (("a", NET), ("b", WIDE)):
        torch.testing.assert_close(messages[name].params, nets.init(net, generator(3, "init")), rtol=0, atol=0)


def test_nothing_is_sent_where_devices_initialise_themselves():
    server, messages = initial_messages(federation().public, 3, shared_init=False)
    assert server == {}
    assert list(messages) == ["a", "b", "c"]
    assert all(message == Message() and message.nbytes == 0 for message in messages.values())


@pytest.mark.parametrize("memory", [{}, {"fc1.weight": torch.zeros(5, 4)}], ids=["no memory", "memory"])
def test_what_was_received_is_run_whatever_the_device_owns(memory):
    params = model()
    found = received_model(memory, Message(params))
    assert found == Model((params,))
    assert found.weights == (1.0,)


def test_what_is_kept_of_one_start_follows_the_mean_change():
    server, messages = begin_with_memory(federation().public, 3)
    start = messages["a"].params
    assert all(message.params is start for message in messages.values())
    ones, threes = ({name: torch.full_like(x, n) for name, x in start.items()} for n in (1.0, 3.0))
    moved = apply_changes(server, [ones, threes], torch.tensor([0.75, 0.25]))
    torch.testing.assert_close(moved, {name: x + 1.5 for name, x in start.items()})
    assert from_memory({**to_memory(moved), "soft/targets": torch.zeros(1)}) == moved
    assert from_memory({}) == {}


def test_a_device_gets_the_initial_tensors_until_it_takes_part():
    whole = model()
    part = {"fc1.bias": whole["fc1.bias"] + 1}
    server, first = to_sampled(to_memory(whole), ["a"], "ab", Message(part))
    assert first["a"].params == part
    assert first["b"].params == whole | part
    _, second = to_sampled(server, ["b"], "ab", Message(part))
    assert second["a"].params == second["b"].params == part


# Masked sums and the noise of the Gaussian mechanism.
NAMES = ("a", "b", "c")


def values(name):
    return 100 * torch.randn(50, dtype=torch.float64, generator=generator("sums", name))


def masked(seed=0):
    return {name: mask(to_integers(values(name), name, len(NAMES)), "tensor", name, NAMES, seed) for name in NAMES}


def test_masks_cancel_in_the_sum_bit_by_bit():
    plain = sum(to_integers(values(name), name, len(NAMES)) for name in NAMES)
    assert torch.equal(sum(masked().values()), plain)


def test_the_masked_sum_is_the_plain_sum_to_the_resolution():
    found = from_integers(sum(masked().values()))
    torch.testing.assert_close(found, sum(values(name) for name in NAMES), rtol=0, atol=len(NAMES) * 2.0**-33)


def test_a_masked_update_tells_nothing_and_seeds_mask_differently():
    """It is spread over all integers: half of them are negative, and their size is that of 2^63."""
    one, again, other = masked()["a"], masked()["a"], masked(1)["a"]
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert 10 < int((one < 0).sum()) < 40
    assert one.double().abs().median() > 2.0**60


def test_sums_that_overflow_are_refused():
    with pytest.raises(InputError, match=r"^update of a: it has the number 1e\+09, masked sums of 3 devices hold"):
        to_integers(torch.tensor([1.0e9]), "a", 3)


def test_a_masked_sum_without_a_device_is_refused_by_its_name():
    require_everyone({"b": 1, "a": 2}, ("a", "b"))
    with pytest.raises(
        InputError, match=r"^secure_aggregation = true: a, c sent nothing, and masks cancel in the sum over all"
    ):
        require_everyone({"b": 1}, ("a", "b", "c"))


def profile(sigma, epsilon):
    """The least delta of noise sigma at sensitivity 1 (Balle and Wang 2018, Theorem 8), to 50 digits."""
    with mpmath.workdps(50):
        sigma, epsilon = mpmath.mpf(sigma), mpmath.mpf(epsilon)
        near, far = 1 / (2 * sigma) - epsilon * sigma, -1 / (2 * sigma) - epsilon * sigma
        return mpmath.ncdf(near) - mpmath.exp(epsilon) * mpmath.ncdf(far)


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 8.0, 100.0])
@pytest.mark.parametrize("delta", [1e-10, 1e-5, 0.1])
def test_the_noise_meets_the_exact_formula(epsilon, delta):
    assert float(profile(gaussian_noise(epsilon, delta, 1.0), epsilon)) == pytest.approx(delta, rel=1e-6)


def test_known_noise():
    """Less than the 4.84 of the classical formula, sqrt(2 ln(1.25 / delta)) / epsilon."""
    assert gaussian_noise(1.0, 1e-5, 1.0) == pytest.approx(3.7306, abs=1e-4)
    assert gaussian_noise(1.0, 1e-5, 7.0) == pytest.approx(7 * gaussian_noise(1.0, 1e-5, 1.0))
