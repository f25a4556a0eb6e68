"""A measured quantity beside its bounds, as every function of `theory` that bounds returns it."""

from dataclasses import dataclass

from torch import Tensor, finfo


@dataclass(frozen=True)
class Bound:
    """A measured quantity, its upper bound, and its lower bound (0 where none is stated)."""

    measured: Tensor
    upper: Tensor
    lower: Tensor | float = 0.0

    @property
    def holds(self) -> Tensor:
        """Compare the measured quantity with its bounds, up to rounding."""
        slack = 1e4 * finfo(self.measured.dtype).eps * (1 + self.upper.abs())
        return (self.measured <= self.upper + slack) & (self.measured >= self.lower - slack)
