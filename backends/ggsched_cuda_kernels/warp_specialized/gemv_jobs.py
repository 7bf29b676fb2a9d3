"""What one call of ``warp_specialized_rows`` computes, and what may join it."""

from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

from ggsched.backend.program import Operand
from ggsched_cuda_kernels.operands import is_same
from ggsched_cuda_kernels.warp_specialized.tile_config import TileConfig, cut_for
from ggsched_kernels.calls import TuningProfile

MAX_JOBS: Final = 3


@dataclass(frozen=True, slots=True)
class Job:
    """One result: a product, or two that a gate joins.

    Attributes:
        w: The weight.
        y: The result.
        v: Weight of the gate's other side.
        added: What is added, two vectors at most.
    """

    w: Operand
    y: Operand
    v: Operand | None = None
    added: tuple[Operand, ...] = ()

    @property
    def weights(self) -> list[Operand]:
        """The weights of all branches."""
        return [self.w] if self.v is None else [self.w, self.v]

    @property
    def reads(self) -> list[Operand]:
        """All that it reads beside the row."""
        return [*self.weights, *self.added]


@dataclass(frozen=True, slots=True)
class Norm:
    """The norm that makes the row: its weight, its result, its epsilon."""

    w: Operand
    y: Operand
    eps: float


@dataclass(frozen=True, slots=True)
class ReducePrologue:
    """What makes the norm's operand: sums of the numbers of some rows, and what they are added to.

    Attributes:
        x: The numbers of each sum, (.., n, count).
        z: What they are added to.
        y: The result, a row.
    """

    x: Operand
    z: Operand
    y: Operand

    @property
    def count(self) -> int:
        """How many rows are added up."""
        return int(self.x.shape[-1])

    @property
    def reads(self) -> list[Operand]:
        """All that it reads."""
        return [self.x, self.z]

    @property
    def writes(self) -> list[Operand]:
        """All that it writes."""
        return [self.y]


@dataclass(frozen=True, slots=True)
class PeerSumPrologue:
    """The sum of rows of several GPUs and of another row, which is the norm's operand.

    Attributes:
        parts: The rows, in the order of the sum. The kernel reads the copies that the GPUs have
            pushed, not these operands.
        part: The sum of all rows but the last, if it is an operand of its own.
        z: The other row, the residual.
        y: The result.
        label: The node that a timeout names.
    """

    parts: tuple[Operand, ...]
    part: Operand | None
    z: Operand
    y: Operand
    label: str

    @property
    def count(self) -> int:
        """How many rows are added up."""
        return len(self.parts)

    @property
    def reads(self) -> list[Operand]:
        """The operands that it reads; rows of GPUs are read as copies."""
        return [self.z]

    @property
    def writes(self) -> list[Operand]:
        """All that it writes."""
        return [self.y] if self.part is None else [self.y, self.part]


Prologue = ReducePrologue | PeerSumPrologue


@dataclass(slots=True)
class GemvGroup:
    """Jobs of one row of x, which a norm may have made.

    Attributes:
        profile: Of the device.
        x: The row; what the norm takes if there is one.
        sums: What makes x, for the norm to take.
        jobs: What is computed.
    """

    profile: TuningProfile
    x: Operand
    norm: Norm | None = None
    sums: Prologue | None = None
    jobs: list[Job] = field(default_factory=list)

    @property
    def cut(self) -> TileConfig:
        """How the kernel is cut: by the first job, and those that join it are alike."""
        cut = self._cut_for(self.jobs[0])
        assert cut is not None  # jobs are looked at before they join
        return cut

    @property
    def is_constant(self) -> bool:
        """Whether all that is fetched before the predecessor has ended may be (LCH-7)."""
        weights = [w for job in self.jobs for w in job.weights]
        return all(w.is_constant for w in weights) and (
            self.norm is None or self.norm.w.is_constant
        )

    def takes(self, x: Operand, job: Job) -> bool:
        """Whether a job may join: of the same row, cut alike, and in nobody's way."""
        row = self.x if self.norm is None else self.norm.y
        cut = self._cut_for(job)
        if len(self.jobs) == MAX_JOBS or not is_same(row, x) or cut is None:
            return False
        if self.jobs and not self._is_like(job, cut):
            return False
        return self._is_apart(job)

    def _cut_for(self, job: Job) -> TileConfig | None:
        return cut_for(job.weights, self.profile, has_norm=self.norm is not None)

    def _is_like(self, job: Job, cut: TileConfig) -> bool:
        first = self.jobs[0]
        if (
            cut != self.cut
            or first.w.dtype is not job.w.dtype
            or (first.v is None) != (job.v is None)
        ):
            return False
        return all(
            a.is_constant == b.is_constant for a, b in zip(first.weights, job.weights, strict=True)
        )

    def _is_apart(self, job: Job) -> bool:
        """Whether nobody writes what another one reads or writes.

        A result may lie on what is added to it, number by number.
        """
        sums = self.sums
        reads, writes = ([self.x], []) if sums is None else (sums.reads, sums.writes)
        if self.norm is not None:
            reads.append(self.norm.w)
            writes.append(self.norm.y)
        if any(a.meets(b) for a in writes for b in reads):
            return False
        if any(a.meets(b) for a, b in combinations(writes, 2)):
            return False
        for other in self.jobs:
            reads += other.reads
            writes.append(other.y)
        if any(job.y.meets(o) for o in (*reads, *writes, *job.weights)):
            return False
        if any(job.y.meets(z) and not is_same(job.y, z) for z in job.added):
            return False
        return not any(o.meets(w) for o in job.reads for w in writes)
