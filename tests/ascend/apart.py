"""What tests of several processes need: devices with known contents, and a limit to patience."""

from __future__ import annotations

import logging
import multiprocessing
import threading
from multiprocessing.connection import Connection
from typing import Any

import torch

from kvconform.connectors.ascend.device import CpuDevice

LIMIT = 30.0
"""Seconds until a test gives up on something that takes milliseconds."""

PROCESSES = multiprocessing.get_context("forkserver")  # not one of them shares memory with another
PROCESSES.set_forkserver_preload(["kvconform.connectors.ascend.remote"])


def make_device(first: float = 0.0) -> CpuDevice:
    """Four blocks of two layers; block b of layer i is full of ``first + 10 * i + b``."""
    device = CpuDevice()
    layers = [first + 10 * i + torch.arange(4.0).reshape(4, 1).repeat(1, 100) for i in range(2)]
    device.register_kv_caches({f"layer{i}": layer for i, layer in enumerate(layers)}, 4)
    return device


def values(device: CpuDevice) -> list[float]:
    """What fills the blocks of the first layer."""
    return [float(shard.view(torch.float32)[0]) for shard in device.read(range(4))]


def hear(connection: Connection) -> Any:
    assert connection.poll(LIMIT)
    return connection.recv()


class Log(logging.Handler):
    """Notes what the client or the server says."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.told = threading.Event()
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        if self.text in record.getMessage():
            self.count += 1
            self.told.set()
