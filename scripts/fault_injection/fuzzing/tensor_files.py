"""Mutations of safetensors, numpy archives and PyTorch's checkpoints that know what these are."""

import gzip
import io
import json
import pickle
import random
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from fuzzing import hostile


def mutate_safetensors(path: Path, rng: random.Random, marker: Path) -> str:
    """Change the header, or write sound files of other tensors."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    kind = rng.choice(
        ("header", "header", "length", "number", "type", "shape", "order", "names", "empty")
    )
    name = rng.choice(sorted(tensors))
    tensor = tensors[name]
    if kind in ("header", "length"):
        data = path.read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        header, rest = data[8 : 8 + length], data[8 + length :]
        if kind == "header":
            header = json.dumps(hostile.replaced(json.loads(header), rng)).encode()
            path.write_bytes(struct.pack("<Q", len(header)) + header + rest)
        else:
            claimed = rng.choice((0, 1, length + 1, 2**31, 2**40, 2**63, 2**64 - 1))
            path.write_bytes(struct.pack("<Q", claimed) + header + rest)
        return f"safetensors {kind}"
    if kind == "number":
        flat = tensor.clone().reshape(-1)
        if flat.is_floating_point() and len(flat):
            flat[rng.randrange(len(flat))] = rng.choice(
                (torch.nan, torch.inf, -torch.inf, 1e30, 0.0)
            )
        tensors[name] = flat.reshape(tensor.shape)
    elif kind == "type":
        dtype = rng.choice(
            (torch.int64, torch.uint8, torch.bool, torch.float16, torch.float64, torch.complex64)
        )
        tensors[name] = tensor.nan_to_num().to(dtype)
    elif kind == "shape":
        tensors[name] = rng.choice((tensor.reshape(-1)[:-1], tensor[None], tensor.reshape(-1)[:0]))
    elif kind == "order":
        other = rng.choice(sorted(tensors))
        tensors[name], tensors[other] = tensors[other], tensors[name]
    elif kind == "names":
        tensors[rng.choice(hostile.NAMES[2:]).replace("\ud800", "?")] = tensors.pop(name)
    else:
        tensors = {}
    whole = {key: value.clone().contiguous() for key, value in tensors.items()}
    path.unlink()
    save_file(whole, path, metadata)
    return f"safetensors {kind}"


def mutate_npz(path: Path, rng: random.Random, marker: Path) -> str:
    """Write an archive of other arrays, with pickles, huge claims, or well packed zeros."""
    with np.load(path) as file:
        arrays: dict[str, np.ndarray] = dict(file)
    name = rng.choice(sorted(arrays))
    array = arrays[name]
    kind = rng.choice(
        ("pickle", "claim", "bomb", "type", "number", "number", "shape", "drop", "extra", "names")
    )
    if kind == "pickle":
        arrays[name] = np.array([hostile.Payload(marker)], dtype=object)
    elif kind == "type":
        dtype = rng.choice(
            (np.float64, np.float16, np.complex64, np.int8, np.uint64, np.bool_, "U7", "S3")
        )
        try:
            arrays[name] = array.astype(dtype)
        except (ValueError, TypeError):
            arrays[name] = np.zeros(array.shape, dtype)
    elif kind == "number" and array.dtype.kind in "fiu" and array.size:
        flat = array.copy().reshape(-1)
        hard = (np.nan, np.inf, -1.0, 1e30) if array.dtype.kind == "f" else (255, 99, 7, 2**62, -5)
        with np.errstate(all="ignore"):
            flat[rng.randrange(flat.size)] = np.array(rng.choice(hard)).astype(array.dtype)
        arrays[name] = flat.reshape(array.shape)
    elif kind == "shape":
        arrays[name] = rng.choice((array.reshape(-1), array[..., None], array[:0], np.array(3)))
    elif kind == "drop":
        del arrays[name]
    elif kind == "extra":
        arrays[rng.choice(("x", "file", "self", "a/b"))] = array
    elif kind == "names":
        arrays[name] = np.full(array.shape, rng.choice(hostile.NAMES[1:]).replace("\0", "?"))
    buffers = {key: _npy(value) for key, value in arrays.items()}
    if kind == "claim":
        buffers[name] = _claim(array, rng)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, content in buffers.items():
            archive.writestr(f"{key}.npy", content)
        if kind == "bomb":
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                shape = (3 << 30,)
                np.lib.format.write_array_header_1_0(
                    member, {"descr": "|u1", "fortran_order": False, "shape": shape}
                )
                for _ in range(64):
                    member.write(bytes(1 << 22))
    return f"npz {kind}"


def _npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=True)
    return out.getvalue()


def _claim(array: np.ndarray, rng: random.Random) -> bytes:
    out = io.BytesIO()
    shape = rng.choice(((10**12,), (10**6, 10**7), (2**62,), (-1,), (1, 10**10)))
    descr = rng.choice((array.dtype.str, "<f8", "<U100000"))
    np.lib.format.write_array_header_1_0(
        out, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    return out.getvalue() + array.tobytes()


def mutate_checkpoint(path: Path, rng: random.Random, marker: Path) -> str:
    """Write a checkpoint that runs a program, has another form, or is packed."""
    kind = rng.choice(
        ("payload", "payload", "inside", "legacy", "plain", "packed", "bomb", "tree", "number")
    )
    state: Any = torch.load(path, map_location="cpu", weights_only=False)
    if kind == "payload":
        torch.save(hostile.Payload(marker), path)
    elif kind == "inside":
        state[rng.choice(sorted(state))] = hostile.Payload(marker)
        torch.save(state, path)
    elif kind == "legacy":
        state["more"] = hostile.Payload(marker)
        torch.save(state, path, _use_new_zipfile_serialization=False)
    elif kind == "plain":
        path.write_bytes(pickle.dumps(hostile.Payload(marker)))
    elif kind in ("packed", "bomb"):
        with zipfile.ZipFile(path) as archive:
            parts = {info.filename: archive.read(info) for info in archive.infolist()}
        if kind == "bomb":
            largest = max(parts, key=lambda name: len(parts[name]))
            parts[largest] = bytes(1 << 28)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in parts.items():
                archive.writestr(name, content)
    elif kind == "tree":
        key = rng.choice(sorted(state))
        change = rng.randrange(3)
        if change == 0:
            del state[key]
        elif change == 1:
            state[key] = hostile.value(rng)
        else:
            state[rng.choice(hostile.NAMES)] = state[key]
        torch.save(state, path)
    else:
        tensors = [item for item in _tensors(state) if item.is_floating_point() and item.numel()]
        if tensors:
            rng.choice(tensors).reshape(-1)[0] = rng.choice((torch.nan, torch.inf))
        torch.save(state, path)
    return f"checkpoint {kind}"


def _tensors(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from _tensors(item)
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from _tensors(item)


def mutate_gzip(path: Path, rng: random.Random, marker: Path) -> str:
    """Put something else into a packed file, or far more than it seems to hold."""
    kind = rng.choice(("zeros", "lines", "flip inside", "cut inside", "two parts", "nested"))
    data = bytearray(gzip.decompress(path.read_bytes()))
    if kind in ("zeros", "lines"):
        # Parts that follow one another count as one, so a bomb need be packed only once.
        unit = bytes(1 << 24) if kind == "zeros" else b'{"text": "a", "label": 0}\n' * (1 << 19)
        path.write_bytes(gzip.compress(unit) * rng.choice((8, 64, 600)))
        return f"gzip {kind}"
    if kind == "flip inside":
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == "cut inside":
        del data[rng.randrange(len(data)) :]
    packed = gzip.compress(bytes(data))
    if kind == "two parts":
        packed += packed
    elif kind == "nested":
        packed = gzip.compress(packed)
    path.write_bytes(packed)
    return f"gzip {kind}"
