r"""Masked sums on real devices: the server sees the sum over the devices and no single term.

Each device has a key pair for each run (X25519, RFC 7748), whose public half it signs with the key of its certificate.
Two devices derive the same masks from their keys, which the server does not have (Bonawitz et al. 2017):

    sent_i = x_i + sum_{j > i} m_ij - sum_{j < i} m_ij + o_i                               modulo 2^64

m_ij: the mask of a pair. o_i: the device's own mask, which it tells the server once everybody in the sum has answered,
for one set of devices in a turn. So the server cannot have two sums of one turn, whose difference would be one update.
Masks depend on run, turn, the devices in the sum and their keys: a sum that is repeated among fewer devices has others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import torch
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import NameOID
from torch import Tensor

from fedcore.core.secure_sum import add_masks, own_noise
from fedcore.errors import InputError
from fedcore.field.kits import Kit, link_name
from fedcore.types.method import Update

Card: TypeAlias = Mapping[str, str]
"""A device's public key in a run, its certificate, and the signature that binds them."""


class Keys:
    """The key of a device's certificate, and the authority by which it knows the others' certificates."""

    def __init__(self, kit: Kit) -> None:
        self._name = kit.name
        self._certificate = (kit.folder / "own.crt").read_text("ascii")
        self._own: Any = serialization.load_pem_private_key((kit.folder / "own.key").read_bytes(), None)
        self.authority = read_authority(kit.folder)

    @staticmethod
    def new_secret() -> bytes:
        """Return a secret key, from the device's own random numbers."""
        secret: bytes = X25519PrivateKey.generate().private_bytes_raw()
        return secret

    def card(self, run: str, secret: bytes) -> Card:
        """Return the card of a run's secret key."""
        public: bytes = X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()
        signature = self._own.sign(_signed(run, self._name, public), PKCS1v15(), hashes.SHA256())
        return {"key": public.hex(), "certificate": self._certificate, "signature": signature.hex()}

    def masks(self, run: str, turn: tuple[int, int], secret: bytes, cards: Mapping[str, Any]) -> Masks:
        """Return this device's masks in a sum of the devices with these cards, of which one must be its own."""
        publics = {name: public_key(run, name, card, self.authority) for name, card in cards.items()}
        masks = Masks(self._name, secret, publics, run, turn)
        if publics.get(self._name) != X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw():
            raise InputError(f"run {run}: {self._name} is not in the sum, or with another key than its own")
        return masks


def read_authority(kit: Path) -> x509.Certificate:
    """Return the certificate of the authority that has signed those of all devices of a kit."""
    return x509.load_pem_x509_certificate((kit / "authority.crt").read_bytes())


