"""Rotary modules without frequencies: GPT-J, CodeGen and RoFormer look sin and cos up in a table of fixed length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from ctxeval.errors import RunError
from ctxeval.rope.sites import Site

#: The only base that these models were ever made with.
BASE = 10000.0


@dataclass(frozen=True, eq=False)
class TableSite(Site):
    """A table (positions, rotary_dim): row p is sin(p w_i) for every pair i, then cos(p w_i).

    `attribute` is where the module keeps it: a buffer, or the weight of an embedding. What `Site` says of frequencies
    is read from the table's second row, and writing them writes a new table.
    """

    attribute: str = "embed_positions"

    @property
    def table(self) -> Tensor:
        """The table in use."""
        return cast(Tensor, getattr(self.module, self.attribute))

    @property
    def inv_freq(self) -> Tensor:
        """The frequencies that the table was made with, (rotary_dim/2,), rad/token, fp32."""
        sin, cos = self.table.detach()[1].double().chunk(2)
        found = torch.atan2(sin, cos)
        plain = plain_frequencies(2 * found.numel()).to(found.device)
        # One row in bf16 holds 8 bits; where the plain frequencies explain it, they are meant.
        tolerance = 4 * torch.finfo(self.table.dtype).eps
        return plain if torch.allclose(found, plain.double(), rtol=tolerance, atol=0) else found.float()

    @property
    def original_inv_freq(self) -> Tensor | None:
        """None: there is no second copy."""
        return None

    @property
    def attention_scaling(self) -> float:
        """The length of a pair (sin, cos); exactly 1 where only the table's rounding differs."""
        factor = float(self.table.detach()[1].double().chunk(2)[0].square().add(self._cos().square()).sqrt().mean())
        return 1.0 if abs(factor - 1) <= torch.finfo(self.table.dtype).eps else factor

    def write_inv_freq(self, values: Tensor) -> None:
        """Make a table of as many rows from `values`."""
        self.write(values, self.attention_scaling, len(self.table))

    def write_attention_scaling(self, value: float) -> None:
        """Multiply the table so that its pairs have the length `value`."""
        self.put_table(self.table.detach() * (value / self.attention_scaling))

    def write(self, values: Tensor, factor: float, rows: int) -> None:
        """Make a table of at least `rows` rows from frequencies (rotary_dim/2,) and the factor on sin and cos."""
        self.put_table(self._rows(values, 0, max(rows, len(self.table))) * factor)

    def extend(self, rows: int) -> None:
        """Append rows of the same frequencies; those that are there keep every bit."""
        if rows > len(self.table):
            added = self._rows(self.inv_freq, len(self.table), rows) * self.attention_scaling
            self.put_table(torch.cat([self.table.detach(), added]))

    def freeze(self) -> None:
        """Nothing recomputes a table."""

    def put_table(self, table: Tensor) -> None:
        """Put a table (rows, rotary_dim) in the place of the one in use."""
        parameter = isinstance(self.table, nn.Parameter)
        setattr(self.module, self.attribute, nn.Parameter(table, requires_grad=False) if parameter else table)

    def emit(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin (1, positions, pairs) as the module gives them for position ids (1, positions).

        Raises:
            RunError: the table has no row for a position.
        """
        if int(positions.max()) >= len(self.table):
            raise RunError(
                f"{self.label} has {len(self.table)} rows: there is none for position {int(positions.max())}",
                "please report this",
            )
        if isinstance(self.module, nn.Embedding):
            sin, cos = self.module(positions.shape, position_ids=positions).chunk(2, dim=-1)
        else:
            sin, cos = self.module(torch.zeros(1, positions.shape[-1], 1, device=positions.device), positions)
        return cos, sin

    def _rows(self, values: Tensor, start: int, stop: int) -> Tensor:
        """Return rows start to stop, angles in fp32 as rotary modules compute them."""
        positions = torch.arange(start, stop, dtype=torch.float32, device=self.table.device)
        angles = positions[:, None] * values.to(self.table.device, torch.float32)
        return torch.cat([angles.sin(), angles.cos()], dim=1).to(self.table.dtype)

    def _cos(self) -> Tensor:
        return self.table.detach()[1].double().chunk(2)[1]


def plain_frequencies(rotary_dim: int) -> Tensor:
    """Return 10000**(-2i/d), (rotary_dim/2,), fp32, rounded as GPT-J rounds them."""
    return 1.0 / (BASE ** (torch.arange(0, rotary_dim, 2, dtype=torch.int64) / rotary_dim))


def find_tables(modules: Sequence[tuple[str, nn.Module]]) -> Iterator[TableSite]:
    """Find tables that queries and keys are rotated by, not those that are added to the embeddings.

    Told apart by names: a buffer of a module called rotary; or a sinusoidal embedding of a model whose attention has a
    function that applies rotary positions.
    """
    rotating = any(hasattr(module, "apply_rotary_position_embeddings") for _, module in modules)
    for name, module in modules:
        kind = type(module).__name__
        if "Rotary" in kind and "embed_positions" in dict(module.named_buffers(recurse=False)):
            yield TableSite(name, module, "", False)
        elif rotating and "Sinusoidal" in kind and isinstance(module, nn.Embedding):
            yield TableSite(name, module, "", False, attribute="weight")