def public_key(run: str, name: str, card: Any, authority: x509.Certificate) -> bytes:
    """Return the public key of a device in a run. Raises InputError if it is not that device's."""
    try:
        public = bytes.fromhex(card["key"])
        certificate = x509.load_pem_x509_certificate(card["certificate"].encode("ascii"))
        certificate.verify_directly_issued_by(authority)
        (common,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        valid = certificate.not_valid_before_utc <= datetime.now(UTC) <= certificate.not_valid_after_utc
        if common.value != link_name(name) or not valid:
            raise ValueError("another device's certificate, or one that is over")
        signer: Any = certificate.public_key()
        signer.verify(bytes.fromhex(card["signature"]), _signed(run, name, public), PKCS1v15(), hashes.SHA256())
    except (KeyError, TypeError, ValueError, AttributeError, InvalidSignature):
        raise InputError(f"run {run}: the key that is said to be {name}'s is not signed by it") from None
    return public


class Masks:
    """A device's masks in one sum. publics: the public key of every device in it, by name."""

    def __init__(self, name: str, secret: bytes, publics: Mapping[str, bytes], run: str, turn: tuple[int, int]) -> None:
        self._name, self._secret = name, secret
        self.context = context_of(run, turn, {device: key.hex() for device, key in publics.items()})
        own, self._shared = X25519PrivateKey.from_private_bytes(secret), {}
        for other, public in publics.items():
            if other != name:
                try:
                    self._shared[other] = own.exchange(X25519PublicKey.from_public_bytes(public))
                except ValueError:  # a key for which anybody knows the result
                    raise InputError(f"run {run}: the key of {other} is none") from None
        self._masked: set[str] = set()
        self._noised = False

    def mask(self, values: Tensor, tensor_name: str, name: str, names: Collection[str], seed: int) -> Tensor:
        """Add the masks of the pairs, see :func:`fedcore.core.secure_sum.mask`; the seed has no part in them."""
        if self._noised and len(self._shared) + 1 < len(names):
            away = ", ".join(sorted({*names} - {*self._shared, name}))
            raise InputError(f"epsilon: the noise of all devices makes their sum private; {away} is not in it")

        def draw(pair: tuple[str, str]) -> Tensor:
            (other,) = {*pair} - {name}
            return numbers(_derive(self._shared[other], "pair", self.context, *pair, tensor_name), values.shape)

        if tensor_name in self._masked:
            raise InputError(f"tensor {tensor_name}: would be masked twice, by the same numbers")
        self._masked.add(tensor_name)
        return add_masks(values, name, [*self._shared], draw)

    def noise(self, values: Tensor, draws: torch.Generator) -> Tensor:
        """Return standard normal numbers from the device's own random numbers; the simulation's have no part in it."""
        self._noised = True
        return own_noise(values, draws)

    def hide(self, update: Update) -> Update:
        """Add the device's own masks to what its step has masked. Raises InputError if anything else would leave."""
        if update.params or len(update.extra) != len(self._masked):
            raise InputError("masked sums: the method sends numbers that are not masked")
        key = self.own()
        return replace(
            update, extra={name: tensor + own_mask(key, name, tensor.shape) for name, tensor in update.extra.items()}
        )

    def own(self) -> bytes:
        """Return the key of the device's own mask, which it tells the server at the end."""
        return _derive(self._secret, "own", self.context)


def context_of(run: str, turn: tuple[int, int], publics: Mapping[str, str]) -> str:
    """Return what the masks of a sum depend on beside secrets: run, turn, the devices in it and their keys in hex."""
    return json.dumps([run, *turn, sorted(publics.items())])


def names_in(context: str) -> list[str]:
    """Return the devices in a sum from `context_of` what a device says, none for anything else."""
    try:
        return [str(name) for name, _ in json.loads(context)[-1]]
    except (ValueError, TypeError, LookupError):
        return []


def unmask(update: Update, own: bytes) -> Update:
    """Return an update without the device's own masks; those of the pairs remain. own: see `Masks.own`."""
    masked = {name: x for name, x in update.extra.items() if x.dtype == torch.int64}
    return replace(update, extra=update.extra | {name: x - own_mask(own, name, x.shape) for name, x in masked.items()})


def own_mask(key: bytes, name: str, shape: torch.Size) -> Tensor:
    """Return a device's own mask of a tensor. key: see `Masks.own`."""
    return numbers(_derive(key, "leaf", name), shape)  # a label of the derivation: all versions must have the same


def numbers(key: bytes, shape: torch.Size) -> Tensor:
    """Return random integers modulo 2^64 from a key that is used for nothing else: AES-256 in counter mode."""
    count = math.prod(shape)
    if not count:
        return torch.zeros(shape, dtype=torch.int64)
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(8 * count))
    return torch.frombuffer(bytearray(stream), dtype=torch.int64).reshape(shape)


def _derive(secret: bytes, *parts: str) -> bytes:
    info = json.dumps(["fedcore masks", *parts]).encode()
    key: bytes = HKDF(hashes.SHA256(), 32, None, info).derive(secret)
    return key


def _signed(run: str, name: str, public: bytes) -> bytes:
    return json.dumps(["fedcore key", run, name, public.hex()]).encode()
